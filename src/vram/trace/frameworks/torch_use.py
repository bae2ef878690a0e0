"""What PyTorch used the driver's memory for: its segments among the driver's allocations, and its tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Literal

from msgspec.structs import replace

from vram.model.trace import KIND_NUMBERS, BlockUse, CallStack, LeakSite, Site, TraceView
from vram.trace.analysis import end_of_work, times_grow
from vram.trace.frameworks.torch_history import ALLOC as BLOCK_ALLOC
from vram.trace.frameworks.torch_history import FREE as BLOCK_FREE
from vram.trace.frameworks.torch_history import TAKES, Block, GpuHistory, Snapshot, stack_of
from vram.trace.reader import ALLOC, MAP, Trace

NAME = "torch"
MISSING = (
    "PyTorch's history is missing: the process ended before it could be read (killed, or os._exit); what the"
    " driver was asked for is complete"
)
FROM_OOM = (
    "PyTorch's history ends where memory ran out; the process ended before the rest could be read (killed, or"
    " os._exit)"
)
TOO_SHORT = (
    "PyTorch's history does not reach back to the peak: it keeps the newest events of each GPU, here {count}"
)
TURNED_OFF = "the program recorded no history of PyTorch's blocks, or turned it off: their stacks are unknown"

# ---- segments, matched by address ----
#
# A segment that stays is a cache, not a leak. What both sides saw also says which GPU of the view a device of
# the process is, and how far their clocks are apart.

_PHYSICAL = KIND_NUMBERS["physical"]
_SEGMENT_KINDS = tuple(KIND_NUMBERS[kind] for kind in ("device", "managed", "stream-ordered", "physical"))
MAX_LATE_NS = 1_000_000_000
"""Clocks that differ by more were set meanwhile, or the address is another allocation's."""


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

    def __init__(self, trace: Trace, snapshots: Mapping[int, Snapshot]) -> None:
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

    def lateness_ns(self, process: int, zero_ns: int) -> int:
        """How much later PyTorch's times are than the driver's for the same segments; 0 where none match.
        *zero_ns* is PyTorch's clock at the view's zero."""
        late = []
        for each in self._snapshots[process].traces:
            for action, address, time_us in zip(each.action, each.address, each.time_us, strict=True):
                driver_ns = self._matched[process].get(address) if action in TAKES else None
                if driver_ns is not None:
                    late.append(time_us * 1000 - zero_ns - driver_ns)
        close = [each for each in late if abs(each) < MAX_LATE_NS]
        return int(median(close)) if close else 0

    def judge_leaks(self, view: TraceView) -> Iterator[LeakSite]:
        """The leaks of *view*; where they are segments, judged by what the same stack left otherwise."""
        ends = {each.index: end_of_work(each.last_allocation_ns, each.last_ns) for each in view.processes}
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
                end=ends.get(site.process, 0),
                freed=row.freed > 0,
            )
            yield row if grows else replace(row, verdict="in use at exit")


def _mapped_handles(
    trace: Trace, processes: set[int], ranges: Mapping[int, _Ranges]
) -> dict[tuple[int, int], int]:
    """(process, handle) of physical memory that is mapped into segments that expand, and its device."""
    if not processes:
        return {}
    handles: dict[int, tuple[int, int]] = {}
    devices: dict[tuple[int, int], int] = {}
    for batch in trace.events():
        for event in batch.rows():
            if event.process not in processes:
                continue
            if event.type == ALLOC and event.kind == _PHYSICAL:
                handles[event.allocation] = event.process, event.address
            elif event.type == MAP and event.allocation in handles:
                device = ranges[event.process].device(event.address, event.nbytes)
                if device is not None:
                    devices[handles[event.allocation]] = device
    return devices


# ---- tensors at the peak and at the end, by stack ----

Intern = Callable[[CallStack], int]
"""Returns the number of a stack in the view; one that is new is added to it."""


def block_use(
    process: int,
    framework: str,
    gpu: int | None,
    at: Literal["peak", "end"],
    reserved: int,
    used: int,
    sites: tuple[Site, ...] = (),
    note: str | None = None,
) -> BlockUse:
    return BlockUse(
        process=process,
        framework=framework,
        gpu=gpu,
        at=at,
        reserved_nbytes=reserved,
        used_nbytes=used,
        sites=sites,
        note=note,
    )


class TorchUse:
    """One process's PyTorch on one GPU: the process's *device*, which is *gpu* in the view. *zero_ns* is
    PyTorch's clock at the view's zero."""

    def __init__(
        self, snapshot: Snapshot, device: int, *, gpu: int | None, process: int, zero_ns: int, intern: Intern
    ) -> None:
        self.snapshot, self.gpu, self.process, self._zero_ns = snapshot, gpu, process, zero_ns
        self.history = GpuHistory(snapshot, device)
        self._intern = intern
        self._numbers: dict[int, int] = {}

    def time_us(self, time_ns: int) -> int:
        """PyTorch's clock at a moment of the view."""
        return (time_ns + self._zero_ns) // 1000

    def time_ns(self, time_us: int) -> int:
        """The moment of the view at a time of PyTorch's clock."""
        return max(0, time_us * 1000 - self._zero_ns)

    def _stack(self, number: int) -> int:
        if number not in self._numbers:
            self._numbers[number] = self._intern(stack_of(self.snapshot, number))
        return self._numbers[number]

    def _sites(self, blocks: Iterable[Block]) -> tuple[Site, ...]:
        sums: dict[int, list[int]] = {}
        for each in blocks:
            total = sums.setdefault(each.stack, [0, 0])
            total[0] += 1
            total[1] += each.nbytes
        sites = (self.site(stack, count, nbytes) for stack, (count, nbytes) in sums.items())
        return tuple(sorted(sites, key=lambda site: -site.nbytes))

    def site(self, stack: int, count: int, nbytes: int) -> Site:
        return Site(
            stack=self._stack(stack),
            kind="torch block",
            gpu=self.gpu,
            process=self.process,
            count=count,
            nbytes=nbytes,
        )

    def at_end(self) -> BlockUse:
        """What tensors held when the snapshot was taken."""
        live = [each for each in self.history.blocks if each.end is None]
        without_stacks = live and not any(each.stack for each in live) and not self.history.events.action
        note = FROM_OOM if self.snapshot.at == "oom" else TURNED_OFF if without_stacks else None
        used = sum(each.nbytes for each in live)
        return block_use(
            self.process, NAME, self.gpu, "end", self.history.reserved_end, used, self._sites(live), note
        )

    def at_peak(self, peak_ns: int) -> BlockUse:
        """What tensors held when the GPU's memory, taken at *peak_ns* of the view, was fullest."""
        moment = self.history.moment_of_most_use(self.time_us(peak_ns))
        if moment is None:
            note = TOO_SHORT.format(count=len(self.history.events.action))
            return block_use(self.process, NAME, self.gpu, "peak", 0, 0, note=note)
        sites = self._sites(self.history.live_at(moment.event))
        return block_use(self.process, NAME, self.gpu, "peak", moment.reserved, moment.used, sites)

    def never_freed(self) -> Iterator[LeakSite]:
        """A row for each stack that tensors were live of at the end.

        "growing" as at the driver (trace/analysis.py): they go on to the end, so that a model that is loaded
        once and kept is not called a leak.
        """
        events = self.history.events
        times = [
            events.time_us[at]
            for at, action in enumerate(events.action)
            if action in (BLOCK_ALLOC, BLOCK_FREE)
        ]
        begin, end = (min(times), max(times)) if times else (0, 0)
        freed: dict[int, int] = {}
        live: dict[int, list[Block]] = {}
        since: dict[int, int] = {}
        for each in self.history.blocks:
            made_us = begin if each.begin is None else events.time_us[each.begin]
            since[each.stack] = min(made_us, since.get(each.stack, made_us))
            if each.end is None:
                live.setdefault(each.stack, []).append(each)
            else:
                freed[each.stack] = freed.get(each.stack, 0) + 1
        for stack, blocks in live.items():
            made = [begin if each.begin is None else events.time_us[each.begin] for each in blocks]
            known = [time for time, each in zip(made, blocks, strict=True) if each.begin is not None]
            growing = stack != 0 and times_grow(known, since=since[stack], end=end, freed=stack in freed)
            yield LeakSite(
                site=self.site(stack, len(blocks), sum(each.nbytes for each in blocks)),
                verdict="growing" if growing else "in use at exit",
                first_ns=self.time_ns(min(made)),
                last_ns=self.time_ns(max(made)),
                freed=freed.get(stack, 0),
                largest=max(each.nbytes for each in blocks),
            )
