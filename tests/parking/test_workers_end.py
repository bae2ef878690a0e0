"""Processes of vram's that hold nothing end with it, wherever in the driver they hang; those that owe
something do not."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.parking.conftest import (
    CHECKPOINTED,
    LOCKED,
    Machine,
    checkpoint_worker_if_any,
    checkpoint_worker_of,
    kill,
    opened,
    runs_on,
)
from tests.patience import PATIENCE_S, until, until_ended
from tests.virtualgpu.checkpoints import PAUSE

TRIES = 8


def marked(machine: Machine) -> Iterator[int]:
    """Every process that has this test's virtual GPU in its environment."""
    mark = f"VRAM_VIRTUAL_GPU={machine.gpu.folder}\0".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes() + b"\0":
                yield int(name)


def until_all_ended(machine: Machine, *but: int) -> None:
    """Come back when everybody has ended, but for those whom the test itself has running."""
    until(lambda: not set(marked(machine)).difference(but), lambda: sorted(marked(machine)))


def pid_of(pidfd: int) -> int:
    fields = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def until_it_hangs(pidfd: int) -> None:
    """Come back when a process sleeps in pause(2), where a hanging call stays."""
    until(lambda: hangs(pid_of(pidfd)))


def hangs(pid: int) -> bool:
    with suppress(OSError):  # it, or a thread of it, has ended
        threads = Path(f"/proc/{pid}/task").iterdir()
        return any((thread / "syscall").read_text().startswith(f"{PAUSE} ") for thread in threads)
    return False


@pytest.mark.fault(3, 10)
@pytest.mark.parametrize("call", ["cuInit", "nvmlInit*"])
def test_what_is_not_begun_leaves_nothing_behind(machine: Machine, call: str) -> None:
    """Wrong words, a pid that nobody has, a kill: whatever ends vram before it asked for anything."""
    machine.gpu.fail(call, hang=True)
    for words in (*[("park", "abc")] * TRIES, ("unpark",), ("borrow", "1GiB")):
        assert machine.vram(*words).returncode == 2
    for _ in range(TRIES):
        vram = machine.start("park", 2**21, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if checkpoint_worker := checkpoint_worker_if_any(vram):
            os.close(checkpoint_worker)
        vram.kill()
        vram.wait(PATIENCE_S)
    until_all_ended(machine)


@pytest.mark.fault(3)
def test_a_worker_that_hangs_and_owes_nothing_ends_when_it_is_told_to(machine: Machine) -> None:
    target = machine.worker()
    machine.gpu.fail("cuInit", hang=True)
    vram = machine.start("park", target.pid)
    checkpoint_worker = checkpoint_worker_of(vram)
    until_it_hangs(checkpoint_worker)
    signal.pidfd_send_signal(checkpoint_worker, signal.SIGTERM)
    until_ended(checkpoint_worker)
    os.close(checkpoint_worker)
    assert vram.wait(PATIENCE_S) == 3
    assert runs_on(target)
    until_all_ended(machine, target.pid)


@pytest.mark.fault(3)
def test_a_state_that_is_never_told_ends_with_who_asked(machine: Machine) -> None:
    """Nobody was touched, so nobody is owed anything; what could not be asked is told."""
    target = machine.worker()
    machine.gpu.fail("cuCheckpointProcessGetState", hang=True)
    found, _, silent, _ = machine.api(f"""
import json
from vram.host.local import LocalHost
from vram.reclaim.parking import Parking
host = LocalHost()
strangers = set(host.limits.cuda_processes(60.0).pids).difference([{target.pid}])
with Parking(host) as parking:
    print(json.dumps(parking.find_unjournaled(strangers, deadline_s=60.0)))
""")
    assert (found, target.pid in silent) == ([], True)
    until_all_ended(machine, target.pid)
    machine.gpu.clear_faults()
    assert runs_on(target)


def test_a_late_answer_is_not_taken_for_the_next_one(machine: Machine) -> None:
    running, parked = machine.worker(), machine.worker()
    assert machine.vram("park", parked.pid).returncode == 0
    machine.gpu.fail("cuCheckpointProcessGetState", slow_s=PATIENCE_S, nth=1)
    told = machine.api(f"""
import json, os
from vram.host.local import LocalHost
worker = LocalHost().checkpoint.open()
late = worker.state({running.pid}, 0.1)
os.truncate({str(machine.gpu.folder / "faults")!r}, 0)  # now that answer comes
next = worker.state({parked.pid}, {PATIENCE_S})
print(json.dumps([late.status, next.state]))
""")
    assert told == ["timeout", "parked"]


@pytest.mark.fault(10)
def test_a_worker_that_owes_something_ends_for_no_signal_but_kill(machine: Machine) -> None:
    target = machine.worker()
    vram = machine.start("borrow", "139.5GiB", "--", "sleep", "1000")
    machine.wait_for(target.pid, CHECKPOINTED)
    checkpoint_worker = checkpoint_worker_of(vram)
    (command,) = until_it_runs(vram.pid, b"sleep")
    until_it_knows(checkpoint_worker, processes=2)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.pidfd_send_signal(checkpoint_worker, number)
    vram.kill()
    vram.wait(PATIENCE_S)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.pidfd_send_signal(checkpoint_worker, number)
    assert machine.state(target.pid) == CHECKPOINTED
    kill(os.pidfd_open(command))
    until_ended(checkpoint_worker)
    os.close(checkpoint_worker)
    assert runs_on(target)


def until_it_knows(pidfd: int, *, processes: int) -> None:
    """Come back when a checkpoint worker has so many pidfds: of a target, and of who is waited for."""
    files = Path(f"/proc/{pid_of(pidfd)}/fd")
    until(lambda: sum("pidfd" in opened(file) for file in files.iterdir()) >= processes)


def until_it_runs(parent: int, name: bytes) -> list[int]:
    """The children of *parent* that run *name*, as soon as there is one."""

    def found() -> Iterator[int]:
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name):
                    yield int(pid)

    return until(lambda: list(found()))


@pytest.mark.fault(3)
def test_a_park_goes_on_where_nvml_hangs_meanwhile(machine: Machine) -> None:
    """The figures for the bar, which a terminal is shown, are not worth a process that is paused."""
    target = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    ours, theirs = pty.openpty()
    vram = machine.start("park", target.pid, stderr=theirs)
    machine.wait_for(target.pid, LOCKED)
    machine.gpu.fail("nvmlDeviceGetMemoryInfo_v2", hang=True)
    until(lambda: any(map(hangs, marked(machine))))
    machine.gpu.clear_faults()
    assert vram.wait(PATIENCE_S) == 0
    os.close(theirs)
    os.close(ours)
    assert machine.vram("unpark", target.pid).returncode == 0
    assert runs_on(target)
