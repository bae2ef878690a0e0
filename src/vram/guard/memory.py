"""What a GPU has free and what this process holds of it, measured without waking anything.

No context is made and the driver is not loaded for it: a process that has not started CUDA
holds nothing, and then NVML tells the rest.
"""

from __future__ import annotations

import os
import sys
import warnings
from ctypes import c_void_p
from typing import TYPE_CHECKING, NamedTuple

from vram.guard.nvml import nvml, visible_names
from vram.payloads.libcuda import Libcuda, loaded
from vram.payloads.libnvml import Nvml

if TYPE_CHECKING:
    from vram.payloads.trim.driver import LoadedDriver


class DeviceMemory(NamedTuple):
    """``used`` is what the driver charges to this process, its context included; None where it
    does not tell. ``free`` and ``total`` are the whole device's."""

    device: int
    used: int | None
    free: int
    total: int


_cuda: tuple[int, Libcuda | None] = (0, None)


def cuda() -> Libcuda | None:
    """libcuda as this process has loaded it; None as long as it has not."""
    global _cuda
    pid, library = _cuda
    if library is None or pid != os.getpid():
        _cuda = os.getpid(), loaded()
    return _cuda[1]


def started() -> LoadedDriver | None:
    """The calls that make no context; None as long as this process has not started CUDA."""
    if cuda() is None:
        return None
    # Not before: a program that uses no GPU does without the rest of that package.
    from vram.payloads.trim.driver import driver

    return driver if driver.count() else None


def has_driver() -> bool:
    """Whether any NVIDIA driver answers."""
    return cuda() is not None or nvml() is not None


def current_device() -> int:
    """The device whose context is current in this thread; else the first."""
    driver = started()
    return (driver.current() or 0) if driver else 0


def visible_devices() -> int | None:
    """How many GPUs CUDA sees or would see in this process; None where nobody can tell."""
    driver = started()
    if driver is not None:
        return driver.count()
    management = nvml()
    return len(visible_names(management.count())) if management is not None else None


def awake_devices() -> list[int]:
    """Devices on which this process has a context: one that is known here, or one that it is charged for.

    A context of the program's own (cuCtxCreate, PyCUDA) that is current in another thread is seen by the
    charge alone: where the driver tells no shares (WSL2), it goes unseen.
    """
    driver = started()
    if driver is None:
        return []
    known = driver.devices()
    return [device for device in range(driver.count()) if device in known or _charge(driver, device)]


def unentered_devices() -> list[int]:
    """Those whose context this thread cannot enter: it is the program's own, and not current here."""
    driver = started()
    known = driver.devices() if driver else []
    return [device for device in awake_devices() if device not in known]


def device_memory(device: int | None = None, *, process: bool = True) -> DeviceMemory | None:
    """Measure *device* (CUDA's number; left out, the current one); None without driver or device.

    With ``process=False`` our own share is not asked for, which saves the longest of the calls.
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


def _by_nvml(driver: LoadedDriver | None, device: int) -> tuple[int, int] | None:
    management = nvml()
    handle = _handle(management, driver, device) if management else None
    read = management.memory(handle) if management and handle else None
    return (int(read.free), int(read.total)) if read else None


def _own_share(driver: LoadedDriver | None, device: int) -> int | None:
    if driver is None:
        return 0  # whoever has not started CUDA holds nothing
    charged = _charge(driver, device)
    return 0 if charged is None and device not in driver.devices() else charged


def _charge(driver: LoadedDriver, device: int) -> int | None:
    """What the driver charges this process on *device*; None where it does not list it or does not tell."""
    management = nvml()
    handle = _handle(management, driver, device) if management else None
    return management.charged_to(os.getpid(), handle) if management and handle else None


def _handle(management: Nvml, driver: LoadedDriver | None, device: int) -> c_void_p | None:
    uuid = driver.uuid(device) if driver else None
    if uuid is not None:
        return management.handle(uuid) or management.handle(uuid.replace("GPU-", "MIG-"))
    names = visible_names(management.count())
    return management.handle(names[device]) if device < len(names) else None


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
