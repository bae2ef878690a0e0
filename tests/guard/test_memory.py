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
        seen = [device_memory(0), cuda() is None, awake_devices()]
        library, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        seen.append(device_memory(0).used)
        library.cuInit(0)
        seen += [device_memory(0).used, awake_devices()]
        library.cuDevicePrimaryCtxRetain(byref(context), 1)
        seen += [device_memory(0).used, device_memory(1).used, awake_devices(), current_device()]
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
