"""What a trace says: who recorded it, which places allocated, what was live when, what never came back.

``native/FORMAT.md`` describes the file; ``vram.trace`` reads it into these. Text in them (functions,
files, command lines) comes from the traced program and is never printed as it is.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

MemoryKind = Literal[
    "device",
    "managed",
    "stream-ordered",
    "opened",
    "graph",
    "imported",
    "physical",
    "multicast",
    "pinned host",
    "registered host",
    "array",
    "address range",
    "module",
    "context",
    "pool",
    "physical host",
    "torch block",
    "cupy block",
    "jax buffer",
    "framework block",
]
"""In the order of their numbers in the file."""

KINDS_BY_NUMBER: dict[int, MemoryKind] = dict(enumerate(get_args(MemoryKind)))
KIND_NUMBERS: dict[MemoryKind, int] = {kind: number for number, kind in KINDS_BY_NUMBER.items()}

ON_GPU: frozenset[MemoryKind] = frozenset(
    {"device", "managed", "stream-ordered", "graph", "physical", "array", "module"}
)
"""Kinds that occupy a GPU's memory; the blocks of frameworks lie inside them and are not added."""

ON_HOST: frozenset[MemoryKind] = frozenset({"pinned host", "registered host", "physical host"})

BLOCKS: frozenset[MemoryKind] = frozenset({"torch block", "cupy block", "jax buffer", "framework block"})
"""What frameworks gave out of the memory that they took from the driver."""

OUTSIDE_FRAMEWORKS = "outside frameworks"
"""In ``BlockUse.framework``: what lies in no framework's memory."""

EndReason = Literal["exit", "detached", "disk full", "write error", "no cupti", "cut"]
"""Why a section ends; "cut": it has no END record (the process was killed, or still runs)."""

GapReason = Literal["another subscriber", "cupti shut down", "detached", "unknown"]

Verdict = Literal["leaked", "growing", "not freed", "in use at exit"]
"""Of memory that was never freed, the worst first.

"leaked": its context was destroyed while a Python program went on, without freeing it. "growing": the same
stack left more and more behind, to the end. "not freed": neither, but a program without Python ended with it.
"in use at exit": the rest.
"""


class Frame(Struct, frozen=True):
    """A place in the program: a line of a source, or an offset in a library."""

    language: Literal["python", "native"]
    function: str
    file: str
    line: int
    """Python: the line. Native: the offset in the library ``file``, unless *library* is known."""
    library: str = ""
    """Native, where debug information has the line: the program or library that it is in. ``file`` and
    ``line`` are the source's then."""

    @property
    def has_line(self) -> bool:
        """Whether ``file`` and ``line`` are of a source that a person wrote."""
        return self.language == "python" or bool(self.library)


class CallStack(Struct, frozen=True):
    """A call stack, innermost frame first; empty where none was recorded."""

    frames: tuple[Frame, ...] = ()


class TracedProcess(Struct, frozen=True, kw_only=True):
    """One section of a trace."""

    index: int
    pid: int
    parent_pid: int
    command: tuple[str, ...]
    executable: str
    python: str | None
    attached: bool
    forked: bool
    stacks: Literal["none", "python", "native"]
    started_wall_ns: int
    first_ns: int
    """When recording began. All times but the wall clock are relative to the earliest start of a section."""
    last_ns: int
    """Its last record."""
    last_allocation_ns: int = 0
    """0 where there is none."""
    end: EndReason
    end_errno: int = 0
    threads: int = 0
    events: int = 0
    unreadable_chunks: int = 0
    missing_chunks: int = 0
    unknown_frees: int = 0
    """Frees of memory whose allocation was not recorded: it is from before recording, or was lost."""
    missing_frees: int = 0
    """Addresses that were allocated again without a recorded free; the older allocation ends there."""
    host: str | None = None


class Gap(Struct, frozen=True):
    """Nothing was recorded from *start_ns* to *end_ns* (None: to the end)."""

    process: int
    reason: GapReason
    start_ns: int
    end_ns: int | None


class Mark(Struct, frozen=True):
    """What the program itself said, with `vram.mark`."""

    process: int
    time_ns: int
    text: str


class HeldBefore(Struct, frozen=True):
    """Memory that the process held before recording began, and who says so."""

    process: int
    gpu: int | None
    nbytes: int
    source: str


class FailedAllocation(Struct, frozen=True):
    """An allocation that the driver refused."""

    process: int
    time_ns: int
    kind: MemoryKind
    gpu: int | None
    nbytes: int
    result: int
    stack: int


class Site(Struct, frozen=True, kw_only=True):
    """Allocations of one kind, by one stack, on one GPU, in one process."""

    stack: int
    """Index into ``TraceView.stacks``."""
    kind: MemoryKind
    gpu: int | None
    process: int
    count: int
    """Allocations that this row is about: all of them, those live at the peak, or those never freed."""
    nbytes: int


class GpuUse(Struct, frozen=True, kw_only=True):
    """What all traced processes together held on one GPU (None: the device is unknown)."""

    gpu: int | None
    peak_nbytes: int
    peak_ns: int
    end_nbytes: int
    """Live when the trace ends."""
    allocated_nbytes: int
    """Sum of all allocations."""
    allocations: int
    frees: int
    name: str | None = None
    pci: str | None = None
    total_nbytes: int | None = None
    """The GPU's whole memory."""
    host: str | None = None


class TimelinePoint(Struct, frozen=True):
    """The live bytes of one GPU over a stretch of time that begins at *time_ns*: the highest, the lowest,
    the last. Where a GPU's memory did not change there is no point: the last one holds on."""

    time_ns: int
    gpu: int | None
    highest: int
    lowest: int
    last: int


class LeakSite(Struct, frozen=True, kw_only=True):
    """Allocations of one stack that were never freed."""

    site: Site
    verdict: Verdict
    first_ns: int
    last_ns: int
    freed: int
    """Allocations of the same stack that were freed."""
    largest: int


MIN_CHURN = 16
"""Pairs of allocation and free: fewer are no habit."""


class ChurnSite(Struct, frozen=True, kw_only=True):
    """Allocations of one stack that were freed again soon: work for the driver that a cache would save."""

    site: Site
    median_life_ns: int
    per_second: float


class Holes(Struct, frozen=True, kw_only=True):
    """The address ranges of one GPU's live allocations at a moment: how scattered they are.

    Measured at the GPU's peak and at the end; gaps of more than 1 GiB are no holes. A block is its address,
    size and stack.
    """

    gpu: int | None
    process: int
    at_ns: int
    live_nbytes: int
    spanned_nbytes: int
    """From the lowest to the highest address of each cluster of neighbouring allocations."""
    holes: int
    hole_nbytes: int
    largest_hole: int
    blocks: tuple[tuple[int, int, int], ...]
    """By address; at most some thousands, the largest."""


class BlockUse(Struct, frozen=True, kw_only=True):
    """How a framework used the memory that it took from the driver, at one moment."""

    process: int
    framework: str
    gpu: int | None
    at: Literal["peak", "end"]
    reserved_nbytes: int
    """Taken from the driver."""
    used_nbytes: int
    """In blocks that the program holds."""
    sites: tuple[Site, ...]
    note: str | None = None


Trend = Literal["growing", "shrinking", "steady"]
"""Of a window. "growing": a place in it is, or its lowest moment is higher in each quarter than before."""


class WindowPlace(Struct, frozen=True, kw_only=True):
    """What one place did in a window."""

    site: Site
    """With the count and bytes that were live at the window's highest moment."""
    base_count: int
    base_nbytes: int
    """Live when the window began."""
    end_count: int
    end_nbytes: int
    made: int
    made_nbytes: int
    """Allocated in the window."""
    freed: int
    median_life_ns: int | None
    """Of those that were freed; None where none was."""
    growing: bool
    name: str = ""
    """What the program calls it (`vram inside`): of memory from before recording, which has no stack."""

    @property
    def change(self) -> int:
        return self.end_nbytes - self.base_nbytes

    @property
    def churns(self) -> bool:
        """Whether it was allocated and freed again and again."""
        return min(self.made, self.freed) >= MIN_CHURN


class Window(Struct, frozen=True, kw_only=True):
    """A GPU's memory from a moment to the end of the recording: the driver's, or a framework's blocks in it.

    It begins with the recording of a running process, with the second half of one that was recorded from its
    start, or with a framework's history where that is shorter.
    """

    process: int | None
    """None: all that were recorded together."""
    gpu: int | None
    framework: str | None
    """None: what was asked of the driver."""
    begin_ns: int
    end_ns: int
    before_nbytes: int | None
    """Of the driver's memory: held before recording began, and not in the figures below. None: unknown, or
    recorded from the start of the program."""
    base_nbytes: int
    highest_nbytes: int
    highest_ns: int
    end_nbytes: int
    lowest: tuple[int, int, int, int]
    """Of each quarter of the window."""
    trend: Trend
    places: tuple[WindowPlace, ...]
    """The largest at the highest moment first."""


class HeldArrays(Struct, frozen=True, kw_only=True):
    """Arrays that the process had when recording began, and what it calls them (`vram inside`)."""

    process: int
    gpu: int | None
    framework: str
    name: str
    count: int
    nbytes: int


class LiveTrace(Struct, frozen=True, kw_only=True):
    """What a trace that is still written says up to now."""

    processes: tuple[TracedProcess, ...]
    stacks: tuple[CallStack, ...]
    gpus: tuple[GpuUse, ...]
    sites: tuple[Site, ...]
    """What is live, by stack; the largest first."""
    timeline: tuple[TimelinePoint, ...]
    duration_ns: int
    events: int
    failures: int
    host_nbytes: int
    """Pinned and registered host memory."""


class TraceView(Struct, frozen=True, kw_only=True):
    """Everything that `vram report` shows of one trace."""

    paths: tuple[str, ...]
    processes: tuple[TracedProcess, ...]
    stacks: tuple[CallStack, ...]
    duration_ns: int
    events: int
    gpus: tuple[GpuUse, ...]
    allocations: tuple[Site, ...]
    """All allocations, by stack."""
    peak: tuple[Site, ...]
    """What was live on each GPU at that GPU's highest moment."""
    leaks: tuple[LeakSite, ...]
    timeline: tuple[TimelinePoint, ...]
    churn: tuple[ChurnSite, ...]
    holes: tuple[Holes, ...]
    failures: tuple[FailedAllocation, ...]
    failures_in_all: int
    gaps: tuple[Gap, ...]
    marks: tuple[Mark, ...]
    before: tuple[HeldBefore, ...]
    host_peak_nbytes: int
    """Pinned and registered host memory at its highest."""
    frameworks: tuple[BlockUse, ...] = ()
    windows: tuple[Window, ...] = ()
    held: tuple[HeldArrays, ...] = ()
    """The largest first."""
    damage: tuple[str, ...] = ()
    """What could not be read, in plain sentences."""


def stack_of(view: TraceView | LiveTrace, number: int) -> CallStack:
    """The stack *number*; an empty one where the trace has none of that number."""
    return view.stacks[number] if 0 <= number < len(view.stacks) else CallStack()


# ---- which cards a traced program would have fitted ----


class GraphicsCard(Struct, frozen=True):
    """A graphics card: its name and its memory as NVML reports it."""

    name: str
    total_nbytes: int


class GpuNeed(Struct, frozen=True, kw_only=True):
    """What the traced processes needed on one GPU at its highest moment."""

    gpu: int | None
    name: str | None
    """Of the GPU that it was recorded on, and that one's memory."""
    total_nbytes: int | None
    live_nbytes: int
    """Allocated at the peak, as recorded."""
    before_nbytes: int
    """Held before recording began, where the trace says so."""
    contexts: int
    context_nbytes: int
    """Assumed for those contexts."""
    cached_nbytes: int
    """Of ``live_nbytes``: kept unused by a framework's allocator, which may return it."""

    @property
    def most(self) -> int:
        """As it was recorded."""
        return self.live_nbytes + self.before_nbytes + self.context_nbytes

    @property
    def least(self) -> int:
        """Without what a framework kept unused."""
        return self.most - self.cached_nbytes


class CardFit(Struct, frozen=True, kw_only=True):
    """Whether the fullest GPU of the trace fits a card.

    "fits": as it was recorded. "if caches shrink": only without what a framework kept unused.
    "too small": not even then. ``left_nbytes`` is negative by what is missing.
    """

    card: GraphicsCard
    verdict: Literal["fits", "if caches shrink", "too small"]
    left_nbytes: int


class Fit(Struct, frozen=True, kw_only=True):
    """What a program needed, the cards it fits, what was assumed, and what a trace cannot know."""

    needs: tuple[GpuNeed, ...]
    cards: tuple[CardFit, ...]
    reserve_nbytes: int
    """Of every card, assumed to be kept by the driver."""
    assumptions: tuple[str, ...]
    doubts: tuple[str, ...]
