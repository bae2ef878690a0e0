"""From the reader's tables to the structs of ``model/trace.py``: stacks, verdicts, rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from vram.model.trace import (
    BLOCKS,
    KINDS_BY_NUMBER,
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
)
from vram.trace.damage import damage_sentences
from vram.trace.growth import end_of_work, is_growing
from vram.trace.native import PLACE, GpuRow, LeftRow, NativeReader, SectionRow, SiteRow, Strings

LEAKABLE: frozenset[MemoryKind] = (ON_GPU - {"module", "graph"}) | BLOCKS | {"pinned host"}
"""Kinds of which never-freed allocations are judged."""

CHURNING: frozenset[MemoryKind] = frozenset(
    {"device", "managed", "stream-ordered", "physical", "pinned host", "array"}
)
_MIN_CHURN = 16
_SHORT_LIFE_NS = 1_000_000_000

_FRAMEWORKS = {"torch block": "torch", "cupy block": "cupy", "jax buffer": "jax", "framework block": "other"}
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
                self._read()
            found = self._known[number] = CallStack(tuple(self._walk(number)))
        return found

    def _read(self) -> None:
        self._strings = self._reader.strings()
        self._places = self._reader.places()
        self._nodes = self._reader.nodes()

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


class _Numbering:
    """The stacks that a view needs, numbered from 0 (the empty one) as they are met."""

    def __init__(self, table: StackTable) -> None:
        self._table = table
        self._numbers = {0: 0}

    def __call__(self, number: int) -> int:
        return self._numbers.setdefault(number, len(self._numbers))

    def stacks(self) -> tuple[CallStack, ...]:
        return tuple(self._table[number] for number in self._numbers)


class ViewBuilder:
    """The parts of a view, from the tables of a pass that is over (or, for LiveTrace, goes on)."""

    def __init__(self, reader: NativeReader, stacks: StackTable) -> None:
        self._reader = reader
        self._strings = reader.strings()
        self._sections = reader.sections()
        # Sections that cannot be read at all are no processes.
        usable = [number for number, row in enumerate(self._sections) if row.usable]
        self._process = {number: index for index, number in enumerate(usable)}
        self._gpus = reader.gpus()
        self._sites = reader.sites()
        self._stack = _Numbering(stacks)

    # ---- parts ----

    def processes(self) -> tuple[TracedProcess, ...]:
        return tuple(self._traced(index, self._sections[number]) for number, index in self._process.items())

    def _traced(self, index: int, row: SectionRow) -> TracedProcess:
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
        hosts = {
            text
            for section in self._sections
            if section.cluster == row.cluster
            for text in [section.texts[6]]
        }
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
        live = (row for row in self._sites if row.peak_count and KINDS_BY_NUMBER[row.kind] not in BLOCKS)
        return by_size(self._site(row, row.peak_count, row.peak_nbytes) for row in live)

    def live(self) -> tuple[Site, ...]:
        return by_size(
            self._site(row, row.live_count, row.live_nbytes) for row in self._sites if row.live_count
        )

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
        if row.leaked.number:
            yield self._leak(row, row.leaked, "leaked")
        if row.kept.number:
            yield self._leak(row, row.kept, "growing" if self._is_growing(row) else "in use at exit")
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
            if row.freed >= _MIN_CHURN
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
            TimelinePoint(row.time_ns, self.gpu(row.gpu), row.highest, row.lowest, row.last)
            for row in self._reader.timeline()
        )
        return tuple(sorted(points, key=lambda point: point.time_ns))

    def holes(self) -> tuple[Holes, ...]:
        blocks = self._reader.hole_blocks()
        return tuple(
            Holes(
                gpu=self.gpu(row.gpu),
                process=self._process[row.process],
                at_ns=row.at_ns,
                live_nbytes=row.live_nbytes,
                spanned_nbytes=row.spanned_nbytes,
                holes=row.holes,
                hole_nbytes=row.hole_nbytes,
                largest_hole=row.largest_hole,
                blocks=tuple(
                    (address, nbytes, self._stack(stack))
                    for address, nbytes, stack in blocks[row.first_block : row.first_block + row.blocks]
                ),
            )
            for row in self._reader.holes()
        )

    def failures(self) -> tuple[FailedAllocation, ...]:
        return tuple(
            FailedAllocation(
                self._process[row.process],
                row.time_ns,
                KINDS_BY_NUMBER.get(row.kind, "device"),
                self.gpu(row.gpu),
                row.nbytes,
                row.result,
                self._stack(row.stack),
            )
            for row in self._reader.failures()
        )

    def gaps(self) -> tuple[Gap, ...]:
        return tuple(
            Gap(
                self._process[row.process],
                _GAPS.get(row.reason, "unknown"),
                row.start_ns,
                None if row.end_ns == _NO_END else row.end_ns,
            )
            for row in self._reader.gaps()
        )

    def marks(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(self._process[row.process], row.time_ns, self._strings[row.text])
            for row in self._reader.marks()
        )

    def before(self) -> tuple[HeldBefore, ...]:
        return tuple(
            HeldBefore(self._process[row.process], self.gpu(row.gpu), row.nbytes, self._strings[row.source])
            for row in self._reader.before()
        )

    def frameworks(self) -> tuple[BlockUse, ...]:
        """What the blocks in the trace say; the accounts of frameworks in blobs are somebody else's."""
        blocks: dict[tuple[int, int, int], list[SiteRow]] = defaultdict(list)
        for row in self._sites:
            if KINDS_BY_NUMBER[row.kind] in BLOCKS:
                blocks[row.process, row.gpu, row.kind].append(row)
        reserved = {(row.process, row.gpu, row.kind): row for row in self._reader.reserved()}
        found = []
        for key, rows in sorted(blocks.items()):
            process, gpu, kind = key
            taken = reserved.get(key)
            at_peak = by_size(
                self._site(row, row.peak_count, row.peak_nbytes) for row in rows if row.peak_count
            )
            at_end = by_size(
                self._site(row, row.live_count, row.live_nbytes) for row in rows if row.live_count
            )
            for at, sites in (("peak", at_peak), ("end", at_end)):
                nbytes = 0 if taken is None else taken.peak_nbytes if at == "peak" else taken.end_nbytes
                found.append(
                    BlockUse(
                        process=self._process[process],
                        framework=_FRAMEWORKS[KINDS_BY_NUMBER[kind]],
                        gpu=self.gpu(gpu),
                        at=at,  # type: ignore[arg-type]
                        reserved_nbytes=nbytes,
                        used_nbytes=sum(site.nbytes for site in sites),
                        sites=sites,
                    )
                )
        return tuple(found)

    # ---- views ----

    def view(self, paths: Sequence[str]) -> TraceView:
        totals = self._reader.totals()
        parts = {
            "gpus": self.gpus(),
            "allocations": self.allocations(),
            "peak": self.peak(),
            "leaks": self.leaks(),
            "timeline": self.timeline(),
            "churn": self.churn(),
            "holes": self.holes(),
            "failures": self.failures(),
            "gaps": self.gaps(),
            "marks": self.marks(),
            "before": self.before(),
            "frameworks": self.frameworks(),
        }
        return TraceView(
            paths=tuple(paths),
            processes=self.processes(),
            stacks=self._stack.stacks(),
            duration_ns=totals.duration_ns,
            events=totals.events,
            failures_in_all=totals.failures,
            host_peak_nbytes=totals.host_peak_nbytes,
            damage=damage_sentences(self._reader.damage(), self._sections, paths),
            **parts,  # type: ignore[arg-type]
        )

    def live_trace(self) -> LiveTrace:
        totals = self._reader.totals()
        sites = self.live()
        return LiveTrace(
            processes=self.processes(),
            stacks=self._stack.stacks(),
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
