"""A stream-ordered buffer is erased and freed only after the work that may still write to it."""

from __future__ import annotations

from textwrap import dedent

from tests.guard.owner import told
from vram.virtualgpu import VirtualGpu

WORK = """
import time
cuda, order = ctypes.CDLL("libcuda.so.1"), []
ends_late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (time.sleep(0.3), order.append("work")))
first = Buffer(1)

def inside(device):
    return driver().on_device(device)

def stream():
    "One that waits for no default stream, as frameworks make theirs."
    handle = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(handle), 1) == 0
    return handle.value

def write(buffer, handle, byte):
    where, nbytes = ctypes.c_uint64(buffer.pointer), ctypes.c_size_t(buffer.nbytes)
    assert cuda.cuMemsetD8Async(where, byte, nbytes, ctypes.c_void_p(handle)) == 0

def write_late(buffer, handle):
    "Let *handle* be busy for a while, and write to *buffer* then."
    assert cuda.cuLaunchHostFunc(ctypes.c_void_p(handle), ends_late, None) == 0
    write(buffer, handle, 5)

def bytes_when_all_is_done(buffer):
    with inside(buffer.device):
        assert cuda.cuCtxSynchronize() == 0
    return sorted(set(buffer.read()))
"""


def ordered(gpu: VirtualGpu, program: str) -> object:
    return told(gpu, WORK + dedent(program))


def test_erasing_waits_for_the_work_of_other_streams(virtual_gpu: VirtualGpu) -> None:
    program = """
        with inside(0):
            buffer = Buffer(MIB, stream=0)
            write_late(buffer, stream())
            buffer.erase()
            tell(order, bytes_when_all_is_done(buffer))
    """
    assert ordered(virtual_gpu, program) == [["work"], [0]]


def test_what_is_zeroed_on_free_stays_zero(virtual_gpu: VirtualGpu) -> None:
    program = """
        with inside(0):
            holder = Buffer(MIB, stream=0)  # so that the pool keeps its memory
            buffer = Buffer(MIB, stream=0, zero_on_free=True)
            where = buffer.pointer
            write_late(buffer, stream())
            buffer.close()
            found = Buffer(MIB, stream=0)
            tell(found.pointer == where, bytes_when_all_is_done(found))
    """
    assert ordered(virtual_gpu, program) == [True, [0]]


def test_a_finalizer_that_has_no_stream_any_more_waits_for_all(virtual_gpu: VirtualGpu) -> None:
    """Given as a bare number, a stream may be gone: what it may still write must not meet a new owner."""
    program = """
        with inside(0):
            number = stream()
            buffer = Buffer(MIB, stream=number)
            write_late(buffer, number)
            del buffer
            ended = list(order)
            found = Buffer(MIB, stream=stream())
            found.fill(1)
            tell(ended, bytes_when_all_is_done(found))
    """
    assert ordered(virtual_gpu, program) == [["work"], [1]]


def test_a_default_stream_is_that_of_the_memorys_own_gpu(two_virtual_gpus: VirtualGpu) -> None:
    """Closed where another GPU is current, it still goes back behind the work of its own."""
    program = """
        with inside(1):
            buffer = Buffer(MIB, stream=0)
            write_late(buffer, 0)
        with inside(0):
            buffer.close()
        with inside(1):
            other = stream()
            found = Buffer(MIB, stream=other)
            write(found, other, 1)
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(other)) == 0
            tell(bytes_when_all_is_done(found))
    """
    assert ordered(two_virtual_gpus, program) == [1]
