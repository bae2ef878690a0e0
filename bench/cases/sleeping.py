"""What a wake adds to the driver's own restore, and what many programs that sleep cost.

From the sign that a program is wanted until it runs: seen, claimed, logged, moved. The kernel says when
something arrives for one that sleeps. Only signals are looked for, at most 150 times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench.cases.park import GIB, holder, middle, private_state
from bench.company import CompanyRefused
from bench.row import Row

ADDED_S = 0.15
MANY = 60
WATCHED_S = 5.0
CORE_SHARE = 0.01
"""CPU time in each second. More programs are looked at less often."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(turns: int) -> list[Row]:
    with private_state() as folder, ExitStack() as stack:
        added = [_woken(stack, folder) for _ in range(turns)]
    with private_state(), ExitStack() as stack:
        share = _share_of_a_core(stack)
    return [
        Row("a wake adds to the driver's restore", middle(added), "s", target=ADDED_S),
        Row(f"{MANY} programs that sleep, CPU time a second", share, "s", target=CORE_SHARE),
    ]


def _woken(stack: ExitStack, folder: str) -> float:
    """Seconds from the byte in its pipe until it ran, less what the driver's calls took."""
    process = stack.enter_context(holder(GIB))
    _vram("sleep", "--idle", "1d", process.pid)
    _vram("sleep", process.pid)
    assert process.stdin is not None
    process.stdin.write("wanted")
    process.stdin.flush()
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        known = json.loads(_vram("sleep", "--json"))["sleeping"]
        mine = next(each for each in known if each["targets"][0]["process"]["pid"] == process.pid)
        if mine["wakes"]:
            took_s: float = mine["last_wake_s"][-1]
            return took_s - _driver_s(folder, process.pid)
        time.sleep(0.05)
    raise CompanyRefused("a program that sleeps was not woken")


def _driver_s(folder: str, pid: int) -> float:
    """What the driver's calls of the last unpark took, by the audit log."""
    lines = [json.loads(line) for line in Path(folder, "vram", "audit.jsonl").read_text().splitlines()]
    return float([line["driver_s"] for line in lines if line.get("driver_s")][-1])


def _share_of_a_core(stack: ExitStack) -> float:
    for _ in range(MANY):
        process = stack.enter_context(holder(1 << 20))
        _vram("sleep", process.pid)
    waker = _waker()
    before = _cpu_s(waker)
    time.sleep(WATCHED_S)
    return (_cpu_s(waker) - before) / WATCHED_S


def _waker() -> int:
    mine = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            if b"vram.sleeping.waker" in line and mine in environ.split(b"\0"):
                return int(folder.name)
    raise CompanyRefused("there is no waker")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _vram(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vram", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CompanyRefused(done.stderr.strip())
    return done.stdout
