"""What each call does while its process is locked, and while it is checkpointed: as on an H200."""

from __future__ import annotations

import fcntl
import os
import signal
import struct

import pytest

from tests.patience import PATIENCE_S, until
from tests.virtualgpu.checkpoints import (
    FUTEX,
    LOCKED,
    NANOSLEEP,
    NOT_READY,
    OPERATING_SYSTEM,
    RUNNING,
    asking,
    has_told,
    is_in,
    verbs,
)
from tests.virtualgpu.programs import Program, result, running
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CALLER = """
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    here = ctypes.byref
    context = cuda.start()
    address, stream = cuda.alloc(MIB), cuda.out(ctypes.c_uint64, "cuStreamCreate", 0)
    first, second = (cuda.out(ctypes.c_uint64, "cuEventCreate", 0) for _ in "12")
    for event in (first, second):
        cuda.call("cuEventRecord", event, stream)
    some, more = ctypes.c_uint64(), ctypes.c_uint64()
    calls = {
        "cuStreamQuery": (stream,),
        "cuStreamSynchronize": (stream,),
        "cuEventQuery": (first,),
        "cuEventSynchronize": (first,),
        "cuEventElapsedTime": (here(some), first, second),
        "cuCtxSynchronize": (),
        "cuMemGetInfo_v2": (here(some), here(more)),
        "cuDeviceGetCount": (here(some),),
        "cuStreamWaitEvent": (stream, first, 0),
        "cuPointerGetAttribute": (here(some), 2, address),
        "cuCtxGetDevice": (here(some),),
        "cuDevicePrimaryCtxGetState": (0, here(some), here(more)),
        "cuMemGetAddressRange_v2": (here(some), here(more), address),
        "cuStreamCreate": (here(some), 0),
        "cuEventCreate": (here(some), 0),
        "cuEventRecord": (first, stream),
        "cuMemFree_v2": (address,),
        "cuMemAlloc_v2": (here(some), MIB),
        "cuMemHostAlloc": (here(some), 4096, 0),
        "cuMemcpyHtoD_v2": (address, b"some bytes", 10),
        "cuMemcpyHtoDAsync_v2": (address, b"some bytes", 10, stream),
        "cuMemsetD8_v2": (address, 0, 10),
    }
    cuda.tell("ready")
    while name := cuda.heard():
        cuda.tell(cuda.code(name, *calls[name]))
"""

DIE = (
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuCtxSynchronize",
)
ANSWER = (
    "cuDeviceGetCount",
    "cuStreamWaitEvent",
    "cuPointerGetAttribute",
    "cuCtxGetDevice",
    "cuDevicePrimaryCtxGetState",
    "cuMemGetAddressRange_v2",
)
WAIT = (
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventRecord",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuMemFree_v2",
)


def answer(caller: Program, call: str) -> int:
    """What a call answers that does not wait."""
    caller.go(call)
    until(lambda: has_told(caller))
    code: int = caller.told()
    return code


def waits(caller: Program, call: str) -> bool:
    """Make the call; whether it waits at the gate."""
    caller.go(call)
    until(lambda: is_in(FUTEX, caller.pid) or has_told(caller))
    return not has_told(caller)


def test_calls_that_answer_while_the_process_is_locked(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        assert verbs(virtual_gpu, caller.pid, "Lock") == [0]
        for call in (*DIE, *ANSWER, "cuMemGetInfo_v2"):
            assert answer(caller, call) == 0, call
        assert verbs(virtual_gpu, caller.pid, "State") == [LOCKED]


def test_calls_that_answer_while_the_process_is_checkpointed(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        assert verbs(virtual_gpu, caller.pid, "Lock", "Checkpoint") == [0, 0]
        for call in ANSWER:
            assert answer(caller, call) == 0, call
        assert answer(caller, "cuMemGetInfo_v2") == OPERATING_SYSTEM


@pytest.mark.parametrize("call", DIE)
def test_calls_that_end_a_checkpointed_process(
    virtual_gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    if options := os.environ.get("ASAN_OPTIONS"):  # which would report the fault, and exit
        monkeypatch.setenv("ASAN_OPTIONS", f"{options}:handle_segv=0")
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        assert verbs(virtual_gpu, caller.pid, "Lock", "Checkpoint") == [0, 0]
        caller.go(call)
        assert caller.process.wait(PATIENCE_S) == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("there", "back"), [(["Lock"], ["Unlock"]), (["Lock", "Checkpoint"], ["Restore", "Unlock"])]
)
def test_calls_that_wait_for_the_unlock(virtual_gpu: VirtualGpu, there: list[str], back: list[str]) -> None:
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        for call in WAIT:
            assert verbs(virtual_gpu, caller.pid, *there) == [0] * len(there)
            assert waits(caller, call), call
            assert verbs(virtual_gpu, caller.pid, *back) == [0] * len(back)
            assert caller.told() == 0, call


def test_the_free_memory_of_a_locked_process_is_asked_without_admission(virtual_gpu: VirtualGpu) -> None:
    """A process that is stopped while it asks would keep every other one from allocating."""
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        assert verbs(virtual_gpu, caller.pid, "Lock") == [0]
        with open(virtual_gpu.folder / "admission.lock", "r+b") as admission:
            whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(admission, fcntl.F_OFD_SETLKW, whole_file)
            assert answer(caller, "cuMemGetInfo_v2") == 0


def test_the_free_memory_is_the_same_as_ever_while_locked(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        cuda.alloc(GIB)
        reserve = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", MIB, 1)
        cuda.call("cuMemsetD8_v2", reserve, 0, MIB)
        before = cuda.used()
        cuda.call("cuCheckpointProcessLock", os.getpid(), None)
        cuda.tell([before, cuda.used()])
    """
    before, locked = result(virtual_gpu, program)
    assert locked == before


@pytest.mark.parametrize("call", ["cuStreamSynchronize", "cuEventQuery"])
def test_a_lock_waits_for_a_call_that_began_before_it(virtual_gpu: VirtualGpu, call: str) -> None:
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        virtual_gpu.fail(call, slow_s=1000)
        caller.go(call)
        until(lambda: is_in(NANOSLEEP, caller.pid))
        assert verbs(virtual_gpu, caller.pid, "Lock", "State", timeout_ms=50) == [NOT_READY, RUNNING]
        virtual_gpu.clear_faults()
        assert caller.told() == 0


def test_an_unlock_waits_for_a_thread_that_is_inside_a_query(virtual_gpu: VirtualGpu) -> None:
    """On an H200 this thread holds a lock that the unlock needs; while it is stopped, it keeps it."""
    with running(virtual_gpu, CALLER) as caller:
        caller.told()
        assert verbs(virtual_gpu, caller.pid, "Lock") == [0]
        virtual_gpu.fail("cuEventQuery", slow_s=1000)
        caller.go("cuEventQuery")
        until(lambda: is_in(NANOSLEEP, caller.pid))
        with asking(virtual_gpu, caller.pid, "Unlock") as asker:
            assert not has_told(asker)
            virtual_gpu.clear_faults()
            assert asker.told() == 0
        assert caller.told() == 0


def test_a_lock_gives_up_though_a_call_waits_for_work(virtual_gpu: VirtualGpu) -> None:
    """The call began while the lock was waiting: it is inside, but the unlock does not wait for it."""
    program = """
        cuda.start()
        stream, done = cuda.out(ctypes.c_uint64, "cuStreamCreate", 0), threading.Event()
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: done.wait())
        cuda.call("cuLaunchHostFunc", stream, work, 0)
        cuda.tell("ready")
        cuda.heard()
        threading.Thread(target=lambda: (cuda.heard(), done.set())).start()
        cuda.tell("asked")
        cuda.tell(cuda.code("cuStreamSynchronize", stream))
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        with asking(virtual_gpu, worker.pid, "Lock", timeout_ms=3000) as asker:
            worker.go()
            worker.told()
            until(lambda: has_told(asker))
            assert asker.told() == NOT_READY
        assert verbs(virtual_gpu, worker.pid, "State") == [RUNNING]
        worker.go()
        assert worker.told() == 0
