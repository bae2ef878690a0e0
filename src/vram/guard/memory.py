"""What a GPU has free and what this process holds of it, measured without waking anything.

No context is made and the driver is not loaded for it: a process that has not started CUDA
holds nothing, and then NVML tells the rest.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import NamedTuple

from vram.guard.nvml import Nvml, nvml, visible_names

_UUID = c_char * 16
_POINTER_ORDINAL, _INVALID_VALUE = 9, 1


class DeviceMemory(NamedTuple):
    """``used`` is what the driver charges to this process, its context included; None where it
    does not tell. ``free`` and ``total`` are the whole device's."""

    device: int
    used: int | None
    free: int
    total: int


class Reading(NamedTuple):
    free: int
    total: int


@cache
def _loaded(pid: int) -> ctypes.CDLL:
    # RTLD_NOLOAD: find libcuda only where the program has loaded it already. A miss raises, and
    # is therefore asked again next time.
    return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def cuda() -> ctypes.CDLL | None:
    """libcuda as this process has loaded it; None as long as it has not."""
    try:
        return _loaded(os.getpid())
    except OSError:
        return None


def has_driver() -> bool:
    """Whether any NVIDIA driver answers."""
    return cuda() is not None or nvml() is not None


def current_device() -> int:
    """The device whose context is current in this thread; else the first."""
    library, device = cuda(), c_int()
    return device.value if library and library.cuCtxGetDevice(byref(device)) == 0 else 0


def visible_devices() -> int | None:
    """How many GPUs CUDA sees or would see in this process; None where nobody can tell."""
    library, count = cuda(), c_int()
    if library is not None and library.cuDeviceGetCount(byref(count)) == 0:
        return count.value
    management = nvml()
    return len(visible_names(management.count())) if management is not None else None


def awake_devices() -> list[int]:
    """Devices on which this process has a live primary context."""
    library, count = cuda(), c_int()
    if library is None or library.cuDeviceGetCount(byref(count)):
        return []
    return [device for device in range(count.value) if _is_awake(library, device)]


def device_of(address: int) -> int | None:
    """The device on which the driver knows memory at *address*."""
    code, device = _asked_where(address)
    return device if code == 0 else None


def is_device_memory(address: int) -> bool:
    """Whether the driver does not deny that; a thread without a context may not get an answer."""
    return _asked_where(address)[0] != _INVALID_VALUE


def _asked_where(address: int) -> tuple[int | None, int]:
    library, device = cuda(), c_int()
    if library is None:
        return None, 0
    return library.cuPointerGetAttribute(byref(device), _POINTER_ORDINAL, c_uint64(address)), device.value


def device_memory(device: int | None = None, *, process: bool = True) -> DeviceMemory | None:
    """Measure *device* (CUDA's number; left out, the current one); None without driver or device.

    With ``process=False`` our own share is not asked for, which saves the longest of the calls.
    """
    number = current_device() if device is None else device
    if number < 0:
        return None
    library = cuda()
    reading = _by_cuda(library, number) if library is not None else None
    reading = reading or _by_nvml(library, number)
    if reading is None:
        return None
    used = _own_share(library, number) if process else None
    return DeviceMemory(number, used, reading.free, reading.total)


def _is_awake(library: ctypes.CDLL, device: int) -> bool:
    flags, active = c_uint(), c_int()
    failed = library.cuDevicePrimaryCtxGetState(c_int(device), byref(flags), byref(active))
    return not failed and bool(active.value)


def _is_current(library: ctypes.CDLL, device: int) -> bool:
    """Whether this thread's context is on *device*."""
    current = c_int()
    return library.cuCtxGetDevice(byref(current)) == 0 and current.value == device


def _by_cuda(library: ctypes.CDLL, device: int) -> Reading | None:
    if _is_current(library, device):
        return _ask_cuda(library)
    if not _is_awake(library, device):
        return None
    context, previous = c_void_p(), c_void_p()
    if library.cuDevicePrimaryCtxRetain(byref(context), c_int(device)):
        return None
    pushed = library.cuCtxPushCurrent_v2(context) == 0
    try:
        return _ask_cuda(library) if pushed else None
    finally:
        if pushed:
            library.cuCtxPopCurrent_v2(byref(previous))
        library.cuDevicePrimaryCtxRelease_v2(c_int(device))


def _ask_cuda(library: ctypes.CDLL) -> Reading | None:
    free, total = c_size_t(), c_size_t()
    return None if library.cuMemGetInfo_v2(byref(free), byref(total)) else Reading(free.value, total.value)


def _by_nvml(library: ctypes.CDLL | None, device: int) -> Reading | None:
    management = nvml()
    handle = _handle(management, library, device) if management else None
    read = management.free_and_total(handle) if management and handle else None
    return Reading(*read) if read else None


def _own_share(library: ctypes.CDLL | None, device: int) -> int | None:
    if library is None or library.cuDeviceGetCount(byref(c_int())):
        return 0  # whoever has not started CUDA holds nothing
    management = nvml()
    handle = _handle(management, library, device) if management else None
    charged = management.charged_to(os.getpid(), handle) if management and handle else None
    if charged is not None or _is_current(library, device) or _is_awake(library, device):
        return charged
    # A context of cuCtxCreate that is not current in this thread is seen by the driver's list alone: on
    # a driver that tells no shares it goes unseen.
    return 0


def _handle(management: Nvml, library: ctypes.CDLL | None, device: int) -> c_void_p | None:
    uuid = _UUID()
    if library is not None and library.cuDeviceGetUuid_v2(byref(uuid), c_int(device)) == 0:
        text = _spelled(bytes(uuid))
        return management.handle(f"GPU-{text}") or management.handle(f"MIG-{text}")
    names = visible_names(management.count())
    return management.handle(names[device]) if device < len(names) else None


def _spelled(uuid: bytes) -> str:
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_said = False


def say_no_driver(what: str) -> None:
    """Warn once in this process that *what* does nothing here, whichever part is the first to ask."""
    global _said
    if not _said:
        _said = True
        text = f"no NVIDIA driver answers here: {what} does nothing"
        warnings.warn(text, RuntimeWarning, stacklevel=levels_to_caller())


def levels_to_caller() -> int:
    """How far above whoever calls this the first frame is that is not vram's own."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "vram":
        frame, level = frame.f_back, level + 1
    return level
