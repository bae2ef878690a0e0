"""The meaning of a trace, as simply as Python can say it: what the reader's answers are compared with.

Events are tuples (section, writer, time_ns, name, arguments); a writer's are in its order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.trace.writer import KINDS, SPACES

ON_GPU = {"device", "managed", "stream-ordered", "graph", "physical", "array", "module"}
LEAKABLE = (ON_GPU - {"module", "graph"}) | {"pinned host"} | {kind for kind in KINDS if KINDS[kind] >= 16}
OUTLIVE_CONTEXT = {"stream-ordered", "physical", "physical host", "pool"}
HOST = {"pinned host", "registered host", "physical host"}
MIB = 1 << 20


@dataclass(frozen=True)
class Event:
    section: int
    writer: int
    time_ns: int
    name: str
    kind: str = "device"
    address: int = 0
    nbytes: int = 0
    gpu: int | None = None
    context: int = 0
    stack: int = 0
    handle: int = 0


@dataclass
class Memory:
    event: Event
    references: int = 1
    maps: int = 0
    in_framework: bool = False

    @property
    def site(self) -> tuple[int, str, int | None, int]:
        return self.event.stack, self.event.kind, self.event.gpu, self.event.section


@dataclass
class Peak:
    nbytes: int = 0
    time_ns: int = 0
    sites: dict[tuple[int, str, int | None, int], list[int]] = field(default_factory=dict)
    ranges: list[tuple[int, int, int]] = field(default_factory=list)


Site = tuple[int, str, int | None, int]
Layer = tuple[int | None, str]
"""A GPU, and "device" for the driver's memory or a kind of blocks."""


def layer_of(kind: str) -> str | None:
    if kind in ON_GPU:
        return "device"
    return kind if KINDS[kind] >= 16 else None


@dataclass
class Window:
    """From *begin* on: [count, bytes] of sites when it began and at their layer's highest moment; levels."""

    begin: int
    end: int
    quarters: int = 0
    base: dict[Site, list[int]] = field(default_factory=dict)
    earlier: dict[Site, tuple[int, int, int]] = field(default_factory=dict)
    highest: dict[Layer, tuple[int, int]] = field(default_factory=dict)
    highest_sites: dict[Layer, dict[Site, list[int]]] = field(default_factory=dict)
    lowest: dict[Layer, list[int]] = field(default_factory=dict)

    def bound(self) -> float:
        quarter = (self.end - self.begin) // 4
        return self.begin + self.quarters * quarter if self.quarters < 4 else float("inf")


def merged(events: Iterable[Event]) -> Iterator[Event]:
    """In the order of time; at the same time what is no allocation first, then by writer."""
    queues: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        queues.setdefault((event.section, event.writer), []).append(event)
    latest = dict.fromkeys(queues, 0)
    order = {key: index for index, key in enumerate(queues)}
    while queues:
        heads = {
            key: (max(queue[0].time_ns, latest[key]), queue[0].name == "alloc", order[key])
            for key, queue in queues.items()
        }
        first = min(heads, key=heads.__getitem__)
        event = queues[first].pop(0)
        latest[first] = heads[first][0]
        if not queues[first]:
            del queues[first]
        yield Event(**{**vars(event), "time_ns": latest[first]})


class Model:
    """Everything after all events."""

    def __init__(self, events: Iterable[Event], window: Window | None = None) -> None:
        self.window = window or Window(0, 0)
        self.live: dict[tuple[int, int, int], Memory] = {}
        self.detached: list[Memory] = []
        self.mappings: dict[tuple[int, int], tuple[Memory, Event]] = {}
        self.peaks: dict[int | None, Peak] = defaultdict(Peak)
        self.made: dict[tuple[int, str, int | None, int], list[int]] = {}
        self.since: dict[tuple[int, str, int | None, int], int] = {}
        self.freed: dict[tuple[int, str, int | None, int], int] = defaultdict(int)
        self.gpu_frees: dict[int | None, int] = defaultdict(int)
        self.left: list[tuple[Memory, int]] = []
        self.unknown_frees: dict[int, int] = defaultdict(int)
        self.missing_frees: dict[int, int] = defaultdict(int)
        self.last: dict[int, int] = {}
        self.last_allocation: dict[int, int] = {}
        self.active: dict[int, int] = {}
        self.ended: set[int] = set()
        self.host_peak = 0
        self.count = 0
        for self.now, event in enumerate(merged(events), 1):
            while event.time_ns >= self.window.bound():
                self._cross()
            ends_context = event.name == "free" and event.kind == "context"
            if not ends_context and event.section not in self.ended:
                self.active[event.section] = self.now
            if event.name == "end":
                self.ended.add(event.section)
            self.last[event.section] = event.time_ns
            if event.name == "alloc":
                self.last_allocation[event.section] = event.time_ns
            self.count += event.name != "end"
            getattr(self, "_" + event.name)(event)
            self._measure(event)
        while self.window.quarters < 4:
            self._cross()

    # ---- events ----

    def _alloc(self, event: Event) -> None:
        key = (event.section, SPACES[KINDS[event.kind]], event.address)
        if there := self.live.get(key):
            if event.kind in ("opened", "imported"):
                there.references += 1
                return
            if there.references == 0:
                self.detached.append(self.live.pop(key))
            else:
                self.missing_frees[event.section] += 1
                self._ends(self.live.pop(key))
        memory = self.live[key] = Memory(event)
        made = self.made.setdefault(memory.site, [0, 0])
        self.since.setdefault(memory.site, event.time_ns)
        made[0] += 1
        made[1] += event.nbytes
        if KINDS[event.kind] >= 16:
            self._block(event)

    def _block(self, event: Event) -> None:
        for (section, space, address), memory in self.live.items():
            in_it = address <= event.address < address + memory.event.nbytes
            if section == event.section and space == 0 and KINDS[memory.event.kind] <= 2 and in_it:
                memory.in_framework = True

    def _free(self, event: Event) -> None:
        key = (event.section, SPACES[KINDS[event.kind]], event.address)
        memory = self.live.get(key)
        if memory and memory.references:
            memory.references -= 1
            if not memory.references and not memory.maps:
                self._ends(self.live.pop(key))
        elif event.kind != "context":
            self.unknown_frees[event.section] += 1
        if event.kind == "context":
            for other, memory in list(self.live.items()):
                held = memory.event
                in_it = other[0] == event.section and held.context == event.address
                if in_it and held.kind not in OUTLIVE_CONTEXT | {"context"}:
                    self.left.append((self.live.pop(other), self.now))

    def _map(self, event: Event) -> None:
        key = (event.section, event.address)
        if key in self.mappings:
            self._unmap_one(key)
        if memory := self.live.get((event.section, 2, event.handle)):
            memory.maps += 1
            self.mappings[key] = memory, event

    def _unmap(self, event: Event) -> None:
        inside = range(event.address, event.address + max(event.nbytes, 1))
        for key in sorted(self.mappings):
            if key[0] == event.section and key[1] in inside:
                self._unmap_one(key)

    def _unmap_one(self, key: tuple[int, int]) -> None:
        memory, _ = self.mappings.pop(key)
        memory.maps -= 1
        if memory.maps or memory.references:
            return
        if memory in self.detached:
            self.detached.remove(memory)
        else:
            del self.live[memory.event.section, 2, memory.event.address]
        self._ends(memory)

    def _retain(self, event: Event) -> None:
        if memory := self.live.get((event.section, 2, event.handle)):
            memory.references += 1

    def _end(self, event: Event) -> None:
        pass

    def _ends(self, memory: Memory) -> None:
        self._sink()
        self.freed[memory.site] += 1
        self.gpu_frees[memory.event.gpu] += memory.event.kind in ON_GPU

    # ---- what follows from them ----

    def all_live(self) -> list[Memory]:
        return [*self.live.values(), *self.detached]

    def on_gpu(self, gpu: int | None) -> int:
        live = (memory.event for memory in self.all_live())
        return sum(event.nbytes for event in live if event.gpu == gpu and event.kind in ON_GPU)

    # ---- the window ----

    def layers(self) -> dict[Layer, dict[Site, list[int]]]:
        """What is live, by layer and site."""
        found: dict[Layer, dict[Site, list[int]]] = {}
        for memory in self.all_live():
            name = layer_of(memory.event.kind)
            if name is not None:
                row = found.setdefault((memory.event.gpu, name), {}).setdefault(memory.site, [0, 0])
                row[0] += 1
                row[1] += memory.event.nbytes
        return found

    def level(self, layer: Layer) -> int:
        return sum(nbytes for _, nbytes in self.layers().get(layer, {}).values())

    def _cross(self) -> None:
        """A quarter of the window begins."""
        window, live = self.window, self.layers()
        names = {layer_of(kind) for kind in KINDS} - {None}
        for layer in [(gpu, name) for gpu in (None, 0, 1) for name in names if name]:
            level = sum(nbytes for _, nbytes in live.get(layer, {}).values())
            window.lowest.setdefault(layer, []).append(level)
            if window.quarters == 0:
                window.highest[layer] = level, window.begin
                window.highest_sites[layer] = live.get(layer, {})
        if window.quarters == 0:
            window.base = {site: row for sites in live.values() for site, row in sites.items()}
            window.earlier = {
                site: (count, nbytes, self.freed[site]) for site, (count, nbytes) in self.made.items()
            }
        window.quarters += 1

    def _sink(self) -> None:
        if self.window.quarters:
            for layer, lowest in self.window.lowest.items():
                lowest[-1] = min(lowest[-1], self.level(layer))

    def _rise(self, event: Event) -> None:
        window, name = self.window, layer_of(event.kind)
        if event.name != "alloc" or name is None or not window.quarters:
            return
        layer = (event.gpu, name)
        level = self.level(layer)
        if level > window.highest[layer][0]:
            window.highest[layer] = level, event.time_ns
            window.highest_sites[layer] = self.layers()[layer]

    def _measure(self, event: Event) -> None:
        self._rise(event)
        if event.kind == "context":
            self._sink()
        held = sum(memory.event.nbytes for memory in self.all_live() if memory.event.kind in HOST)
        self.host_peak = max(self.host_peak, held)
        nbytes = self.on_gpu(event.gpu) if event.name == "alloc" else 0
        if nbytes > self.peaks[event.gpu].nbytes:
            sites = self.sites(event.gpu)
            self.peaks[event.gpu] = Peak(nbytes, event.time_ns, sites, self.ranges(event.gpu))

    def sites(self, gpu: int | None) -> dict[tuple[int, str, int | None, int], list[int]]:
        found: dict[tuple[int, str, int | None, int], list[int]] = {}
        for memory in self.all_live():
            if memory.event.gpu == gpu and memory.event.kind in ON_GPU:
                row = found.setdefault(memory.site, [0, 0])
                row[0] += 1
                row[1] += memory.event.nbytes
        return found

    def ranges(self, gpu: int | None) -> list[tuple[int, int, int]]:
        """(section, address, bytes) of what has an address."""
        found = [
            (memory.event.section, memory.event.address, memory.event.nbytes)
            for (_, space, _), memory in self.live.items()
            if space == 0 and memory.event.gpu == gpu and memory.event.kind in ON_GPU
        ]
        for (section, address), (memory, event) in self.mappings.items():
            if memory.event.gpu == gpu and memory.event.kind in ON_GPU:
                found.append((section, address, event.nbytes))
        return sorted(found)

    def leaks(self) -> dict[tuple[tuple[int, str, int | None, int], str], list[int]]:
        """[count, bytes, first, last, largest] by site and verdict."""
        groups: dict[tuple[tuple[int, str, int | None, int], str], list[Event]] = defaultdict(list)
        judged: dict[tuple[int, str, int | None, int], list[Event]] = defaultdict(list)
        for memory, ended in self.left:
            went_on = self.active.get(memory.event.section, 0) > ended
            if memory.event.kind not in LEAKABLE:
                continue
            if memory.in_framework:
                groups[memory.site, "cache"].append(memory.event)
            elif went_on:
                groups[memory.site, "leaked"].append(memory.event)
            else:
                judged[memory.site].append(memory.event)
        for memory in self.all_live():
            if memory.event.kind in LEAKABLE:
                if memory.in_framework:
                    groups[memory.site, "cache"].append(memory.event)
                else:
                    judged[memory.site].append(memory.event)
        for site, events in judged.items():
            times, end = [event.time_ns for event in events], self._end_of_work(events[0].section)
            growing = self._grows(times, end, self.since[site], self.freed[site] > 0)
            groups[site, "growing" if growing else "in use at exit"] += events
        return {
            key: [
                len(events),
                sum(event.nbytes for event in events),
                min(event.time_ns for event in events),
                max(event.time_ns for event in events),
                max(event.nbytes for event in events),
            ]
            for key, events in groups.items()
        }

    def _end_of_work(self, section: int) -> int:
        """The last tenth of a second without an allocation is the program's exit."""
        last, end = self.last_allocation[section], self.last[section]
        return last if end - last <= 100_000_000 else end

    def _grows(self, times: list[int], end: int, since: int, freed: bool) -> bool:
        """Three or more, in three quarters of the place's time, and close to the end."""
        first, last = min(times), max(times)
        quarters = {
            min(3, (time - since) // ((end - since) // 4 + 1)) if time > since else 0 for time in times
        }
        if len(times) < 3 or len(quarters) < 3 or (freed and 0 not in quarters):
            return False
        return end - last <= max((end - since) // 10, 3 * ((last - first) // (len(times) - 1)))


def holes(ranges: list[tuple[int, int, int]], section: int) -> tuple[int, int, int, int]:
    """Holes, their bytes, the largest, and the bytes spanned; of what lies within 1 GiB of each other."""
    own = [(address, nbytes) for owner, address, nbytes in ranges if owner == section]
    found, spanned = [], 0
    start = end = own[0][0]
    for address, nbytes in own:
        if address - end > 1 << 30:
            spanned += end - start
            start = address
        elif address > end:
            found.append(address - end)
        end = max(end, address + nbytes)
    return len(found), sum(found), max(found, default=0), spanned + end - start
