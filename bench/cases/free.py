"""Freeing memory: a plan, a leftover ended and measured, and pids that are reused on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.company import CompanyRefused
from bench.row import Row
from bench.timing import CommandFailed, interleaved, program

GIB = 1024**3
TRIES = 10_000
REUSE = Path(__file__).resolve().parents[2] / "tests" / "reclaim" / "pid_reuse.py"


def run(turns: int) -> list[Row]:
    with _private_records():
        return [_planned(turns), _ended(turns), _reused()]


def _planned(turns: int) -> Row:
    vram = program("vram") or "vram"
    commands = {
        "plan": [vram, "free", "--dry-run", "--json"],
        "why": [vram, "why", "--json"],
    }
    with _orphan():
        # A plan that is only shown exits with 1: the memory is still held.
        samples = interleaved(commands, turns=turns, accepted=(0, 1))
    return Row(
        "vram free --dry-run", samples["plan"].median_s, "s", "vram why --json", samples["why"].median_s
    )


def _ended(turns: int) -> Row:
    """From the command's start to the device's word that the bytes are back."""
    seconds = sorted(_ended_once() for _ in range(turns))
    return Row("vram free --yes, 4 GiB of a dead pid", seconds[len(seconds) // 2], "s", target=1.0)


def _ended_once() -> float:
    with _orphan() as pid:
        began = time.perf_counter()
        answer = _vram("free", "--yes", "--json")
        elapsed_s = time.perf_counter() - began
    (step,) = answer["plan"]["steps"]
    if step["target"]["process"]["pid"] != pid or answer["receipt"]["returned_bytes"] < 4 * GIB:
        raise CommandFailed("vram free ended somebody else, or gave less back than was held")
    return elapsed_s


def _reused() -> Row:
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    enter = ["unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
    began = time.perf_counter()
    done = subprocess.run([*enter, str(REUSE), str(TRIES)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompanyRefused(f"pids cannot be forced here: {done.stderr.strip().splitlines()[-1:]}")
    told = json.loads(done.stdout)
    if told != {"tries": TRIES, "refused": TRIES, "hit": 0}:
        raise CommandFailed(f"a reused pid was signalled: {told}")
    took_s = (time.perf_counter() - began) / TRIES
    return Row("a forced pid reuse, made and refused", took_s, "s", note=f"{TRIES} tries, 0 wrong signals")


@contextmanager
def _orphan() -> Iterator[int]:
    """A forked child that keeps its dead parent's 4 GiB; yields its pid."""
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import DemoProgram

    with DemoProgram(VirtualGpu.inside(), "forks.orphan", 4 * GIB) as demo:
        demo.kill("parent")
        yield demo.pids["child"]


@contextmanager
def _private_records() -> Iterator[None]:
    """Keep the audit log of these runs out of the user's own."""
    before = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


def _vram(*words: str) -> dict[str, Any]:
    done = subprocess.run([program("vram") or "vram", *words], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise CommandFailed(f"vram {' '.join(words)}: exit status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
