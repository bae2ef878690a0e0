"""What vram adds to the driver's own checkpoint calls, there and back.

Both sides are whole programs from start to end; what the calls themselves took is taken off
each, so that only what was added is compared. Beside vram stands the smallest program that
makes the same calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.company import HOLDER, CompanyRefused
from bench.row import Row
from bench.timing import CommandFailed, program

GIB = 1024**3
ADDED_S = 0.1

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
    vram = program("vram") or "vram"
    figures: dict[str, list[float]] = {"park": [], "unpark": [], "raw park": [], "raw unpark": []}
    with _private_state(), _holder(GIB) as pid:
        for _ in range(turns):
            figures["raw park"].append(_added([sys.executable, "-c", RAW, pid, "Lock", "Checkpoint"], float))
            figures["raw unpark"].append(_added([sys.executable, "-c", RAW, pid, "Restore", "Unlock"], float))
            figures["park"].append(_added([vram, "park", "--json", pid], _driver_s))
            figures["unpark"].append(_added([vram, "unpark", "--json", pid], _driver_s))
    return [
        Row(f"vram {verb}, beside the driver's calls", _middle(figures[verb]), "s", note=_note(figures, verb))
        for verb in ("park", "unpark")
    ] + [
        Row(f"vram {verb}, more than the calls alone", _more(figures, verb), "s", target=ADDED_S)
        for verb in ("park", "unpark")
    ]


def _more(figures: dict[str, list[float]], verb: str) -> float:
    return max(0.0, _middle(figures[verb]) - _middle(figures[f"raw {verb}"]))


def _note(figures: dict[str, list[float]], verb: str) -> str:
    return f"the smallest program {_middle(figures[f'raw {verb}']) * 1e3:.0f} ms"


def _added(command: list[str], driver_s: Callable[[str], float]) -> float:
    """What a program took, less what it spent in the driver's calls."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    took_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return took_s - driver_s(done.stdout)


def _driver_s(answer: str) -> float:
    return float(json.loads(answer)["moved"][0]["driver_s"])


def _middle(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


@contextmanager
def _holder(nbytes: int) -> Iterator[str]:
    """A process with memory on every GPU, by its pid."""
    with subprocess.Popen(
        [sys.executable, str(HOLDER), str(nbytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise CompanyRefused("a process that holds memory could not be started")
        yield str(process.pid)
        process.stdin.close()


@contextmanager
def _private_state() -> Iterator[None]:
    """A journal and an audit log of the benchmark's own."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["XDG_STATE_HOME"]
            if before is not None:
                os.environ["XDG_STATE_HOME"] = before
