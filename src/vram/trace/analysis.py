"""From the reader's tables to the structs of ``model/trace.py``: stacks, verdicts, rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec.structs import replace

from vram.model.trace import (
    BLOCKS,
    KINDS_BY_NUMBER,
    MIN_CHURN,
    ON_GPU,
    BlockUse,
    CallStack,
    ChurnSite,
    EndReason,
    FailedAllocation,
    Frame,
    Gap,
    GapReason,
    GpuUse,
    HeldBefore,
    Holes,
    LeakSite,
    LiveTrace,
    Mark,
    MemoryKind,
    Site,
    TimelinePoint,
    TracedProcess,
    TraceView,
    Verdict,
    Window,
)
from vram.trace.native import (
    BEFORE,
    FAILURES,
    GAPS,
    HOLE_BLOCKS,
    HOLES,
    MARKS,
    PLACE,
    RESERVED,
    TIMELINE,
    GpuRow,
    LeftRow,
    NativeReader,
    SectionRow,
    SiteRow,
    Strings,
    damage_sentences,
    process_numbers,
)
from vram.trace.windows import FRAMEWORKS, WindowBuilder

LEAKABLE: frozenset[MemoryKind] = (ON_GPU - {"module", "graph"}) | BLOCKS | {"pinned host"}
"""Kinds of which never-freed allocations are judged."""

CHURNING: frozenset[MemoryKind] = frozenset(
    {"device", "managed", "stream-ordered", "physical", "pinned host", "array"}
)
_SHORT_LIFE_NS = 1_000_000_000

_ENDS: dict[int, EndReason] = {1: "exit", 2: "detached", 3: "disk full", 4: "write error", 5: "no cupti"}
_GAPS: dict[int, GapReason] = {1: "another subscriber", 2: "cupti shut down", 3: "detached"}
_STACKS = {1: "python", 2: "native"}
_DEEPEST = 512
_MAX_FRAMES = 4_000_000
_MAX_TEXT = 256 << 20
"""Of all stacks together: what is more is left out, from the outermost frame on. A trace of some kilobytes
can say that each of ten thousand stacks has the longest names, five hundred times."""
_MAX_NAME_LENGTH = 1024
_MIN_FRAMES, _MIN_TEXT = 16, 512
"""What each stack has in any case."""
_NO_END = 2**64 - 1


class StackTable:
    """The stacks of a pass, by the reader's number; 0 is the empty one. Reads on where the pass went on."""

    def __init__(self, reader: NativeReader) -> None:
        self._reader = reader
        self._nodes: Sequence[int] = ()
        self._places = b""
        self._strings = Strings(b"", ())
        self._frames: dict[int, Frame] = {}
        self._known: dict[int, CallStack] = {0: CallStack()}
        self._left, self._text_left = _MAX_FRAMES, _MAX_TEXT

    def __getitem__(self, number: int) -> CallStack:
        found = self._known.get(number)
        if found is None:
            if 2 * number > len(self._nodes):
                self._strings = self._reader.strings()
                self._places = self._reader.places()
                self._nodes = self._reader.nodes()
            found = self._known[number] = CallStack(tuple(self._walk(number)))
        return found

    def _frame(self, place: int) -> Frame:
        found = self._frames.get(place)
        if found is None:
            line, language, function, file, _ = PLACE.unpack_from(self._places, (place - 1) * PLACE.size)
            name = "native" if language else "python"
            texts = self._strings[function][:_MAX_NAME_LENGTH], self._strings[file][:_MAX_NAME_LENGTH]
            found = Frame(name, texts[0], texts[1], line)  # type: ignore[arg-type]
            self._frames[place] = found
        return found

    def _walk(self, number: int) -> Iterable[Frame]:
        most, text = min(_DEEPEST, max(self._left, _MIN_FRAMES)), max(self._text_left, _MIN_TEXT)
        # A node's parent has a smaller number: this ends.
        while number and most > 0 and text > 0:
            frame = self._frame(self._nodes[2 * number - 1])
            yield frame
            number = self._nodes[2 * number - 2]
            nbytes = len(frame.function) + len(frame.file)
            most, text = most - 1, text - nbytes
            self._left, self._text_left = self._left - 1, self._text_left - nbytes


class ViewBuilder:
    """The parts of a view, from the tables of a pass that is over (or, for LiveTrace, goes on)."""

    def __init__(self, reader: NativeReader, stacks: StackTable) -> None:
        self._reader = reader
        self._strings = reader.strings()
        self._sections = reader.sections()
        self._process = process_numbers(self._sections)
        self._gpus = reader.gpus()
        self._sites = reader.sites()
        self._stacks = stacks
        self._stack_numbers = {0: 0}

    def _stack(self, number: int) -> int:
        """The number in the view of a stack of the reader: in the order in which they are met."""
        return self._stack_numbers.setdefault(number, len(self._stack_numbers))

    def _numbered_stacks(self) -> tuple[CallStack, ...]:
        return tuple(self._stacks[number] for number in self._stack_numbers)

    # ---- parts ----

    def processes(self) -> tuple[TracedProcess, ...]:
        usable = (row for row in self._sections if row.usable)
        return tuple(self._traced_process(index, row) for index, row in enumerate(usable))

    def _traced_process(self, index: int, row: SectionRow) -> TracedProcess:
        text = [self._strings[number] for number in row.texts]
        return TracedProcess(
            index=index,
            pid=row.pid,
            parent_pid=row.parent_pid,
            command=tuple(text[1].rstrip("\0").split("\0")) if text[1] else (),
            executable=text[2],
            python=text[3] or None,
            attached=row.how == 2,
            forked=bool(row.flags & 1),
            stacks=_STACKS.get(row.stacks, "none"),  # type: ignore[arg-type]
            started_wall_ns=row.wall_ns,
            first_ns=row.first_ns,
            last_ns=row.last_ns,
            last_allocation_ns=row.last_allocation_ns,
            end=_ENDS.get(row.end_reason, "cut"),
            end_errno=row.end_errno,
            threads=row.threads,
            events=row.events,
            unreadable_chunks=row.unreadable_chunks,
            missing_chunks=row.missing_chunks,
            unknown_frees=row.unknown_frees,
            missing_frees=row.replaced,
            host=text[6] or None,
        )

    def gpu(self, row: int) -> int | None:
        number = self._gpus[row].number
        return None if number < 0 else number

    def gpus(self) -> tuple[GpuUse, ...]:
        used = [row for row in self._gpus if row.number >= 0 or row.allocations]
        return tuple(
            map(self._gpu_use, sorted(used, key=lambda row: row.number if row.number >= 0 else 1 << 32))
        )

    def _gpu_use(self, row: GpuRow) -> GpuUse:
        hosts = {section.texts[6] for section in self._sections if section.cluster == row.cluster}
        return GpuUse(
            gpu=None if row.number < 0 else row.number,
            peak_nbytes=row.peak_nbytes,
            peak_ns=row.peak_ns,
            end_nbytes=row.live_nbytes,
            allocated_nbytes=row.allocated_nbytes,
            allocations=row.allocations,
            frees=row.frees,
            name=self._strings[row.name] or None,
            pci=self._strings[row.pci] or None,
            total_nbytes=row.total_nbytes or None,
            host=self._strings[hosts.pop()] or None if len(hosts) == 1 and row.number >= 0 else None,
        )

    def _site(self, row: SiteRow, count: int, nbytes: int) -> Site:
        return Site(
            stack=self._stack(row.stack),
            kind=KINDS_BY_NUMBER[row.kind],
            gpu=self.gpu(row.gpu),
            process=self._process[row.process],
            count=count,
            nbytes=nbytes,
        )

    def allocations(self) -> tuple[Site, ...]:
        return by_size(self._site(row, row.made, row.nbytes) for row in self._sites if row.made)

    def peak(self) -> tuple[Site, ...]:
        return self._peak_sites(row for row in self._sites if KINDS_BY_NUMBER[row.kind] not in BLOCKS)

    def _peak_sites(self, rows: Iterable[SiteRow]) -> tuple[Site, ...]:
        return by_size(self._site(row, row.peak_count, row.peak_nbytes) for row in rows if row.peak_count)

    def _live_sites(self, rows: Iterable[SiteRow]) -> tuple[Site, ...]:
        return by_size(self._site(row, row.live_count, row.live_nbytes) for row in rows if row.live_count)

    def leaks(self) -> tuple[LeakSite, ...]:
        found = [
            leak
            for row in self._sites
            if KINDS_BY_NUMBER[row.kind] in LEAKABLE
            for leak in self._leaks_of(row)
        ]
        order = get_args(Verdict)
        return tuple(sorted(found, key=lambda leak: (order.index(leak.verdict), -leak.site.nbytes)))

    def _leaks_of(self, row: SiteRow) -> Iterable[LeakSite]:
        section = self._sections[row.process]
        has_python = bool(self._strings[section.texts[3]])
        # In C and C++, to reset or destroy a context is a way to free what was allocated in it.
        if row.leaked.number and has_python:
            yield self._leak(row, row.leaked, "leaked")
        if row.kept.number:
            left: Verdict = "in use at exit"
            if not has_python and _ENDS.get(section.end_reason) == "exit":
                left = "not freed"
            yield self._leak(row, row.kept, "growing" if self._is_growing(row) else left)
        if row.cache.number:  # a framework's blocks lie in it: they are judged, not the cache
            yield self._leak(row, row.cache, "in use at exit")

    def _is_growing(self, row: SiteRow) -> bool:
        kept, section = row.kept, self._sections[row.process]
        return is_growing(
            count=kept.number,
            quarters=kept.quarters,
            first=kept.first_ns,
            last=kept.last_ns,
            since=row.first_ns,
            end=end_of_work(section.last_allocation_ns, section.last_ns),
            freed=row.freed > 0,
        )

    def _leak(self, row: SiteRow, left: LeftRow, verdict: Verdict) -> LeakSite:
        return LeakSite(
            site=self._site(row, left.number, left.nbytes),
            verdict=verdict,
            first_ns=left.first_ns,
            last_ns=left.last_ns,
            freed=row.freed,
            largest=left.largest,
        )

    def churn(self) -> tuple[ChurnSite, ...]:
        chosen = [
            row
            for row in self._sites
            if row.freed >= MIN_CHURN
            and row.median_life_ns <= _SHORT_LIFE_NS
            and KINDS_BY_NUMBER[row.kind] in CHURNING
        ]
        return tuple(map(self._churn, sorted(chosen, key=lambda row: -row.freed)))

    def _churn(self, row: SiteRow) -> ChurnSite:
        section = self._sections[row.process]
        seconds = max((section.last_ns - section.first_ns) / 1e9, 1e-9)
        return ChurnSite(
            site=self._site(row, row.made, row.nbytes),
            median_life_ns=row.median_life_ns,
            per_second=row.made / seconds,
        )

    def timeline(self) -> tuple[TimelinePoint, ...]:
        points = (
            TimelinePoint(time_ns, self.gpu(gpu), highest, lowest, last)
            for time_ns, highest, lowest, last, gpu, _ in self._reader.rows(TIMELINE)
        )
        return tuple(sorted(points, key=lambda point: point.time_ns))

    def holes(self) -> tuple[Holes, ...]:
        blocks = list(self._reader.rows(HOLE_BLOCKS))
        found = []
        for *figures, first, count, gpu, process, _, _ in self._reader.rows(HOLES):
            at_ns, live, spanned, holes, hole_nbytes, largest = figures
            shown = (block[:3] for block in blocks[first : first + count])
            found.append(
                Holes(
                    gpu=self.gpu(gpu),
                    process=self._process[process],
                    at_ns=at_ns,
                    live_nbytes=live,
                    spanned_nbytes=spanned,
                    holes=holes,
                    hole_nbytes=hole_nbytes,
                    largest_hole=largest,
                    blocks=tuple((address, nbytes, self._stack(stack)) for address, nbytes, stack in shown),
                )
            )
        return tuple(found)

    def failures(self) -> tuple[FailedAllocation, ...]:
        return tuple(
            FailedAllocation(
                process=self._process[process],
                time_ns=time_ns,
                kind=KINDS_BY_NUMBER.get(kind, "device"),
                gpu=self.gpu(gpu),
                nbytes=nbytes,
                result=result,
                stack=self._stack(stack),
            )
            for time_ns, nbytes, result, process, kind, stack, gpu in self._reader.rows(FAILURES)
        )

    def gaps(self) -> tuple[Gap, ...]:
        return tuple(
            Gap(self._process[process], _GAPS.get(reason, "unknown"), start, None if end == _NO_END else end)
            for start, end, process, reason in self._reader.rows(GAPS)
        )

    def marks(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(self._process[process], time_ns, self._strings[text])
            for time_ns, process, text in self._reader.rows(MARKS)
        )

    def before(self) -> tuple[HeldBefore, ...]:
        return tuple(
            HeldBefore(self._process[process], self.gpu(gpu), nbytes, self._strings[source])
            for _, nbytes, process, source, gpu, _ in self._reader.rows(BEFORE)
        )

    def frameworks(self) -> tuple[BlockUse, ...]:
        """What the blocks in the trace say; what frameworks said themselves is added by ``frameworks``."""
        blocks: dict[tuple[int, int, int], list[SiteRow]] = defaultdict(list)
        for row in self._sites:
            if KINDS_BY_NUMBER[row.kind] in BLOCKS:
                blocks[row.process, row.gpu, row.kind].append(row)
        reserved = {
            (process, gpu, kind): (at_peak, at_end)
            for gpu, process, kind, _, at_peak, at_end in self._reader.rows(RESERVED)
        }
        found = []
        for (process, gpu, kind), rows in sorted(blocks.items()):
            sites_then = self._peak_sites(rows), self._live_sites(rows)
            taken_then = reserved.get((process, gpu, kind), (0, 0))
            for at, sites, taken in zip(("peak", "end"), sites_then, taken_then, strict=True):
                found.append(
                    BlockUse(
                        process=self._process[process],
                        framework=FRAMEWORKS[KINDS_BY_NUMBER[kind]],
                        gpu=self.gpu(gpu),
                        at=at,  # type: ignore[arg-type]
                        reserved_nbytes=taken,
                        used_nbytes=sum(site.nbytes for site in sites),
                        sites=sites,
                    )
                )
        return tuple(found)

    def windows(self, duration_ns: int) -> tuple[Window, ...]:
        builder = WindowBuilder(self._sites, self._site, self._is_growing)
        before = self.before()
        return tuple(
            builder.window(row, self.gpu(row.gpu), before, duration_ns) for row in self._reader.windows()
        )

    # ---- views ----

    def view(self, paths: Sequence[str]) -> TraceView:
        totals = self._reader.totals()
        view = TraceView(
            paths=tuple(paths),
            processes=self.processes(),
            stacks=(),
            duration_ns=totals.duration_ns,
            events=totals.events,
            gpus=self.gpus(),
            allocations=self.allocations(),
            peak=self.peak(),
            leaks=self.leaks(),
            timeline=self.timeline(),
            churn=self.churn(),
            holes=self.holes(),
            failures=self.failures(),
            failures_in_all=totals.failures,
            gaps=self.gaps(),
            marks=self.marks(),
            before=self.before(),
            host_peak_nbytes=totals.host_peak_nbytes,
            frameworks=self.frameworks(),
            windows=self.windows(totals.duration_ns),
            damage=damage_sentences(self._reader.damage(), self._sections, paths),
        )
        return replace(view, stacks=self._numbered_stacks())  # numbered while the parts were made

    def live_trace(self) -> LiveTrace:
        totals = self._reader.totals()
        sites = self._live_sites(self._sites)
        return LiveTrace(
            processes=self.processes(),
            stacks=self._numbered_stacks(),
            gpus=self.gpus(),
            sites=sites,
            timeline=self.timeline(),
            duration_ns=totals.duration_ns,
            events=totals.events,
            failures=totals.failures,
            host_nbytes=totals.host_live_nbytes,
        )


def by_size(sites: Iterable[Site]) -> tuple[Site, ...]:
    return tuple(sorted(sites, key=lambda site: (-site.nbytes, -site.count)))


# ---- is what one place left behind growing? ----
#
# In C and C++, whose programs free what they allocate, what is left at the end was not freed. A Python object
# may live to the end: a trace cannot tell whether its memory is still needed. What it can tell is whether a
# place went on to the end: weights and buffers are loaded at some time and then stay as they are; a leak is
# made again and again, as long as the program works. A program that ends right after loading looks like one
# that leaks.

MIN_SAMPLES = 3
QUARTERS = 3
MAX_EXIT_NS = 100_000_000


def end_of_work(last_allocation: int, end: int) -> int:
    """When a program's work ended: with its last allocation, where only its exit came after that."""
    return last_allocation if end - last_allocation <= MAX_EXIT_NS else end


def is_growing(
    *, count: int, quarters: int, first: int, last: int, since: int, end: int, freed: bool
) -> bool:
    """Whether *count* allocations of a place, made from *first* to *last* and never freed, go on to the end.

    *since* is when the place first allocated anything, *end* the end of the work, *quarters* has a bit
    for each quarter of that time in which some of them were made. They must

    - be at least three, from at least three quarters;
    - where others of the same place were freed, begin in the first quarter: else the place keeps its latest
      ones only, and frees the older ones;
    - reach the last tenth of that time, or be no further from the end than three times their usual distance.
    """
    if count < MIN_SAMPLES or quarters.bit_count() < QUARTERS or (freed and not quarters & 1):
        return False
    usual = (last - first) // (count - 1)
    return end - last <= max((end - since) // 10, 3 * usual)


def times_grow(times: Sequence[int], *, since: int, end: int, freed: bool) -> bool:
    """The same, where each allocation's time is known."""
    if len(times) < MIN_SAMPLES:
        return False
    quarters = 0
    for time in times:
        if time > since and end > since:
            quarters |= 1 << min(3, (time - since) // ((end - since) // 4 + 1))
        else:
            quarters |= 1
    first, last = min(times), max(times)
    return is_growing(
        count=len(times), quarters=quarters, first=first, last=last, since=since, end=end, freed=freed
    )
