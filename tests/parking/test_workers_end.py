"""Processes of vram's that hold nothing end with it, wherever in the driver they hang; those that owe
something do not."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.parking.conftest import CHECKPOINTED, LOCKED, Machine, checkpoint_worker_of, kill, runs_on

PATIENCE_S = 30.0
TRIES = 8


def marked(machine: Machine) -> Iterator[int]:
    """Every process that has this test's virtual GPU in its environment."""
    mark = f"VRAM_VIRTUAL_GPU={machine.gpu.folder}\0".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes() + b"\0":
                yield int(name)


def all_end(machine: Machine, *but: int) -> bool:
    """Whether everybody ends, but for those whom the test itself has running."""
    deadline = time.monotonic() + PATIENCE_S
    for pid in set(marked(machine)).difference(but):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(pidfd)
        if not ended:
            return False
    return True


def pid_of(pidfd: int) -> int:
    fields = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def until_it_hangs(pidfd: int) -> None:
    """Come back when a process sleeps in pause(2), where a hanging call stays."""
    threads = Path(f"/proc/{pid_of(pidfd)}/task")
    while not any((thread / "syscall").read_text().startswith("34 ") for thread in threads.iterdir()):
        time.sleep(0.001)


@pytest.mark.fault(3, 10)
@pytest.mark.parametrize("call", ["cuInit", "nvmlInit*"])
def test_what_is_not_begun_leaves_nothing_behind(machine: Machine, call: str) -> None:
    """Wrong words, a pid that nobody has, a kill: whatever ends vram before it asked for anything."""
    machine.gpu.fail(call, hang=True)
    for words in (*[("park", "abc")] * TRIES, ("unpark",), ("borrow", "1GiB")):
        assert machine.vram(*words).returncode == 2
    for _ in range(TRIES):
        vram = machine.start("park", 2**21, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        checkpoint_worker = checkpoint_worker_of(vram)
        vram.kill()
        vram.wait()
        os.close(checkpoint_worker)
    assert all_end(machine)


@pytest.mark.fault(3)
def test_a_worker_that_hangs_and_owes_nothing_ends_when_it_is_told_to(machine: Machine) -> None:
    target = machine.worker()
    machine.gpu.fail("cuInit", hang=True)
    vram = machine.start("park", target.pid)
    checkpoint_worker = checkpoint_worker_of(vram)
    until_it_hangs(checkpoint_worker)
    signal.pidfd_send_signal(checkpoint_worker, signal.SIGTERM)
    assert select.select([checkpoint_worker], [], [], PATIENCE_S)[0]
    os.close(checkpoint_worker)
    assert vram.wait() == 3
    assert runs_on(target)
    assert all_end(machine, target.pid)


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
    assert all_end(machine, target.pid)
    machine.gpu.clear_faults()
    assert runs_on(target)


def test_a_late_answer_is_not_taken_for_the_next_one(machine: Machine) -> None:
    running, parked = machine.worker(), machine.worker()
    assert machine.vram("park", parked.pid).returncode == 0
    machine.gpu.fail("cuCheckpointProcessGetState", slow_s=1.0, nth=1)
    told = machine.api(f"""
import json
from vram.host.local import LocalHost
worker = LocalHost().checkpoint.open()
late, next = worker.state({running.pid}, 0.1), worker.state({parked.pid}, 60.0)
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
    vram.wait()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.pidfd_send_signal(checkpoint_worker, number)
    assert machine.state(target.pid) == CHECKPOINTED
    kill(os.pidfd_open(command))
    assert select.select([checkpoint_worker], [], [], PATIENCE_S)[0]
    os.close(checkpoint_worker)
    assert runs_on(target)


def until_it_knows(pidfd: int, *, processes: int) -> None:
    """Come back when a checkpoint worker has so many pidfds: of a target, and of who is waited for."""
    files = Path(f"/proc/{pid_of(pidfd)}/fd")
    while sum("pidfd" in os.readlink(file) for file in files.iterdir()) < processes:
        time.sleep(0.001)


def until_it_runs(parent: int, name: bytes) -> list[int]:
    """The children of *parent* that run *name*, as soon as there is one."""
    while True:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        found = [int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name)]
        if found:
            return found
        time.sleep(0.001)


@pytest.mark.fault(3)
def test_a_park_goes_on_where_nvml_hangs_meanwhile(machine: Machine) -> None:
    """The figures for the bar are not worth a process that is paused."""
    target = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=0.3)
    vram = machine.start("park", target.pid)
    machine.wait_for(target.pid, LOCKED)
    machine.gpu.fail("nvmlDeviceGetMemoryInfo_v2", hang=True)
    assert vram.wait() == 0
    machine.gpu.clear_faults()
    assert machine.vram("unpark", target.pid).returncode == 0
    assert runs_on(target)
