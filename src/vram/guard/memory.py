"""What a GPU has free and what this process holds on it, measured without starting CUDA.

No context is made and libcuda is not loaded for it: a process that has not started CUDA holds nothing,
and NVML reports what is free.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from ctypes import c_void_p
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from vram.guard.nvml import ProcessNvml, nvml, visible_names

if TYPE_CHECKING:
    from vram.payloads.trim.driver import Driver


class DeviceMemory(NamedTuple):
    """``used`` is what the driver charges to this process, its context included; None if it reports no
    figure. ``free`` and ``total`` are the whole device's."""

    device: int
    used: int | None
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


def started() -> Driver | None:
    """The calls that make no context; None as long as this process has not started CUDA."""
    if cuda() is None:
        return None
    # Imported late: a program that uses no GPU never needs that package.
    from vram.payloads.trim.driver import driver

    return driver if driver.count() else None


def has_driver() -> bool:
    """Whether there is an NVIDIA driver."""
    return cuda() is not None or nvml() is not None


def current_device() -> int:
    """The device whose context is current in this thread; else the first."""
    driver = started()
    return (driver.current() or 0) if driver else 0


def visible_devices() -> int | None:
    """How many GPUs CUDA sees or would see in this process; None if that is unknown."""
    driver = started()
    if driver is not None:
        return driver.count()
    management = nvml()
    return len(visible_names(management.count())) if management is not None else None


def devices_with_context() -> list[int]:
    """Devices on which this process has a context: one that is known here, or one that it is charged for.

    A context of the program's own (cuCtxCreate, PyCUDA) that is current in another thread is found by the
    charge alone: where the driver reports no charge per process (WSL2), it is not found.
    """
    driver = started()
    if driver is None:
        return []
    known = driver.devices()
    return [device for device in range(driver.count()) if device in known or _charge(driver, device)]


def unreachable_devices() -> list[int]:
    """Those whose context this thread cannot enter: it is the program's own, and not current here."""
    driver = started()
    known = driver.devices() if driver else []
    return [device for device in devices_with_context() if device not in known]


def device_memory(device: int | None = None, *, process: bool = True) -> DeviceMemory | None:
    """Measure *device* (CUDA's number; left out, the current one); None without driver or device.

    ``process=False`` leaves out this process's share, which is the slowest of the calls.
    """
    number = current_device() if device is None else device
    if number < 0:
        return None
    driver = started()
    reading = driver.free_and_total(number) if driver else None
    reading = reading or _by_nvml(driver, number)
    if reading is None:
        return None
    return DeviceMemory(number, _own_share(driver, number) if process else None, *reading)


def _by_nvml(driver: Driver | None, device: int) -> tuple[int, int] | None:
    management = nvml()
    handle = _handle(management, driver, device) if management else None
    return management.free_and_total(handle) if management and handle else None


def _own_share(driver: Driver | None, device: int) -> int | None:
    if driver is None:
        return 0  # a process that has not started CUDA holds nothing
    charged = _charge(driver, device)
    return 0 if charged is None and device not in driver.devices() else charged


def _charge(driver: Driver, device: int) -> int | None:
    """What the driver charges this process on *device*; None if it lists no figure for it."""
    management = nvml()
    handle = _handle(management, driver, device) if management else None
    return management.charged_to(os.getpid(), handle) if management and handle else None


def _handle(management: ProcessNvml, driver: Driver | None, device: int) -> c_void_p | None:
    uuid = driver.uuid(device) if driver else None
    if uuid is not None:
        return management.handle(uuid) or management.handle(uuid.replace("GPU-", "MIG-"))
    names = visible_names(management.count())
    return management.handle(names[device]) if device < len(names) else None


_has_warned = False


def warn_no_driver(what: str) -> None:
    """Warn once in this process that *what* does nothing without a driver."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        text = f"no NVIDIA driver answers here: {what} does nothing"
        warnings.warn(text, RuntimeWarning, stacklevel=levels_to_caller())


def levels_to_caller() -> int:
    """The ``stacklevel`` of the first frame above the caller that is not vram's own."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "vram":
        frame, level = frame.f_back, level + 1
    return level
