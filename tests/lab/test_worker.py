"""The workers of experiments: they answer, they end when told, and their refusals are reasons."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from vram.lab.claim import CannotTell
from vram.lab.worker import MemoryBudget, WorkerClient, WorkerEnded, WorkerPool
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


@pytest.fixture
def worker() -> Iterator[WorkerClient]:
    """One that has loaded no driver."""
    started = WorkerClient(os.environ)
    started.left_s = lambda: 30.0
    yield started
    started.close()


def test_lines_of_python_are_run_and_answered(worker: WorkerClient) -> None:
    worker.call("run_python", "x = 20")
    assert worker.call("run_python", "answer = x + 1") == 21


def test_what_a_library_prints_does_not_come_between(worker: WorkerClient) -> None:
    assert worker.call("run_python", "import os; print('chatter'); os.write(1, b'{}\\n'); answer = 1") == 1


def test_only_the_first_line_of_an_error_is_a_reason(worker: WorkerClient) -> None:
    with pytest.raises(CannotTell) as caught:
        worker.call("run_python", r"raise ValueError('it failed\nat length')")
    assert str(caught.value) == "ValueError: it failed"


def test_a_missing_library_is_named_as_people_call_it(worker: WorkerClient) -> None:
    with pytest.raises(CannotTell, match="CuPy is not installed"):
        worker.call("run_python", "raise ModuleNotFoundError('no', name='cupy.cuda')")


def test_one_that_dies_is_noticed_although_its_child_lives(worker: WorkerClient) -> None:
    """A forked child keeps the pipe open: end of file alone would never come."""
    worker.fork()
    with pytest.raises(WorkerEnded):
        worker.call("run_python", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")


def test_one_that_does_not_answer_is_given_up(worker: WorkerClient) -> None:
    until = time.monotonic() + 0.5
    worker.left_s = lambda: until - time.monotonic()
    with pytest.raises(CannotTell, match="not done by the deadline"):
        worker.call("run_python", "import signal; signal.pause()")


def test_one_that_waits_has_imported_its_library_already() -> None:
    pool = WorkerPool("GPU-0")
    pool.prestart("wave")
    worker = pool.take("wave")
    try:
        assert worker.call("run_python", "import sys; answer = 'wave' in sys.modules") is True
    finally:
        worker.close()


def test_those_that_still_wait_are_ended() -> None:
    pool = WorkerPool("GPU-0")
    pool.prestart("")
    (waiting,) = pool._waiting[""]
    pidfd = os.pidfd_open(waiting.pid)
    pool.close()
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, 0)
    os.close(pidfd)


def test_an_operation_that_no_worker_has_is_not_sent(worker: WorkerClient) -> None:
    """A typo in an experiment is an error of the program, not a claim that cannot be told."""
    with pytest.raises(LookupError, match="workers have no operation 'aloc'; they have alloc, "):
        worker.call("aloc", 1)
    with pytest.raises(LookupError, match="no operation 'alloc'; they have nothing, close_device_files"):
        worker.fork().call("alloc", 1)
    assert worker.call("run_python", "answer = 1") == 1


def test_what_frees_returns_to_the_budget_and_what_asks_for_more_is_refused(virtual_gpu: VirtualGpu) -> None:
    worker = WorkerClient(virtual_gpu.environment())
    worker.left_s, worker.budget = (lambda: 30.0), MemoryBudget(64 * MIB)
    try:
        worker.call("context")
        worker.call("free", worker.call("alloc", 64 * MIB))
        worker.call("alloc", 64 * MIB)
        with pytest.raises(CannotTell, match="more than its page says"):
            worker.call("alloc", 1)
    finally:
        worker.close()
