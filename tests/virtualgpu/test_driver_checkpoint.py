"""Checkpoint and restore of a running process through the driver's own calls."""

from __future__ import annotations

import os

import pytest

from tests.needs import needs
from tests.patience import until
from tests.virtualgpu.checkpoints import (
    CHECKPOINTED,
    FAILED,
    ILLEGAL_STATE,
    LOCKED,
    NOT_READY,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    PAUSE,
    RUNNING,
    is_in,
    verbs,
)
from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import result, running
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

WORKER = """
    cuda.start()
    address = cuda.alloc(4 * GIB)
    cuda.write(address, b"before")
    cuda.tell("ready")
    while True:
        cuda.heard()
        cuda.tell("asked")
        cuda.tell(cuda.read(address, 6).decode())
"""

MANAGED = """
    cuda.start()
    address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", MIB, 1)
    cuda.tell("ready")
    cuda.heard()
    cuda.call("cuMemFree_v2", address)
    cuda.tell("freed")
    cuda.heard()
"""


def used(gpu: VirtualGpu) -> int:
    nbytes: int = ask(gpu, "memory()['v2'][3]")
    return nbytes


def test_a_parked_process_leaves_nothing_on_the_gpu_and_comes_back_whole(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, WORKER) as worker:
        worker.told()
        before = used(virtual_gpu)
        away = verbs(virtual_gpu, worker.pid, "State", "Lock", "State", "Checkpoint", "State")
        assert away == [RUNNING, 0, LOCKED, 0, CHECKPOINTED]
        assert used(virtual_gpu) == 0
        assert ask(virtual_gpu, "processes()") == []
        worker.go()
        assert worker.told() == "asked"
        back = verbs(virtual_gpu, worker.pid, "Restore", "State", "Unlock", "State")
        assert back == [0, LOCKED, 0, RUNNING]
        assert worker.told() == "before", "the call that waited goes on, with the bytes of before"
        assert used(virtual_gpu) == before


def test_verbs_out_of_order_are_refused(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, WORKER) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, "Checkpoint", "Restore", "Unlock") == [ILLEGAL_STATE] * 3
        assert verbs(virtual_gpu, worker.pid, "Lock", "Lock", "Restore") == [0, ILLEGAL_STATE, ILLEGAL_STATE]
        assert verbs(virtual_gpu, worker.pid, "Unlock", "State") == [0, RUNNING]


def test_managed_memory_cannot_be_parked_and_the_process_runs_on(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, MANAGED) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, "Lock", "Checkpoint", "Unlock") == [0, NOT_SUPPORTED, 0]
        worker.go()
        assert worker.told() == "freed"
        assert verbs(virtual_gpu, worker.pid, "Lock", "Checkpoint") == [0, 0]


def test_a_lock_that_times_out_leaves_the_process_running(virtual_gpu: VirtualGpu) -> None:
    """A call that never returns holds the lock off."""
    program = """
        cuda.start()
        cuda.tell("ready")
        cuda.heard()
        cuda.tell("calling")
        cuda.call("cuCtxGetFlags", ctypes.byref(ctypes.c_uint()))
    """
    virtual_gpu.fail("cuCtxGetFlags", hang=True)
    with running(virtual_gpu, program) as worker:
        worker.told()
        worker.go()
        worker.told()
        until(lambda: is_in(PAUSE, worker.pid))  # where a hanging call stays
        assert verbs(virtual_gpu, worker.pid, "Lock", "State", timeout_ms=50) == [NOT_READY, RUNNING]


def test_restore_needs_room(virtual_gpu: VirtualGpu) -> None:
    """Somebody else took the memory meanwhile; the process stays parked until it is free."""
    hog = """
        cuda.start()
        cuda.alloc(138 * GIB)
        cuda.tell("ready")
        cuda.heard()
    """
    with running(virtual_gpu, WORKER) as worker:
        worker.told()
        verbs(virtual_gpu, worker.pid, "Lock", "Checkpoint")
        with running(virtual_gpu, hog) as other:
            other.told()
            assert verbs(virtual_gpu, worker.pid, "Restore", "State") == [OUT_OF_MEMORY, CHECKPOINTED]
        assert verbs(virtual_gpu, worker.pid, "Restore", "Unlock") == [0, 0]


@pytest.mark.parametrize(("verb", "before"), [("Checkpoint", ["Lock"]), ("Restore", ["Lock", "Checkpoint"])])
def test_a_failure_half_way_leaves_the_process_failed(
    virtual_gpu: VirtualGpu, verb: str, before: list[str]
) -> None:
    virtual_gpu.fail(f"cuCheckpointProcess{verb}", halfway=999)
    with running(virtual_gpu, WORKER) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, *before, verb, "State") == [0] * len(before) + [999, FAILED]
        assert verbs(virtual_gpu, worker.pid, "Unlock") == [ILLEGAL_STATE]


def test_memory_that_others_share_is_not_parked(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        cuda.export(cuda.create(2 * MIB))
        cuda.tell("ready")
        cuda.heard()
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, "Lock", "Checkpoint", "Unlock") == [0, NOT_SUPPORTED, 0]


def test_a_process_without_cuda_is_no_target(virtual_gpu: VirtualGpu) -> None:
    """The driver tells it from a pid that nobody has: 3 and 304, measured on an H200."""
    assert verbs(virtual_gpu, os.getpid(), "State", "Lock") == [3, 3]
    assert verbs(virtual_gpu, 2**21, "State", "Lock") == [304, 304]


@needs("root", detail="only root can play two users")
def test_nobody_touches_another_users_process(virtual_gpu: VirtualGpu) -> None:
    """The folder is opened to all here; the driver itself must refuse, with 304."""
    for path in (virtual_gpu.folder, virtual_gpu.folder / "dev", *virtual_gpu.folder.glob("*")):
        path.chmod(0o777)
    for path in (virtual_gpu.folder / "dev").iterdir():
        path.chmod(0o666)
    with running(virtual_gpu, WORKER) as worker:
        worker.told()
        program = f"""
            os.setuid(65534)
            cuda.call("cuInit", 0)
            arguments = (ctypes.c_uint64 * 8)(1000)
            cuda.tell(cuda.code("cuCheckpointProcessLock", {worker.pid}, arguments))
        """
        assert result(virtual_gpu, program) == OPERATING_SYSTEM
        assert verbs(virtual_gpu, worker.pid, "State") == [RUNNING]


def test_many_threads_park_and_return_together(virtual_gpu: VirtualGpu) -> None:
    """Threads that allocate all the while stop at the gate, none is left inside, all go on."""
    program = """
        context = cuda.start()
        stop, counts = threading.Event(), [0] * 4
        def churn(mine):
            cuda.call("cuCtxSetCurrent", context)
            while not stop.is_set():
                cuda.call("cuMemFree_v2", cuda.alloc(4 * MIB))
                counts[mine] += 1
        threads = [threading.Thread(target=churn, args=(mine,)) for mine in range(4)]
        [thread.start() for thread in threads]
        cuda.tell("ready")
        cuda.heard()
        at_restore = list(counts)
        while any(now == then for now, then in zip(counts, at_restore)):
            pass
        stop.set()
        [thread.join() for thread in threads]
        cuda.tell(cuda.used())
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        for _ in range(5):
            assert verbs(virtual_gpu, worker.pid, "Lock", "Checkpoint") == [0, 0]
            assert used(virtual_gpu) == 0
            assert verbs(virtual_gpu, worker.pid, "Restore", "Unlock") == [0, 0]
        worker.go()
        assert worker.told() == 518 * MIB + 8 * MIB + 832 * 1024
    assert used(virtual_gpu) == 0


def test_calls_are_counted_right_however_often_the_process_is_locked(virtual_gpu: VirtualGpu) -> None:
    """A call that meets a lock or an unlock counts itself once or not at all."""
    program = """
        context = cuda.start()
        def call_again_and_again():
            cuda.call("cuCtxSetCurrent", context)
            while True:
                cuda.call("cuCtxGetFlags", ctypes.byref(ctypes.c_uint()))
                cuda.call("cuCtxSynchronize")
        for _ in range(4):
            threading.Thread(target=call_again_and_again, daemon=True).start()
        cuda.tell("ready")
        cuda.heard()
        os._exit(0)
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, *["Lock", "Unlock"] * 300) == [0] * 600
