"""What this process holds on its GPUs: the driver's charge, and how the loaded frameworks split it.

No context is made and libcuda is not loaded for it: a process that has not started CUDA holds nothing, and
learns that in a microsecond.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Container
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.payloads.libcuda import Libcuda, loaded
from vram.payloads.libnvml import Nvml

if TYPE_CHECKING:
    from vram.payloads.trim.driver import LoadedDriver

# ---- the libraries, as far as this process has them ----

_cuda: tuple[int, Libcuda | None] = (0, None)
_nvml: Nvml | None = None


def cuda() -> Libcuda | None:
    """libcuda if this process has loaded it; else None."""
    global _cuda
    pid, library = _cuda
    if library is None or pid != os.getpid():
        _cuda = os.getpid(), loaded()
    return _cuda[1]


# The native part: native/buffer.
LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvrambuffer.so")


def _library_counter() -> Callable[[], int] | None:
    """A function that returns the loader's count of libraries; None if the native part is missing."""
    try:
        count = ctypes.CDLL(LIBRARY).vram_library_loads
    except (OSError, AttributeError):
        return None
    count.restype = ctypes.c_ulonglong
    counter: Callable[[], int] = count
    return counter


_count_libraries = _library_counter()
_last_count = -1
_is_loaded = False


def driver_is_loaded() -> bool:
    """The same as a bool, fast: a dlopen that finds nothing costs 60 µs, the loader's count less than one."""
    global _last_count, _is_loaded
    count = -1 if _count_libraries is None else _count_libraries()
    if count != _last_count or count < 0:
        _is_loaded = cuda() is not None
        _last_count = count
    return _is_loaded


def started() -> LoadedDriver | None:
    """The calls that make no context; None as long as this process has not started CUDA."""
    if cuda() is None:
        return None
    # Imported late: a program that uses no GPU never needs that package.
    from vram.payloads.trim.driver import driver

    return driver if driver.count() else None


def nvml() -> Nvml | None:
    """NVML, initialised by the first call of this process, and again after the driver was replaced."""
    global _nvml
    if _nvml is not None and _nvml.gone:
        _nvml.close()
        _nvml = None
    if _nvml is None or _nvml.pid != os.getpid():
        _nvml = Nvml.start()
    return _nvml


def has_driver() -> bool:
    """Whether there is an NVIDIA driver."""
    return cuda() is not None or nvml() is not None


# ---- devices ----


class DeviceMemory(NamedTuple):
    """``used`` is what the driver charges to this process, its context included; None if it reports no
    figure. ``free`` and ``total`` are the whole device's."""

    device: int
    used: int | None
    free: int
    total: int


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

    Where the driver reports no charge per process (WSL2), a context of the program's own is not found.
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
    ``process=False`` leaves out this process's share, which is the slowest of the calls."""
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
    management, handle = _handle(driver, device)
    read = management.memory(handle) if management and handle else None
    return (int(read.free), int(read.total)) if read else None


def _own_share(driver: LoadedDriver | None, device: int) -> int | None:
    if driver is None:
        return 0  # a process that has not started CUDA holds nothing
    charged = _charge(driver, device)
    return 0 if charged is None and device not in driver.devices() else charged


def _charge(driver: LoadedDriver, device: int) -> int | None:
    """What the driver charges this process on *device*; None if it lists no figure for it."""
    management, handle = _handle(driver, device)
    return management.charged_to(os.getpid(), handle) if management and handle else None


def _handle(driver: LoadedDriver | None, device: int) -> tuple[Nvml | None, c_void_p | None]:
    """NVML and its handle of *device*, as far as there are."""
    management = nvml()
    if management is None:
        return None, None
    uuid = driver.uuid(device) if driver else None
    if uuid is not None:
        return management, management.handle(uuid) or management.handle(uuid.replace("GPU-", "MIG-"))
    names = visible_names(management.count())
    return management, management.handle(names[device]) if device < len(names) else None


def visible_names(count: int) -> list[str]:
    """NVML's names of the GPUs that CUDA numbers 0, 1, …, by the environment."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(count)]
    names: list[str] = []
    for word in chosen.split(","):
        name = word.strip()
        # CUDA stops at the first word that it cannot read, and so do we.
        if not (name.isdecimal() and int(name) < count) and not name.startswith(("GPU-", "MIG-")):
            break
        names.append(name)
    return names


# ---- the footprint ----

OUTSIDE = "outside every framework"

# Their pools are the program's own objects: finding them takes a walk over the whole heap.
_NEED_HEAP_WALK = ("PyCUDA", "cuda.core")


class Footprint(NamedTuple):
    """Bytes of device memory. ``charged`` is by CUDA's device number and includes contexts;
    ``in_use`` is by framework. ``device_wide``: some figure is the whole GPU's, because the driver
    does not report this process's share (a container on an old driver, WSL)."""

    charged: dict[int, int]
    in_use: dict[str, int]
    cached: int = 0
    fragmented: int = 0
    device_wide: bool = False

    @property
    def total(self) -> int:
        return sum(self.charged.values())

    @property
    def outside(self) -> int:
        """What the driver charges beyond the frameworks' figures: contexts, code, raw allocations."""
        return self.total - sum(self.in_use.values()) - self.cached - self.fragmented


NOTHING = Footprint({}, {})


def read_footprint(*, thorough: bool = False) -> Footprint:
    """The footprint now. *thorough* also walks the heap for pools that are the program's own objects."""
    if not driver_is_loaded():
        return NOTHING
    from vram.payloads.trim.driver import driver

    # Even a query can invalidate a CUDA graph that another thread captures (observed on an H200).
    with driver.harmless_to_captures():
        return _read_footprint(thorough)


def _read_footprint(thorough: bool) -> Footprint:
    charged, device_wide = charges()
    if not charged:
        return NOTHING
    in_use: dict[str, int] = {}
    cached = fragmented = 0
    for line in framework_lines(thorough=thorough):
        held, unused = line["held"], line["reclaimable"]
        # A framework that does not report what is unused has its bytes in a pool that does.
        if line["memory"] != "device" or held is None or unused is None:
            continue
        used = line["used"]
        in_use[line["name"]] = in_use.get(line["name"], 0) + used
        cached += unused
        fragmented += max(0, held - unused - used)
    return Footprint(charged, in_use, cached, fragmented, device_wide)


def charges() -> tuple[dict[int, int], bool]:
    """What the driver charges this process on each device; True if a figure is the whole device's."""
    driver = started()
    charged, device_wide = {}, False
    for device in range(driver.count() if driver else 0):
        memory = device_memory(device)
        if memory is None or memory.used == 0:
            continue
        device_wide = device_wide or memory.used is None
        charged[device] = memory.total - memory.free if memory.used is None else memory.used
    return charged, device_wide


def framework_lines(*, thorough: bool) -> list[dict[str, Any]]:
    """The figures of every loaded framework, one line for each device."""
    from vram.payloads import trim

    notes: list[str] = []
    found = find_frameworks(notes, but=() if thorough else _NEED_HEAP_WALK)
    return list(trim.measured(found, notes).values())


def find_frameworks(notes: list[str], but: Container[str] = ()) -> list[Any]:
    """Every loaded framework and pool that can release memory, except those named in *but*."""
    from vram.payloads import trim
    from vram.payloads.trim.frameworks import FRAMEWORKS

    kinds = [kind for kind in FRAMEWORKS if kind.name not in but]
    return [each for kind in kinds for each in trim.guarded(notes, kind.name, kind.find)]


def objections(frameworks: list[Any]) -> list[str]:
    """Why nothing may be collected or released now. A framework that fails to answer objects."""
    from vram.payloads import trim

    found: list[str] = []
    for each in frameworks:
        found += trim.guarded(found, each.name, each.objections)
    return found


# ---- warnings ----

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
