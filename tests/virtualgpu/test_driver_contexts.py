"""Contexts of the virtual driver beyond the primary one: green ones, and ones that a sticky error broke."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result
from vram.units import KIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CONTEXT, OVERHEAD = 518 * MIB, 5 * MIB + 576 * KIB


def test_a_sticky_error_breaks_every_context_of_the_process(virtual_gpu: VirtualGpu) -> None:
    """What asks about devices, ends a context or needs none still works. A reset and a destroy return memory,
    and no context can be made any more: all as measured on an H200, driver 580.159.04."""
    virtual_gpu.fail("cuMemsetD8", nth=1, sticky="ILLEGAL_ADDRESS")
    told = result(
        virtual_gpu,
        """
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        def used():
            return pynvml.nvmlDeviceGetMemoryInfo(handle).used
        primary = cuda.start()
        pointer = cuda.alloc(64 * MIB)
        other = cuda.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 0)
        cuda.call("cuCtxSetCurrent", primary)
        where, free = ctypes.c_uint64(), ctypes.c_size_t()
        calls = {
            "the cause": ("cuMemsetD8_v2", pointer, 1, 16),
            "wait": ("cuCtxSynchronize",),
            "ask": ("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(free)),
            "free": ("cuMemFree_v2", pointer),
            "allocate": ("cuMemAlloc_v2", ctypes.byref(where), 1),
            "device": ("cuCtxGetDevice", ctypes.byref(where)),
            "count": ("cuDeviceGetCount", ctypes.byref(where)),
        }
        codes = {name: cuda.code(*call) for name, call in calls.items()}
        codes["create"] = cuda.code("cuMemRelease", cuda.create(2 * MIB))
        cuda.call("cuCtxSetCurrent", other)
        codes["elsewhere"] = cuda.code("cuCtxSynchronize")
        codes["a third context"] = cuda.code("cuCtxCreate_v2", ctypes.byref(where), 0, 0)
        steps = [used()]
        codes["reset"] = cuda.code("cuDevicePrimaryCtxReset_v2", 0)
        steps.append(used())
        codes["destroy"] = cuda.code("cuCtxDestroy_v2", other)
        steps.append(used())
        codes["retain"] = cuda.code("cuDevicePrimaryCtxRetain", ctypes.byref(where), 0)
        cuda.tell([codes, steps])
        """,
    )
    codes, (held, reset, destroyed) = told
    assert [name for name, code in codes.items() if code == 700] == [
        *("the cause", "wait", "ask", "free", "allocate", "elsewhere", "a third context", "retain")
    ]
    assert {code for code in codes.values() if code != 700} == {0}
    assert held - reset == CONTEXT + OVERHEAD + 64 * MIB
    assert reset - destroyed == CONTEXT + OVERHEAD


def test_a_process_alone_can_have_its_calls_fail(virtual_gpu: VirtualGpu) -> None:
    """By its environment; no other process notices, and the lines of the file hold besides."""
    program = """
        cuda.start()
        cuda.tell([cuda.code("cuCtxSynchronize"), cuda.code("cuMemFree_v2", 0)])
    """
    private = {"VRAM_VIRTUAL_FAULTS": "# a comment\ncuCtxSynchronize nth=1 error=719"}
    assert result(virtual_gpu, program, **private) == [719, 0]
    virtual_gpu.fail("cuMemFree", error="INVALID_VALUE")
    assert result(virtual_gpu, program, **private) == [719, 1]
    assert result(virtual_gpu, program) == [0, 1]


def test_a_reset_is_refused_while_a_green_context_lives(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        from ctypes import byref
        cuda.call("cuInit", 0)
        whole, part, count = *(ctypes.create_string_buffer(144) for _ in range(2)), ctypes.c_uint(1)
        cuda.call("cuDeviceGetDevResource", 0, whole, 1)
        cuda.call("cuDevSmResourceSplitByCount", part, byref(count), whole, 0, 0, 12)
        description = cuda.out(ctypes.c_uint64, "cuDevResourceGenerateDesc", part, 1)
        green = cuda.out(ctypes.c_uint64, "cuGreenCtxCreate", description, 0, 1)
        cuda.call("cuCtxPushCurrent_v2", cuda.out(ctypes.c_uint64, "cuCtxFromGreenCtx", green))
        cuda.alloc(64 * MIB)
        before = cuda.used()
        codes = [cuda.code("cuDevicePrimaryCtxReset_v2", 0)]
        kept = cuda.used() == before
        cuda.call("cuGreenCtxDestroy", green)
        codes.append(cuda.code("cuDevicePrimaryCtxReset_v2", 0))
        cuda.tell([codes, kept])
        """,
    )
    assert told == [[800, 0], True]


def test_a_green_context_keeps_the_primary_one_alive(virtual_gpu: VirtualGpu) -> None:
    """It is made from a share of the multiprocessors, and the memory allocated in it is charged as any."""
    told = result(
        virtual_gpu,
        """
        from ctypes import byref
        cuda.call("cuInit", 0)
        whole, part, count = *(ctypes.create_string_buffer(144) for _ in range(2)), ctypes.c_uint(1)
        def multiprocessors(resource):
            return int.from_bytes(resource.raw[96:100], "little")
        def is_active():
            flags, active = ctypes.c_uint(), ctypes.c_int()
            cuda.call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
            return active.value
        cuda.call("cuDeviceGetDevResource", 0, whole, 1)
        cuda.call("cuDevSmResourceSplitByCount", part, byref(count), whole, 0, 0, 12)
        seen = [multiprocessors(whole), multiprocessors(part), count.value, is_active()]
        description = cuda.out(ctypes.c_uint64, "cuDevResourceGenerateDesc", part, 1)
        green = cuda.out(ctypes.c_uint64, "cuGreenCtxCreate", description, 0, 1)
        context = cuda.out(ctypes.c_uint64, "cuCtxFromGreenCtx", green)
        seen.append(is_active())
        cuda.call("cuCtxPushCurrent_v2", context)
        before = cuda.used()
        cuda.alloc(64 * MIB)
        seen.append((cuda.used() - before) // MIB)
        cuda.call("cuGreenCtxDestroy", green)
        seen += [is_active(), cuda.code("cuGreenCtxDestroy", green), cuda.code("cuCtxSynchronize")]
        seen.append(cuda.code("cuGreenCtxCreate", byref(ctypes.c_uint64()), context, 0, 1))
        cuda.tell(seen)
        """,
    )
    assert told == [132, 16, 1, 0, 1, 64, 0, 201, 709, 1]


def test_two_contexts_of_one_process_are_charged_together(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        import pynvml
        cuda.call("cuInit", 0)
        cuda.out(ctypes.c_uint64, "cuCtxCreate_v4", 0, 0, 0)
        cuda.alloc(64 * MIB)
        cuda.out(ctypes.c_uint64, "cuCtxCreate_v3", 0, 0, 0, 0)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        cuda.tell([each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)])
        """,
    )
    assert told == [2 * CONTEXT + 64 * MIB]
