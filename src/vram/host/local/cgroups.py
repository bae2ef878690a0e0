"""Control groups: where they lie, which one a process is in, and what the kernel counts for each on GPUs.

The kernel's device memory controller (Linux 6.14) has a line for each GPU of a driver that uses it, as
NVIDIA's does from version 615 on: ``nvidia/00000000:01:00.0/vidmem 42949672960`` in ``dmem.current``,
``dmem.max`` and ``dmem.min`` of each group, and in ``dmem.capacity`` of the root. They are only read here:
limits are set through NVML, which keeps the sums of the groups above right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from vram.children import driver_environment, spawn
from vram.host.local.cgroup_root import root
from vram.host.local.workload import workload
from vram.host.ports import DmemUse, LimitAnswer
from vram.model.cgroups import CgroupLimit, DmemFacts
from vram.payloads import command

_MAX_NBYTES = 64 << 10
# So many groups a large node has; what is beyond is not read.
_MAX_GROUPS = 20_000
_REGION = "nvidia/"
_GRACE_S = 0.2


class _Line(msgspec.Struct):
    """What the payload says of one group."""

    code: int
    folder: str | None = None
    hard: int | None = None
    soft: int = 0
    used: int | None = None


def _answer(cgroup: str, line: _Line | None) -> LimitAnswer:
    if line is None or line.code != 0:
        return LimitAnswer(cgroup, line.code if line else None)
    return LimitAnswer(cgroup, 0, CgroupLimit(cgroup, line.hard, line.soft, line.used))


class LocalCgroups:
    """Reads the groups of this machine, or of the virtual GPU's."""

    @property
    def counts_device_memory(self) -> bool:
        return bool(_values(f"{root()}/dmem.capacity"))

    def problem(self, cgroup: str) -> str | None:
        if not cgroup.startswith("/") or ".." in cgroup or "\0" in cgroup:
            return f"{cgroup!r} is no path of a control group"
        if not os.path.isdir(root() + cgroup):
            return f"there is no control group {cgroup} below {root()}"
        return None

    def limits(self, uuid: str, cgroups: Sequence[str], deadline_s: float) -> Sequence[LimitAnswer]:
        if not cgroups:
            return ()
        folders = {root() + cgroup: cgroup for cgroup in cgroups}
        said = {each.folder: each for each in self._ask(deadline_s, "get", uuid, *folders)}
        return tuple(_answer(cgroup, said.get(folder)) for folder, cgroup in folders.items())

    def set_limit(
        self, uuid: str, cgroup: str, soft: int, hard: int | None, deadline_s: float
    ) -> LimitAnswer:
        most = "max" if hard is None else str(hard)
        said = self._ask(deadline_s, "set", uuid, root() + cgroup, str(soft), most)
        return LimitAnswer(cgroup, said[0].code if said else None)

    def _ask(self, deadline_s: float, *words: str) -> list[_Line]:
        """The lines of payloads/memory_limits.py, as many as came in time."""
        deadline = time.monotonic() + deadline_s
        try:
            child = spawn(command("memory_limits", *words), driver_environment())
        except OSError:
            return []
        found: list[_Line] = []
        decoder = msgspec.json.Decoder(_Line)
        try:
            found.extend(map(decoder.decode, child.lines(deadline)))
        except TimeoutError:
            pass
        finally:
            child.hang_up()
            child.end(_GRACE_S)
        return found

    def device_memory(self) -> Sequence[DmemUse]:
        """What each group has on each GPU, where it has anything or a limit; by the GPU's PCI address."""
        if not self.counts_device_memory:
            return ()
        found: dict[str, tuple[dict[str, int | None], ...]] = {}
        for path in _groups():
            current = _current(path)
            if current:
                folder = root() + path
                found[path] = (current, _values(f"{folder}/dmem.max"), _values(f"{folder}/dmem.min"))
        return tuple(use for path in found for use in _uses(path, found))


def _uses(path: str, found: dict[str, tuple[dict[str, int | None], ...]]) -> Iterator[DmemUse]:
    current, most, least = found[path]
    for region, used in current.items():
        below = sum(found[each][0].get(region) or 0 for each in found if _is_next_below(each, path, found))
        hard, soft = most.get(region), least.get(region) or 0
        if used or hard is not None or soft:
            limit = CgroupLimit(path, hard, soft, used)
            address = region[len(_REGION) :].partition("/")[0]
            yield DmemUse(address, max(0, (used or 0) - below), DmemFacts(limit, workload(path)))


def _is_next_below(path: str, above: str, found: dict[str, tuple[dict[str, int | None], ...]]) -> bool:
    """Whether *above* is the nearest group above *path* that has a figure."""
    parent = path.rpartition("/")[0]
    while parent and parent not in found:
        parent = parent.rpartition("/")[0]
    return parent == above


def _groups() -> Iterator[str]:
    """Every group below the root, none longer than the kernel lets a path be."""
    start = root()
    for folder, folders, _ in islice(os.walk(start), _MAX_GROUPS):
        folders.sort()
        if folder != start:
            yield folder[len(start) :]


def _current(path: str) -> dict[str, int | None]:
    if os.environ.get("VRAM_VIRTUAL_GPU"):
        from vram.host.local.system_memory import virtual_file

        has_controller = os.path.exists(f"{root()}{path}/dmem.max")
        return _parse(virtual_file(f"cgroup{path}/dmem.current")) if has_controller else {}
    return _values(f"{root()}{path}/dmem.current")


def _values(path: str) -> dict[str, int | None]:
    return _parse(_read(path))


def _parse(text: str) -> dict[str, int | None]:
    """The lines of NVIDIA's GPUs; "max" is None."""
    pairs = (line.split() for line in text.splitlines() if line.startswith(_REGION))
    return {
        pair[0]: int(pair[1]) if pair[1].isdigit() else None
        for pair in pairs
        if len(pair) == 2 and (pair[1].isdigit() or pair[1] == "max")
    }


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_NBYTES)
    except OSError:
        return ""
