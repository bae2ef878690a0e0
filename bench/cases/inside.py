"""What ``vram inside`` takes, and what it costs the program that is looked into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from bench.native import ROOT
from bench.row import Row
from bench.target import asked, heard
from bench.timing import CommandFailed, program

MILLION, HUNDRED_THOUSAND, FEW = 1_000_000, 100_000, 100
TEN_SECONDS = 10.0


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}
        objects = _figures(MILLION, FEW, environment, min(turns, 5))
        arrays = _figures(0, HUNDRED_THOUSAND, environment, min(turns, 5))
    return [
        Row(
            "vram inside, 1,000,000 objects",
            objects["took_s"],
            "s",
            target=TEN_SECONDS,
            note="command to answer",
        ),
        Row("longest step of the busy target meanwhile", objects["longest_s"], "s", note="steps of 1 ms"),
        Row("mean step of the busy target meanwhile", objects["step_s"], "s", "alone", objects["alone_s"]),
        Row(
            "vram inside, 100,000 arrays", arrays["took_s"], "s", target=TEN_SECONDS, note="command to answer"
        ),
        Row("longest step of the busy target, 100,000 arrays", arrays["longest_s"], "s"),
    ]


def _figures(objects: int, arrays: int, environment: dict[str, str], turns: int) -> dict[str, float]:
    """The best of some tries: the machine's own noise only ever adds."""
    argv = [sys.executable, str(ROOT / "bench" / "visited.py"), str(objects), str(arrays)]
    with subprocess.Popen(argv, env=environment, stdin=-1, stdout=-1, text=True) as target:
        pid = heard(target)["pid"]
        tries = []
        for _ in range(turns):
            asked(target)
            time.sleep(1.0)  # how it works alone
            _, alone_s, _ = asked(target)
            took_s = _inside(pid, environment)
            _, step_s, longest_s = asked(target)
            tries.append({"took_s": took_s, "alone_s": alone_s, "step_s": step_s, "longest_s": longest_s})
        target.kill()
    return {name: min(each[name] for each in tries) for name in tries[0]}


def _inside(pid: int, environment: dict[str, str]) -> float:
    argv = [program("vram") or "vram", "inside", str(pid), "--json", "--deadline", "60s"]
    began = time.perf_counter()
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE)
    elapsed_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"vram inside: exit status {done.returncode}")
    answer = json.loads(done.stdout)["inside"]["answer"]
    if answer["was_cut"] or not answer["groups"]:
        raise CommandFailed("vram inside: the search was cut short")
    return elapsed_s
