"""Streams and events: the order of work, the program's own functions, and time."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

NOT_READY, INVALID_HANDLE = 600, 400

# A host function that holds its stream until the program says so.
HELD = """
        cuda.start()
        Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        opened = threading.Event()
        hold = Function(lambda unused: opened.wait())
        order = []
        def note(word):
            function = Function(lambda unused: order.append(word))
            kept.append(function)
            return function
        kept = []
        def stream(flags=1):
            return cuda.out(ctypes.c_uint64, "cuStreamCreate", flags)
"""


def test_work_queues_behind_a_host_function(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        mine, address = stream(), cuda.alloc(16)
        cuda.call("cuLaunchHostFunc", mine, hold, 0)
        cuda.call("cuMemsetD8Async", address, 5, 16, mine)
        cuda.call("cuLaunchHostFunc", mine, note("last"), 0)
        buffer = ctypes.create_string_buffer(1)
        other = stream()
        cuda.call("cuMemcpyDtoHAsync_v2", buffer, address, 1, other)
        busy = [cuda.code("cuStreamQuery", one) for one in (mine, other)]
        waiting = [*busy, buffer.raw[0], list(order)]
        opened.set()
        cuda.call("cuStreamSynchronize", mine)
        cuda.tell([waiting, cuda.code("cuStreamQuery", mine), cuda.read(address, 1)[0], order])
    """
    )
    waiting, after, byte, order = result(virtual_gpu, program)
    assert waiting == [NOT_READY, 0, 0, []]
    assert after == 0
    assert byte == 5
    assert order == ["last"]


def test_host_functions_run_outside_the_calling_thread(virtual_gpu: VirtualGpu) -> None:
    """So a program may hold a lock that its function takes."""
    program = (
        HELD
        + """
        lock, seen = threading.Lock(), []
        def enter(unused):
            with lock:
                seen.append(threading.get_ident())
        function = Function(enter)
        with lock:
            cuda.call("cuLaunchHostFunc", 0, function, 0)
        cuda.call("cuCtxSynchronize")
        cuda.tell(seen[0] != threading.get_ident())
    """
    )
    assert result(virtual_gpu, program) is True


def test_callbacks_hear_their_stream_and_its_status(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        mine, heard = stream(), []
        Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
        callback = Callback(lambda *arguments: heard.append(arguments))
        cuda.call("cuStreamAddCallback", mine, callback, 77, 0)
        cuda.call("cuStreamSynchronize", mine)
        cuda.tell(heard == [(mine, 0, 77)])
    """
    )
    assert result(virtual_gpu, program) is True


def test_one_stream_waits_for_anothers_event(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        first, second = stream(), stream()
        event = cuda.out(ctypes.c_uint64, "cuEventCreate", 0)
        cuda.call("cuLaunchHostFunc", first, hold, 0)
        cuda.call("cuLaunchHostFunc", first, note("first"), 0)
        cuda.call("cuEventRecord", event, first)
        cuda.call("cuStreamWaitEvent", second, event, 0)
        cuda.call("cuLaunchHostFunc", second, note("second"), 0)
        before = [cuda.code("cuEventQuery", event), cuda.code("cuStreamQuery", second), list(order)]
        opened.set()
        cuda.call("cuStreamSynchronize", second)
        cuda.tell([before, order, cuda.code("cuEventQuery", event)])
    """
    )
    assert result(virtual_gpu, program) == [[NOT_READY, NOT_READY, []], ["first", "second"], 0]


def test_the_default_stream_waits_for_blocking_streams_only(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        answers = []
        for flags in (1, 0):
            mine = stream(flags)
            cuda.call("cuLaunchHostFunc", mine, hold, 0)
            cuda.call("cuMemsetD8Async", cuda.alloc(16), 0, 16, 0)
            answers.append(cuda.code("cuStreamQuery", 0))
        opened.set()
        cuda.call("cuCtxSynchronize")
        cuda.tell([answers, cuda.code("cuStreamQuery", 0)])
    """
    )
    assert result(virtual_gpu, program) == [[0, NOT_READY], 0]


def test_a_destroyed_stream_finishes_its_work(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        mine = stream()
        done = threading.Event()
        finish = Function(lambda unused: done.set())
        cuda.call("cuLaunchHostFunc", mine, hold, 0)
        cuda.call("cuLaunchHostFunc", mine, finish, 0)
        cuda.call("cuStreamDestroy_v2", mine)
        opened.set()
        cuda.tell([done.wait(30), cuda.code("cuStreamDestroy_v2", 12345678)])
    """
    )
    assert result(virtual_gpu, program) == [True, INVALID_HANDLE]


def test_a_plain_free_waits_for_the_contexts_work(virtual_gpu: VirtualGpu) -> None:
    """As cudaFree behind a one-second kernel took a second, on hardware."""
    program = (
        HELD
        + """
        mine, address = stream(), cuda.alloc(16)
        cuda.call("cuLaunchHostFunc", mine, hold, 0)
        cuda.call("cuLaunchHostFunc", mine, note("work"), 0)
        context = cuda.out(ctypes.c_uint64, "cuCtxGetCurrent")
        def free():
            cuda.call("cuCtxSetCurrent", context)
            cuda.call("cuMemFree_v2", address)
            order.append("freed")
        freeing = threading.Thread(target=free)
        freeing.start()
        opened.set()
        freeing.join()
        cuda.tell(order)
    """
    )
    assert result(virtual_gpu, program) == ["work", "freed"]


def test_events_tell_the_time_between_them(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        first, last, blind = [cuda.out(ctypes.c_uint64, "cuEventCreate", flags) for flags in (0, 0, 2)]
        def elapsed(a, b):
            value = ctypes.c_float(-1)
            return cuda.code("cuEventElapsedTime", ctypes.byref(value), a, b), value.value
        unrecorded = elapsed(first, last)[0]
        pause = Function(lambda unused: threading.Event().wait(0.02))
        cuda.call("cuEventRecord", first, 0)
        cuda.call("cuLaunchHostFunc", 0, pause, 0)
        cuda.call("cuEventRecord", last, 0)
        cuda.call("cuEventRecord", blind, 0)
        early = elapsed(first, last)[0]
        cuda.call("cuEventSynchronize", last)
        cuda.call("cuCtxSynchronize")
        cuda.tell([unrecorded, early, elapsed(first, last), elapsed(first, blind)[0]])
    """
    )
    unrecorded, early, (answer, milliseconds), blind = result(virtual_gpu, program)
    assert unrecorded == INVALID_HANDLE
    assert early == NOT_READY
    assert answer == 0
    assert milliseconds >= 20
    assert blind == INVALID_HANDLE


def test_a_context_ends_with_all_its_work_done(virtual_gpu: VirtualGpu) -> None:
    program = (
        HELD
        + """
        made = cuda.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 0)
        mine = stream()
        for number in range(50):
            cuda.call("cuLaunchHostFunc", mine, note(number), 0)
        cuda.call("cuCtxDestroy_v2", made)
        cuda.tell([order == list(range(50)), cuda.code("cuStreamQuery", mine)])
    """
    )
    assert result(virtual_gpu, program) == [True, INVALID_HANDLE]


def test_threads_make_and_end_streams_and_events_all_at_once(virtual_gpu: VirtualGpu) -> None:
    """Handles are used again as soon as they are dropped; nobody may wait for a former owner."""
    program = (
        HELD
        + """
        context, base = cuda.out(ctypes.c_uint64, "cuCtxGetCurrent"), cuda.used()
        nothing = Function(lambda unused: None)
        def churn():
            cuda.call("cuCtxSetCurrent", context)
            for flags in [0, 1] * 40:
                first, second = stream(flags), stream(1 - flags)
                event = cuda.out(ctypes.c_uint64, "cuEventCreate", 0)
                address = cuda.out(ctypes.c_uint64, "cuMemAllocAsync", 100_000, first)
                cuda.call("cuLaunchHostFunc", first, nothing, 0)
                cuda.call("cuEventRecord", event, first)
                cuda.call("cuStreamWaitEvent", second, event, 0)
                cuda.call("cuMemFreeAsync", address, second)
                cuda.call("cuEventDestroy_v2", event)
                cuda.call("cuStreamDestroy_v2", first)
                cuda.call("cuMemFree_v2", cuda.alloc(1000))
                cuda.call("cuStreamDestroy_v2", second)
        threads = [threading.Thread(target=churn) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        cuda.call("cuCtxSynchronize")
        cuda.tell(cuda.used() - base)
    """
    )
    for_streams = result(virtual_gpu, program)  # eight at once at most, and how many it were is chance
    assert for_streams in (0, 2 * MIB, 4 * MIB)
