"""What vram adds to the driver's own checkpoint calls, there and back.

The first rows are about the move itself: checks, journal, audit log and the checkpoint worker's line.
The others are for information: whole commands, less what the driver's calls took, beside the
smallest program that makes the same calls. On a real GPU most of that difference hides behind
the driver's own start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.company import HOLDER, CompanyRefused
from bench.row import Row
from bench.timing import CommandFailed, program

GIB = 1024**3
ADDED_S = 0.1
CALLS = {"park": ("Lock", "Checkpoint"), "unpark": ("Restore", "Unlock")}

RAW = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
began = time.monotonic()
for word in sys.argv[2:]:
    arguments = (ctypes.c_uint64 * 8)(10_000) if word == "Lock" else None
    assert getattr(cuda, "cuCheckpointProcess" + word)(int(sys.argv[1]), arguments) == 0, word
print(time.monotonic() - began)
"""


def run(turns: int) -> list[Row]:
    moves: dict[str, list[float]] = {"park": [], "unpark": []}
    commands: dict[str, list[float]] = {"park": [], "unpark": [], "raw park": [], "raw unpark": []}
    with private_state(), holder(GIB) as process:
        pid = str(process.pid)
        for _ in range(turns):
            for verb, calls in CALLS.items():
                took_s, answer = _timed([sys.executable, "-c", RAW, pid, *calls])
                commands[f"raw {verb}"].append(took_s - float(answer))
            for verb in CALLS:
                took_s, answer = _timed([program("vram") or "vram", verb, "--json", pid])
                (moved,) = json.loads(answer)["moved"]
                moves[verb].append(moved["took_s"] - moved["driver_s"])
                commands[verb].append(took_s - moved["driver_s"])
    return [
        *(Row(f"vram {verb} adds to the calls", middle(moves[verb]), "s", target=ADDED_S) for verb in CALLS),
        *(_whole(verb, commands) for verb in CALLS),
    ]


def _whole(verb: str, commands: dict[str, list[float]]) -> Row:
    smallest = middle(commands[f"raw {verb}"])
    return Row(f"vram {verb}, whole command", middle(commands[verb]), "s", "smallest program", smallest)


def _timed(command: list[str]) -> tuple[float, str]:
    """What a program took from start to end, and what it said."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    took_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return took_s, done.stdout


def middle(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


@contextmanager
def holder(nbytes: int) -> Iterator[subprocess.Popen[str]]:
    """A process with memory on every GPU."""
    with subprocess.Popen(
        [sys.executable, str(HOLDER), str(nbytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise CompanyRefused("a process that holds memory could not be started")
        yield process
        process.stdin.close()


@contextmanager
def private_state() -> Iterator[str]:
    """A journal and an audit log of the benchmark's own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a waker may write still
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = folder
        try:
            yield folder
        finally:
            del os.environ["XDG_STATE_HOME"]
            if before is not None:
                os.environ["XDG_STATE_HOME"] = before
