"""For how long a process has rested, as the scheduler recorded it: never longer than it really has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs, skip_without
from tests.patience import until
from vram.host.local.rest import IDLE_SHARE, SchedulerClock, _Ran, _rested, idle_for

with_scheduler = needs("kernel", there=Path("/proc/self/sched").exists(), detail="no /proc/PID/sched")

WAIT = "import sys; print(flush=True); sys.stdin.read()"
# A thread that wakes ten times a second, as NCCL's watchdog does in each rank.
WATCHDOG = """
import sys, threading, time
stopped = threading.Event()
def watch():
    while not stopped.wait(0.1): pass
threading.Thread(target=watch, daemon=True).start()
"""
COMPUTE = "end = time.process_time() + 0.03\nwhile time.process_time() < end: pass\n"
# The first thread sleeps for good, and what works is gone before anybody can look at it.
THREADS = f"""
import sys, threading, time
def work():
    {COMPUTE.replace(chr(10), chr(10) + "    ")}
def start():
    while True:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        time.sleep(0.07)
threading.Thread(target=start, daemon=True).start()
"""
CHILDREN = f"""
import os, sys, threading, time
def start():
    while True:
        child = os.fork()
        if child == 0:
            {COMPUTE.replace(chr(10), chr(10) + "            ")}
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.07)
threading.Thread(target=start, daemon=True).start()
"""
BUSY = """
import sys, threading
def work():
    while True: pass
threading.Thread(target=work, daemon=True).start()
"""


@contextmanager
def started(program: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", program + WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def idle(pid: int) -> float:
    clock = SchedulerClock.read()
    assert clock is not None
    return idle_for(pid, clock) or 0.0


@with_scheduler
@pytest.mark.parametrize("program", ["", WATCHDOG], ids=["asleep", "with a watchdog"])
def test_what_sleeps_rests_and_never_for_longer_than_it_has(program: str) -> None:
    began = time.monotonic()
    with started(program) as pid:
        found = until(lambda: found if (found := idle(pid)) > 1.0 else 0.0, max_pause_s=0.2)
        assert found <= time.monotonic() - began


@with_scheduler
@pytest.mark.parametrize("program", [BUSY, THREADS, CHILDREN], ids=["a thread", "threads", "children"])
def test_what_works_does_not_rest_although_its_first_thread_sleeps(program: str) -> None:
    """Watched until a process that sleeps, started after it, is known to rest."""
    with started(program) as pid, started("") as other:
        most = 0.0

        def look() -> bool:
            nonlocal most
            most = max(most, idle(pid))
            return idle(other) > 1.0

        until(look, max_pause_s=0.2)
        assert most < 1.0


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """*pid* in a control group of version 2 whose processes are frozen: it looks as if it slept."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        roots = [Path(line.split()[1]) for line in file if line.split()[2] == "cgroup2"]
    group = Path(roots[0] if roots else "/nowhere") / f"vram-test-frozen-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / "cgroup.freeze").write_text("1")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        skip_without("cgroups", f"no group can be frozen here: {error}")
    try:
        until(lambda: "frozen 1" in (group / "cgroup.events").read_text())
        # The kernel says so an instant before the process sleeps.
        until(lambda: Path(f"/proc/{pid}/wchan").read_text() != "0")
        yield
    finally:
        (group / "cgroup.freeze").write_text("0")
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@with_scheduler
def test_what_is_frozen_does_not_rest() -> None:
    with started("") as pid:
        until(lambda: idle(pid) > 1.0, max_pause_s=0.2)
        with frozen(pid):
            clock = SchedulerClock.read()
            assert clock is not None
            assert idle_for(pid, clock) is None


@with_scheduler
def test_a_look_leaves_where_this_thread_may_run_as_it_was() -> None:
    before = os.sched_getaffinity(0)
    assert SchedulerClock.read() is not None
    assert os.sched_getaffinity(0) == before


def test_nobody_has_rested_where_a_thread_cannot_be_read() -> None:
    clock = SchedulerClock.read()
    assert clock is None or idle_for(2**22 + 1, clock) is None


@given(st.lists(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), max_size=4), max_size=6))
def test_of_any_history_no_more_was_used_than_is_said(threads: list[list[tuple[float, float]]]) -> None:
    """Each thread ran at times, so many seconds ago; only its last time and its sum are known."""
    ran = [
        _Ran(min((ago for ago, _ in each), default=1e6), sum(used for _, used in each)) for each in threads
    ]
    rested = _rested(ran)
    used_since = sum(used for each in threads for ago, used in each if ago < rested)
    assert used_since <= IDLE_SHARE * rested + 1e-9
