"""Contexts of the virtual driver beyond the primary one: green ones, and ones that a sticky error broke."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CONTEXT = 518 * MIB


def test_a_sticky_error_answers_every_later_call_in_its_context(virtual_gpu: VirtualGpu) -> None:
    """What only asks about devices or chooses among contexts still works; another context is unharmed."""
    virtual_gpu.fail("cuMemsetD8", nth=1, sticky="ILLEGAL_ADDRESS")
    told = result(
        virtual_gpu,
        """
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
            "reset": ("cuDevicePrimaryCtxReset_v2", 0),
            "device": ("cuCtxGetDevice", ctypes.byref(where)),
            "count": ("cuDeviceGetCount", ctypes.byref(where)),
        }
        codes = {name: cuda.code(*call) for name, call in calls.items()}
        cuda.call("cuCtxSetCurrent", other)
        codes["elsewhere"] = cuda.code("cuCtxSynchronize")
        cuda.tell(codes)
        """,
    )
    broken = ("the cause", "wait", "ask", "free", "allocate", "reset")
    assert told == {**dict.fromkeys(broken, 700), "device": 0, "count": 0, "elsewhere": 0}


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
