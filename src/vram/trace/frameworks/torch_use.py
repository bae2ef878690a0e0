"""What PyTorch used the driver's memory for: tensors at the peak and at the end, by stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from vram.model.trace import BlockUse, CallStack, LeakSite, Site
from vram.trace.frameworks.torch_history import ALLOC, FREE, Block, GpuHistory, Snapshot, stack_of
from vram.trace.growth import times_grow

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


class TorchClock(NamedTuple):
    """From PyTorch's times, microseconds of the wall clock, to the view's, and back."""

    zero_ns: int
    """The wall clock at the view's zero."""

    def to_view(self, time_us: int) -> int:
        return time_us * 1000 - self.zero_ns

    def to_torch_us(self, view_ns: int) -> int:
        return (view_ns + self.zero_ns) // 1000


Intern = Callable[[CallStack], int]
"""Returns the number of a stack in the view; one that is new is added to it."""


class TorchUse:
    """One process's PyTorch on one GPU: the process's *device*, which is *gpu* in the view."""

    def __init__(
        self,
        snapshot: Snapshot,
        device: int,
        *,
        gpu: int | None,
        process: int,
        clock: TorchClock,
        intern: Intern,
    ) -> None:
        self.snapshot, self.gpu, self.process, self.clock = snapshot, gpu, process, clock
        self.history = GpuHistory(snapshot, device)
        self._intern = intern
        self._numbers: dict[int, int] = {}

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
        sites = (self._site(stack, count, nbytes) for stack, (count, nbytes) in sums.items())
        return tuple(sorted(sites, key=lambda site: -site.nbytes))

    def _site(self, stack: int, count: int, nbytes: int) -> Site:
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
        return BlockUse(
            process=self.process,
            framework=NAME,
            gpu=self.gpu,
            at="end",
            reserved_nbytes=self.history.reserved_end,
            used_nbytes=sum(each.nbytes for each in live),
            sites=self._sites(live),
            note=note,
        )

    def at_peak(self, peak_ns: int) -> BlockUse:
        """What tensors held when the GPU's memory, taken at *peak_ns* of the view, was fullest."""
        since_us = self.clock.to_torch_us(peak_ns)
        moment = self.history.moment_of_most_use(since_us)
        if moment is None:
            note = TOO_SHORT.format(count=len(self.history.events.action))
            return self._peak(0, 0, (), note)
        sites = self._sites(self.history.live_at(moment.event))
        return self._peak(moment.reserved, moment.used, sites, None)

    def _peak(self, reserved: int, used: int, sites: tuple[Site, ...], note: str | None) -> BlockUse:
        return BlockUse(
            process=self.process,
            framework=NAME,
            gpu=self.gpu,
            at="peak",
            reserved_nbytes=reserved,
            used_nbytes=used,
            sites=sites,
            note=note,
        )

    def never_freed(self) -> Iterator[LeakSite]:
        """A row for each stack that tensors were live of at the end.

        "growing" as at the driver (trace/growth.py): they go on to the end, so that a model that is loaded
        once and kept is not called a leak.
        """
        events = self.history.events
        times = [events.time_us[at] for at, action in enumerate(events.action) if action in (ALLOC, FREE)]
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
                site=self._site(stack, len(blocks), sum(each.nbytes for each in blocks)),
                verdict="growing" if growing else "in use at exit",
                first_ns=max(0, self.clock.to_view(min(made))),
                last_ns=max(0, self.clock.to_view(max(made))),
                freed=freed.get(stack, 0),
                largest=max(each.nbytes for each in blocks),
            )
