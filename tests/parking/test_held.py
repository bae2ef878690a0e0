"""A parked program is stopped: no thread of it runs while its memory is away, whatever it was doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from tests.parking.conftest import (
    CHECKPOINTED,
    LOCKED,
    RUNNING,
    Machine,
    is_stopped,
    kill_both,
    runs_on,
)
from tests.patience import PATIENCE_S, must_end, until
from vram.errors import CannotPark, NotPermitted
from vram.model.parking import RECORDER, CheckpointAnswer, Parked
from vram.model.plan import Target
from vram.model.process import ProcessRef
from vram.payloads import driver_threads
from vram.payloads.procfs import is_driver_thread
from vram.reclaim.checkpoint_errors import explain

CYCLES = 10
MANAGED = """
    cuda.start()
    address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", 1 * MIB, 1)
    cuda.tell("ready")
    cuda.heard()
    cuda.tell("runs")
    cuda.heard()
"""
PROFILED = """
    cuda.start()
    cuda.alloc(64 * MIB)
    cupti = ctypes.CDLL("libcupti.so.13")
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
    ignored, subscriber = callback(lambda *about: None), ctypes.c_void_p()
    assert cupti.cuptiSubscribe(ctypes.byref(subscriber), ignored, None) == 0
    assert cupti.cuptiUnsubscribe(subscriber) == 0
    cuda.tell("ready")
    cuda.heard()
    cuda.tell("runs")
    cuda.heard()
"""
# A launcher that holds nothing on the GPU, and two workers that do.
LAUNCHER = """
    import subprocess, sys
    worker = os.environ["WORKER"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([sys.executable, "-c", worker], **pipes) for _ in range(2)]
    assert all(each.stdout.readline().strip() == '"ready"' for each in workers)
    cuda.tell("ready")
    cuda.heard()
    cuda.tell([each.pid for each in workers])
    cuda.heard()
    for each in workers:
        each.kill()
"""
TRACER = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0
print("traces", flush=True)
sys.stdin.readline()
"""


@pytest.mark.fault(33)
def test_a_program_that_works_all_the_time_is_parked_and_notices_nothing(machine: Machine) -> None:
    program = machine.busy()
    for _ in range(CYCLES):
        assert machine.vram("park", program.pid).returncode == 0
        assert (machine.state(program.pid), is_stopped(program)) == (CHECKPOINTED, True)
        assert machine.vram("unpark", program.pid).returncode == 0
        assert (machine.state(program.pid), is_stopped(program)) == (RUNNING, False)
        assert runs_on(program)


@pytest.mark.fault(33)
def test_the_same_program_dies_when_it_runs_without_its_memory(machine: Machine) -> None:
    """What the other tests would not notice otherwise."""
    program = machine.busy()
    done = machine.vram("park", program.pid)
    assert done.returncode == 0, done.stderr
    os.kill(program.pid, signal.SIGCONT)
    assert program.process.wait(PATIENCE_S) == -signal.SIGSEGV
    assert machine.parked() == []


def test_its_parent_sees_it_stop_and_go_on(machine: Machine) -> None:
    program = machine.worker()
    machine.vram("park", program.pid)
    seen = os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOHANG)
    assert seen is not None
    assert (seen.si_code, seen.si_status) == (os.CLD_STOPPED, signal.SIGSTOP)
    machine.vram("unpark", program.pid)
    seen = os.waitid(os.P_PID, program.pid, os.WCONTINUED | os.WNOHANG)
    assert seen is not None
    assert seen.si_code == os.CLD_CONTINUED


def test_one_that_somebody_continued_is_listed_and_comes_back(machine: Machine) -> None:
    """It waits in no call that kills it; it is stopped again before its memory is brought back."""
    program = machine.worker()
    machine.vram("park", program.pid)
    os.kill(program.pid, signal.SIGCONT)
    assert [line["state"] for line in machine.parked()] == ["parked"]
    assert machine.vram("unpark", program.pid).returncode == 0
    assert runs_on(program)


def test_asking_changes_nothing(machine: Machine) -> None:
    """The driver's threads run for a moment; the process stays stopped, and its parent is told nothing."""
    program = machine.worker()
    machine.vram("park", program.pid)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    for _ in range(3):
        assert [line["state"] for line in machine.parked()] == ["parked"]
    assert os.waitid(os.P_PID, program.pid, os.WCONTINUED | os.WNOHANG) is None
    assert is_stopped(program)


@pytest.mark.fault(10, 33)
def test_both_killed_while_the_target_is_stopped_and_locked(machine: Machine) -> None:
    """The kernel stops the driver's threads again; the next vram lets the program run on."""
    program = machine.busy()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", program.pid)
    until(lambda: is_stopped(program))
    kill_both(vram)
    assert (machine.state(program.pid), is_stopped(program)) == (LOCKED, True)
    machine.gpu.clear_faults()
    done = machine.vram("park")
    assert (done.stdout, "left locked" in done.stderr) == ("Nothing is parked.\n", True), done.stderr
    assert runs_on(program)


@pytest.mark.fault(10, 33)
@pytest.mark.parametrize("step", ["checkpoint", "restore"])
def test_both_killed_while_the_driver_works_in_the_target(machine: Machine, step: str) -> None:
    """The driver finishes what it has begun, as soon as its thread runs again: nobody else does before."""
    program = machine.busy()
    if step == "restore":
        machine.vram("park", program.pid)
    machine.gpu.add_fault(f"step.{step} slow=1")
    vram = machine.start("park" if step == "checkpoint" else "unpark", program.pid)
    until(lambda: is_stopped(program))
    machine.until_somebody_moves(program.pid)
    kill_both(vram)
    machine.gpu.clear_faults()
    machine.until_nobody_moves(program.pid)
    machine.parked()
    if machine.state(program.pid) != RUNNING:
        assert is_stopped(program)
        assert machine.vram("unpark", program.pid).returncode == 0
    assert runs_on(program)


@pytest.mark.fault(19)
def test_one_that_is_traced_is_refused_untouched(machine: Machine) -> None:
    program = machine.worker()
    argv = [sys.executable, "-c", TRACER, str(program.pid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "traces\n"
        done = machine.vram("park", program.pid)
        assert (done.returncode, f"it is traced by pid {tracer.pid}" in done.stderr) == (20, True)
        assert not is_stopped(program)
        tracer.communicate()
    assert runs_on(program)
    assert machine.parked() == []


def test_one_whose_threads_must_not_be_traced_is_refused_with_what_to_do() -> None:
    answer = CheckpointAnswer(status="not-held", message=driver_threads.NO_PERMISSION)
    error = explain(answer, entry(), "park")
    assert isinstance(error, NotPermitted)
    assert "it was not touched" in str(error)
    assert "attach" in error.hint or "ptrace" in error.hint


def test_one_that_keeps_starting_threads_with_the_drivers_names_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reading finds a new one: that ends by a deadline, with its own reason."""
    beyond_any_thread = count(1 << 30)
    monkeypatch.setattr(driver_threads, "driver_threads", lambda pid: [next(beyond_any_thread)])
    with subprocess.Popen(["sleep", "1000"]) as target:
        try:
            with must_end(), pytest.raises(driver_threads.CannotHold, match=driver_threads.KEEPS_STARTING):
                driver_threads.DriverThreads(target.pid).__enter__()
        finally:
            target.kill()
    answer = CheckpointAnswer(status="not-held", message=driver_threads.KEEPS_STARTING)
    error = explain(answer, entry(), "park")
    assert isinstance(error, CannotPark)
    assert "it was not touched" in str(error)


def test_names_of_threads() -> None:
    """Ours has none of the driver's; a program's own "cudafeed" is not one of them either."""
    assert driver_threads.driver_threads(os.getpid()) == []
    for name, drivers in {"cuda00001400006": True, "cuda-EvtHandlr": True, "cudafeed": False}.items():
        assert is_driver_thread(name) is drivers


# ---- several as one ----


@pytest.mark.fault(33)
def test_where_one_refuses_all_run_on(machine: Machine) -> None:
    workers = [machine.busy(), machine.busy()]
    refusing = machine.program(MANAGED)
    pids = [workers[0].pid, refusing.pid, workers[1].pid]
    done = machine.vram("park", "--json", *pids)
    assert done.returncode == 20
    told = json.loads(done.stdout)
    assert (told["moved"], [line["pid"] for line in told["refused"]]) == ([], pids)
    assert "none of the 3 processes was parked" in told["refused"][0]["message"]
    assert machine.parked() == []
    assert all(runs_on(worker) for worker in workers)
    refusing.go()
    assert refusing.told() == "runs"


@pytest.mark.fault(33)
def test_where_the_last_fails_those_before_come_back(machine: Machine) -> None:
    workers = [machine.busy(), machine.busy()]
    machine.gpu.add_fault("cuCheckpointProcessCheckpoint nth=2 error=999")
    done = machine.vram("park", *(worker.pid for worker in workers))
    assert (done.returncode, "none of the 2 processes" in done.stderr) == (3, True), done.stderr
    assert machine.parked() == []
    assert all(runs_on(worker) for worker in workers)
    assert [line.get("status") for line in machine.audit()] == [None, None, "failed", "failed"]


def test_a_launcher_stands_for_its_workers(machine: Machine) -> None:

    from tests.parking.conftest import WORKER
    from tests.virtualgpu.programs import source

    launcher = machine.program(LAUNCHER, WORKER=source(WORKER))
    done = machine.vram("park", "--tree", "--json", launcher.pid)
    assert done.returncode == 0, done.stderr
    launcher.go()
    pids = launcher.told()
    assert sorted(line["pid"] for line in json.loads(done.stdout)["moved"]) == sorted(pids)
    assert not is_stopped(launcher)
    assert machine.used() == 0
    assert machine.vram("unpark", "--all").returncode == 0
    assert machine.parked() == []


# ---- profilers ----


@pytest.mark.fault(19)
def test_a_program_in_which_a_profiler_was_is_refused_with_the_reason(machine: Machine) -> None:
    program = machine.program(PROFILED)
    done = machine.vram("park", program.pid)
    assert done.returncode == 20, done.stderr
    assert f"a profiler uses or used CUPTI in pid {program.pid}" in done.stderr
    assert not is_stopped(program)
    program.go()
    assert program.told() == "runs"


@pytest.mark.parametrize(
    ("profiler", "words"),
    [
        (RECORDER, "recorded by vram"),
        ("/opt/nsight/libToolsInjection64.so", "(/opt/nsight/libToolsInjection64.so)"),
        (None, "a profiler uses or used CUPTI in pid 4711, and"),
    ],
)
def test_who_profiles_is_named(profiler: str | None, words: str) -> None:
    answer = CheckpointAnswer(status="refused", state="running", call="cuCheckpointProcessLock", code=801)
    error = explain(answer, entry(), "park", lambda pid: profiler)
    assert isinstance(error, CannotPark)
    assert words in str(error)


def entry() -> Parked:
    target = Target(
        process=ProcessRef(pid=4711, started_at=1), uid=0, user="root", command="python", executable=None
    )
    return Parked(
        host="here",
        boot_id="boot",
        target=target,
        shares=(),
        since="",
        by_user="root",
        by_pid=1,
        purpose="park",
    )


def test_a_checkpoint_worker_that_was_frozen_looks_once_more_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the machine sleeps, or a control group is frozen: the process has stopped by then."""
    now, looks = [0.0], iter((False, True))

    def look(pid: int) -> bool:
        now[0] = 10 * driver_threads.STOP_S
        return next(looks)

    monkeypatch.setattr(driver_threads, "is_stopped", look)
    monkeypatch.setattr(
        driver_threads, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda pause_s: None)
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        driver_threads.stop(process.pid, pidfd)
        os.close(pidfd)
        process.kill()
