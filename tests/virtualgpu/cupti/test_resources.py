"""Callbacks of the resource domain: contexts and streams as they are made and before they end."""

from __future__ import annotations

import pytest

from tests.virtualgpu.checkpoints import NANOSLEEP
from tests.virtualgpu.cupti.programs import result
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CREATED, DESTROY_STARTING = 1, 2


def test_contexts_of_several_devices(two_virtual_gpus: VirtualGpu) -> None:
    """A primary context is made by the first to retain it, and ends with the last or with a reset."""
    program = """
        one = Subscriber()
        one.subscribe(RESOURCE)
        cuda.cuInit(0)
        one.take()
        context, told = c_void_p(), []
        for name, *arguments in (
            ("cuDevicePrimaryCtxRetain", byref(context), 1),
            ("cuDevicePrimaryCtxRetain", byref(context), 0),
            ("cuDevicePrimaryCtxRetain", byref(context), 1),
            ("cuDevicePrimaryCtxRelease_v2", 1),
            ("cuDevicePrimaryCtxReset_v2", 0),
            ("cuDevicePrimaryCtxReset_v2", 0),
            ("cuDevicePrimaryCtxRelease_v2", 1),
            ("cuDevicePrimaryCtxRetain", byref(context), 1),
            ("cuCtxCreate_v4", byref(context), None, 0, 0),
            ("cuCtxDestroy_v2", context),
            ("cuCtxDestroy_v2", context),
        ):
            getattr(cuda, name)(*arguments)
            told.append([event[1:3] for event in one.take()])
        tell(told)
    """
    assert result(two_virtual_gpus, program) == [
        [[CREATED, "a"]],
        [[CREATED, "b"]],
        [],
        [],
        [[DESTROY_STARTING, "b"]],
        [],
        [[DESTROY_STARTING, "a"]],
        [[CREATED, "a"]],
        [[CREATED, "c"]],
        [[DESTROY_STARTING, "c"]],
        [],
    ]


def test_a_context_that_cannot_be_made_is_not_told(virtual_gpu: VirtualGpu) -> None:
    program = """
        one = Subscriber()
        one.subscribe(RESOURCE)
        cuda.cuInit(0)
        one.take()
        tell([cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 7), one.take()])
    """
    assert result(virtual_gpu, program) == [101, []]


def test_callbacks_may_use_the_context(virtual_gpu: VirtualGpu) -> None:
    """When it has just been made, and before it ends: its memory can still be freed."""
    program = """
        one = Subscriber()
        one.subscribe(RESOURCE)
        cuda.cuInit(0)
        codes, place = [], c_uint64()

        def use(cbid, context):
            codes.append(cuda.cuCtxPushCurrent_v2(context))
            if cbid == 1:
                codes.append(cuda.cuMemAlloc_v2(byref(place), c_size_t(1 << 20)))
            else:
                codes.append(cuda.cuMemFree_v2(place))
            codes.append(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))

        one.on_resource = use
        cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)
        cuda.cuDevicePrimaryCtxRelease_v2(0)
        tell(codes)
    """
    assert result(virtual_gpu, program) == [0] * 6


def test_threads_that_end_a_context_at_once_tell_it_once(virtual_gpu: VirtualGpu) -> None:
    program = """
        one = Subscriber()
        one.subscribe(RESOURCE)
        cuda.cuInit(0)
        counts = []
        for _ in range(20):
            context, barrier = c_void_p(), threading.Barrier(8)
            cuda.cuCtxCreate_v2(byref(context), 0, 0)
            cuda.cuCtxPopCurrent_v2(byref(c_void_p()))
            one.take()
            def end():
                barrier.wait()
                cuda.cuCtxDestroy_v2(context)
            threads = [threading.Thread(target=end) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            counts.append(len(one.take()))
        tell(counts)
    """
    assert result(virtual_gpu, program) == [1] * 20


def test_a_checkpoint_does_not_stop_a_callback_inside_a_call(virtual_gpu: VirtualGpu) -> None:
    """The lock waits for the call, so what the call's callback asks must not wait for the lock.

    A process with a subscriber cannot be locked any more: this one subscribes while a lock waits.
    """
    virtual_gpu.fail("cuDevicePrimaryCtxRetain", slow_s=1000)
    program = """
        cuda.cuInit(0)
        answers, place = [], c_uint64()

        def sleeps_in_the_call(thread):
            with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
                return file.read().startswith(os.environ["NANOSLEEP"])

        def lock():
            while not sleeps_in_the_call(threads[0]):
                pass
            answers.append(cuda.cuCheckpointProcessLock(os.getpid(), None))

        def retain():
            cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)

        def use(cbid, context):
            cuda.cuCtxPushCurrent_v2(context)
            answers.append(cuda.cuMemAlloc_v2(byref(place), c_size_t(1 << 20)))
            cuda.cuCtxPopCurrent_v2(byref(c_void_p()))

        threads, state = [threading.Thread(target=each) for each in (retain, lock)], c_int()
        [thread.start() for thread in threads]
        while state.value == 0:
            assert cuda.cuCheckpointProcessGetState(os.getpid(), byref(state)) == 0
        one = Subscriber()
        one.on_resource = use
        one.subscribe(RESOURCE)
        open(os.environ["VRAM_VIRTUAL_GPU"] + "/faults", "w").close()
        [thread.join() for thread in threads]
        tell(answers)
    """
    assert result(virtual_gpu, program, NANOSLEEP=f"{NANOSLEEP} ") == [0, 0]
