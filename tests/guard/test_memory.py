"""What this process holds of a GPU, told without waking it."""

from __future__ import annotations

from tests.guard.scoping import PREAMBLE, result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

QUIET = PREAMBLE.replace("from tests.virtualgpu import libcuda as raw\n", "") + (
    "import ctypes\nfrom ctypes import byref\nfrom vram.guard.memory import *\n"
)


def test_asking_wakes_nothing_and_counts_everything(two_virtual_gpus: VirtualGpu) -> None:
    told = result(
        two_virtual_gpus,
        """
        seen = [device_memory(0), cuda() is None, devices_with_context()]
        library, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        seen.append(device_memory(0).used)
        library.cuInit(0)
        seen += [device_memory(0).used, devices_with_context()]
        library.cuDevicePrimaryCtxRetain(byref(context), 1)
        seen += [device_memory(0).used, device_memory(1).used, devices_with_context(), current_device()]
        library.cuCtxSetCurrent(context)
        library.cuMemAlloc_v2(byref(pointer), ctypes.c_size_t(64 * MIB))
        seen += [device_memory().device, device_memory().used, device_memory(process=False).used]
        seen += [device_memory(2), device_memory(-1), has_driver()]
        tell(seen)
        """,
        QUIET,
    )
    (device, used, free, total), *rest = told
    assert (device, used, free < total) == (0, 0, True)
    context = 518 * MIB
    assert rest[:9] == [True, [], 0, 0, [], 0, context, [1], 0]
    assert rest[9:] == [1, context + 64 * MIB, None, None, None, True]


def test_the_numbers_are_cudas_own(two_virtual_gpus: VirtualGpu) -> None:
    """CUDA_VISIBLE_DEVICES turns them round, before CUDA has started and after."""
    two_virtual_gpus.set(gpu=1, total_bytes=64 << 30)
    told = result(
        two_virtual_gpus,
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        before = [device_memory(0).total >> 30, device_memory(1)]
        library = ctypes.CDLL("libcuda.so.1")
        library.cuInit(0)
        tell([*before, device_memory(0).total >> 30, device_memory(1)])
        """,
        QUIET,
    )
    assert told == [64, None, 64, None]


def test_a_gpu_where_we_have_nothing_is_not_ours_though_another_has_our_context(
    two_virtual_gpus: VirtualGpu,
) -> None:
    program = """
        raw.start(0)
        other = held(2, device=1)
        seen = [device_memory(device).used for device in (0, 1)]
        other.communicate(b"\\n")
        tell(seen)
    """
    preamble = PREAMBLE + "from vram.guard.memory import *\n"
    assert result(two_virtual_gpus, program, preamble) == [518 * MIB, 0]


def test_a_driver_that_tells_no_share_tells_none_where_we_are_and_nothing_where_we_are_not(
    two_virtual_gpus: VirtualGpu,
) -> None:
    two_virtual_gpus.set(wddm=True)
    program = "raw.start(0)\ntell([device_memory(device).used for device in (0, 1)])"
    preamble = PREAMBLE + "from vram.guard.memory import *\n"
    assert result(two_virtual_gpus, program, preamble) == [None, 0]


def test_a_context_that_is_not_current_counts_all_the_same(two_virtual_gpus: VirtualGpu) -> None:
    """One of cuCtxCreate is no primary context: only the driver's list knows that it is there."""
    program = """
        raw.start(0)
        raw.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 1)
        raw.alloc(64 * MIB)
        raw.call("cuCtxPopCurrent_v2", byref(ctypes.c_void_p()))
        tell([current_device(), devices_with_context(), unreachable_devices(), device_memory(1).used])
    """
    preamble = PREAMBLE + "import ctypes\nfrom ctypes import byref\nfrom vram.guard.memory import *\n"
    assert result(two_virtual_gpus, program, preamble) == [0, [0, 1], [1], (518 + 64) * MIB]


def test_addresses_are_told_from_those_that_are_no_gpus(two_virtual_gpus: VirtualGpu) -> None:
    program = """
        from vram.payloads.arrays.provider import device_of, is_device_memory
        somewhere = id(object)
        unasked = [is_device_memory(somewhere), device_of(somewhere)]
        buffer = vram.Buffer(1, device=1)
        tell(unasked + [device_of(buffer.pointer), is_device_memory(buffer.pointer)]
             + [device_of(somewhere), is_device_memory(somewhere)])
    """
    without = "import json, vram\ndef tell(value): print(json.dumps(value))\n"
    assert result(two_virtual_gpus, program, without) == [True, None, 1, True, None, False]
