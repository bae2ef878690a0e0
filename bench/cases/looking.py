"""What trim, inside and ``why --deep`` cost the program: the longest wait of another of its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.native import ROOT
from bench.row import Row
from bench.target import asked, heard
from bench.timing import CommandFailed, program

OBJECTS = (0, 1_000_000, 3_000_000)
MAX_S = 0.05
TWO_SECONDS = 2.0
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("trim", ("trim", "PID")),
    ("trim --collect", ("trim", "PID", "--collect")),
    ("inside", ("inside", "PID", "--deadline", "60s")),
    ("why --deep", ("why", "--deep", "--deadline", "60s")),
)


def run(turns: int) -> list[Row]:
    return [row for objects in OBJECTS for row in _rows(objects, min(turns, 5))]


def _rows(objects: int, turns: int) -> Iterator[Row]:
    with _target(objects) as target:
        pid = str(heard(target)["pid"])
        for name, words in COMMANDS:
            argv = [pid if word == "PID" else word for word in words]
            # The best of some tries: the machine's own noise only ever adds.
            waited_s, took_s = map(min, zip(*(_tried(target, argv) for _ in range(turns)), strict=True))
            collects = "--collect" in words
            what = f"vram {name}, {objects:,} objects: longest wait of a thread"
            note = "a full collection" if collects else "of a thread that wakes every millisecond"
            yield Row(what, waited_s, "s", target=None if collects else MAX_S, note=note)
            if name == "inside":
                bound = TWO_SECONDS if objects == 1_000_000 else None
                yield Row(
                    f"vram inside, {objects:,} objects", took_s, "s", target=bound, note="to the answer"
                )


@contextmanager
def _target(objects: int) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(ROOT / "bench" / "looked_into.py"), str(objects)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}
        with subprocess.Popen(argv, env=environment, stdin=-1, stdout=-1, text=True) as target:
            try:
                yield target
            finally:
                target.kill()


def _tried(target: subprocess.Popen[str], words: list[str]) -> tuple[float, float]:
    """The longest wait while the command ran, and how long it took."""
    asked(target)
    began = time.perf_counter()
    done = subprocess.run([program("vram") or "vram", *words, "--json"], stdout=subprocess.PIPE)
    took_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"vram {' '.join(words)}: exit status {done.returncode}")
    return float(asked(target)), took_s
