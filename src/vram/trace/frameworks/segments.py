"""Which allocations of the driver are segments of PyTorch's allocator: matched by address.

A segment that stays is a cache, not a leak. What both sides saw also says which GPU of the view a device of
the process is, and how far their clocks are apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Protocol

from msgspec.structs import replace

from vram.model.trace import KIND_NUMBERS, CallStack, LeakSite, TracedProcess, TraceView
from vram.trace.frameworks.torch_history import TAKES, Snapshot
from vram.trace.frameworks.torch_use import TorchClock
from vram.trace.growth import end_of_work, times_grow
from vram.trace.reader import ALLOC, MAP, EventBatch, LiveAllocation

_PHYSICAL = KIND_NUMBERS["physical"]
_SEGMENT_KINDS = tuple(KIND_NUMBERS[kind] for kind in ("device", "managed", "stream-ordered", "physical"))
MAX_LATE_NS = 1_000_000_000
"""Clocks that differ by more were set meanwhile, or the address is another allocation's."""


class BlobSource(Protocol):
    """What is needed of a trace."""

    def blobs(self) -> Iterator[tuple[int, str, bytes]]: ...
    def live(self) -> Iterator[LiveAllocation]: ...
    def events(self) -> Iterator[EventBatch]: ...


class _Ranges:
    """Address ranges of one process's segments, and the device of each."""

    def __init__(self, snapshot: Snapshot) -> None:
        segments = sorted((each[1], each[1] + each[2], each[0]) for each in snapshot.segments)
        self._begins = [begin for begin, _, _ in segments]
        self._rest = [(end, device) for _, end, device in segments]

    def device(self, address: int, nbytes: int) -> int | None:
        """The device whose segment holds the range; None where none does."""
        at = bisect_right(self._begins, address) - 1
        if at < 0 or address + nbytes > self._rest[at][0]:
            return None
        return self._rest[at][1]


class TorchSegments:
    """The segments of every process that has a snapshot, at the end of the trace."""

    def __init__(self, trace: BlobSource, snapshots: Mapping[int, Snapshot]) -> None:
        self._snapshots = snapshots
        ranges = {process: _Ranges(snapshot) for process, snapshot in snapshots.items()}
        expandable = {process for process, each in snapshots.items() if any(row[3] for row in each.segments)}
        handles = _mapped_handles(trace, expandable, ranges)
        self._gpus: dict[tuple[int, int], Counter[int | None]] = {}
        self._matched: dict[int, dict[int, int]] = {process: {} for process in snapshots}
        """By process: address of a segment to the driver's time."""
        self._ours: Counter[tuple[int, int | None, int, CallStack]] = Counter()
        self._others: dict[tuple[int, int | None, int, CallStack], list[int]] = {}
        """Times of what the same stacks allocated otherwise."""
        for each in trace.live():
            if each.process not in ranges:
                continue
            device = handles.get((each.process, each.address)) if each.kind == _PHYSICAL else None
            if device is None:
                device = ranges[each.process].device(each.address, each.nbytes)
            key = each.process, each.gpu, each.kind, each.stack
            if device is None or each.kind not in _SEGMENT_KINDS:
                self._others.setdefault(key, []).append(each.time_ns)
                continue
            self._ours[key] += 1
            self._matched[each.process][each.address] = each.time_ns
            self._gpus.setdefault((each.process, device), Counter())[each.gpu] += 1

    def gpu(self, process: int, device: int) -> int | None:
        """The view's number of a process's device: processes may number GPUs differently."""
        seen = self._gpus.get((process, device))
        return seen.most_common(1)[0][0] if seen else device

    def lateness_ns(self, process: int, clock: TorchClock) -> int:
        """How much later PyTorch's times are than the driver's for the same segments; 0 where none match."""
        late = []
        for each in self._snapshots[process].traces:
            for action, address, time_us in zip(each.action, each.address, each.time_us, strict=True):
                driver_ns = self._matched[process].get(address) if action in TAKES else None
                if driver_ns is not None:
                    late.append(clock.to_view(time_us) - driver_ns)
        close = [each for each in late if abs(each) < MAX_LATE_NS]
        return int(median(close)) if close else 0

    def judged_leaks(self, view: TraceView) -> Iterator[LeakSite]:
        """The leaks of *view*; where they are segments, judged by what the same stack left otherwise."""
        for row in view.leaks:
            site = row.site
            key = site.process, site.gpu, KIND_NUMBERS[site.kind], view.stacks[site.stack]
            if row.verdict == "in use at exit" or not self._ours[key]:
                yield row
                continue
            times = self._others.get(key, [])
            grows = row.verdict != "growing" or times_grow(
                times,
                since=min(times, default=0),
                end=_end(view.processes, site.process),
                freed=row.freed > 0,
            )
            yield row if grows else replace(row, verdict="in use at exit")


def _end(processes: tuple[TracedProcess, ...], index: int) -> int:
    ends = (end_of_work(each.last_allocation_ns, each.last_ns) for each in processes if each.index == index)
    return next(ends, 0)


def _mapped_handles(
    trace: BlobSource, processes: set[int], ranges: Mapping[int, _Ranges]
) -> dict[tuple[int, int], int]:
    """(process, handle) of physical memory that is mapped into segments that expand, and its device."""
    if not processes:
        return {}
    handles: dict[int, tuple[int, int]] = {}
    devices: dict[tuple[int, int], int] = {}
    for batch in trace.events():
        for at, what in enumerate(batch.type):
            process = batch.process[at]
            if process not in processes or what not in (ALLOC, MAP):
                continue
            if what == ALLOC and batch.kind[at] == _PHYSICAL:
                handles[batch.allocation[at]] = process, batch.address[at]
            elif what == MAP and batch.allocation[at] in handles:
                device = ranges[process].device(batch.address[at], batch.nbytes[at])
                if device is not None:
                    devices[handles[batch.allocation[at]]] = device
    return devices
