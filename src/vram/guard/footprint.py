"""What this process holds on its GPUs at one moment: the driver's charge, and the frameworks' own split.

The charge covers everything, also what no framework accounts for; the frameworks report how much of what
they hold is in use. Nothing is started for it: in a process that has not loaded the driver this takes a
microsecond.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vram.guard.memory import cuda, device_memory, started
from vram.guard.native import library_counter

OUTSIDE = "outside every framework"

# Their pools are the program's own objects: finding them takes a walk over the whole heap.
_NEED_HEAP_WALK = frozenset(("PyCUDA", "cuda.core"))


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


_count_loads = library_counter()
_last_count = [-1]
_is_loaded = [False]


def driver_is_loaded() -> bool:
    """Whether this process has loaded libcuda; checked again only if a library was loaded since.

    A dlopen that finds nothing costs 60 µs, the loader's own count of libraries less than one.
    """
    count = -1 if _count_loads is None else _count_loads()
    if count != _last_count[0] or count < 0:
        _is_loaded[0] = cuda() is not None
        _last_count[0] = count
    return _is_loaded[0]


def take(*, thorough: bool = False) -> Footprint:
    """Measure now. *thorough* also walks the heap for pools that are the program's own objects."""
    if not driver_is_loaded():
        return NOTHING
    from vram.payloads.trim.driver import driver

    # Even a query can invalidate a CUDA graph that another thread captures (observed on an H200).
    with driver.harmless_to_captures():
        return _taken(thorough)


def _taken(thorough: bool) -> Footprint:
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
    from vram.payloads.trim.frameworks import FRAMEWORKS

    notes: list[str] = []
    kinds = [kind for kind in FRAMEWORKS if thorough or kind.name not in _NEED_HEAP_WALK]
    found = [each for kind in kinds for each in trim.guarded(notes, kind.name, kind.find)]
    return list(trim.measured(found, notes).values())
