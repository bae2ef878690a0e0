"""A trace with what frameworks say: a segment seen at the driver is split into the tensors in it.

What is left of the driver's bytes (cuBLAS, NCCL, code, other libraries) is a line of its own. Blobs come from
the traced program: one that cannot be read is a sentence in ``damage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram import untrusted
from vram.model.trace import (
    ON_GPU,
    OUTSIDE_FRAMEWORKS,
    BlockUse,
    CallStack,
    HeldArrays,
    LeakSite,
    Site,
    TracedProcess,
    TraceView,
    Window,
)
from vram.trace.frameworks import held_arrays, jax_profile, torch_history
from vram.trace.frameworks.torch_use import MISSING, NAME, TorchSegments, TorchUse, block_use
from vram.trace.frameworks.torch_window import torch_window
from vram.trace.reader import Trace
from vram.trace.windows import trend

JAX = "jax"
HOOK_FILE = "<vram tracer>"
"""The file of the one frame of vram's own in a stack of CuPy's blocks (payloads/tracer/frameworks.py)."""
MAX_ROWS = 20_000
MAX_TEXT, MIN_FRAMES = 128 << 20, 4
"""Of all stacks that frameworks say, together; stacks beyond that have so many frames."""


class _Pools(Struct):
    form: int
    pools: list[tuple[int, int, int]] = []


def with_frameworks(view: TraceView, trace: Trace) -> TraceView:
    """*view* with ``frameworks``, the leaks of frameworks' blocks, and segments that are no leaks."""
    merge = _Merge(view, trace)
    for process, name, data in trace.blobs():
        merge.add(process, name, data)
    return merge.view()


class _Merge:
    """Gathers what the frameworks in one trace say, and adds it to its view."""

    def __init__(self, view: TraceView, trace: Trace) -> None:
        self._view, self._trace = view, trace
        self._stacks = [_without_ours(each) for each in view.stacks]
        self._numbers: dict[CallStack, int] = {}
        self._text_left = MAX_TEXT
        self._torch: dict[int, torch_history.Snapshot] = {}
        self._torch_began: set[int] = set()
        self._jax: dict[int, list[jax_profile.Buffers]] = {}
        self._jax_pools: dict[int, list[tuple[int, int, int]]] = {}
        self._arrays: dict[int, held_arrays.ArraysBlob] = {}
        self._damage: list[str] = []

    def add(self, process: int, name: str, data: bytes) -> None:
        """Take one blob; names that this version does not know are skipped."""
        try:
            if name == "torch":
                snapshot = torch_history.decode(data)
                if snapshot.at == "begin":
                    self._torch_began.add(process)
                elif snapshot.at != "attach":
                    self._torch[process] = snapshot  # the last one that is whole counts
            elif name == "arrays":
                self._arrays[process] = held_arrays.decode(data)
            elif name == "jax":
                self._jax[process] = jax_profile.decode(data)
            elif name == "jax-pools":
                self._jax_pools[process] = untrusted.decode(data, _Pools, most_items=100_000).pools
        except untrusted.Rejected as error:
            self._damage.append(f"what {name} said of its memory in process {process} is unreadable: {error}")

    def view(self) -> TraceView:
        view, latest = self._view, self._torch
        segments = TorchSegments(self._trace, latest) if latest else None
        uses: list[BlockUse] = []
        rows: list[LeakSite] = []
        windows: list[Window] = []
        gpus = [each for each in view.gpus if each.peak_nbytes]  # others have no peak to speak of
        for process in view.processes:
            if segments is not None and process.index in latest:
                for use in self._torch_of(process, latest[process.index], segments):
                    uses += [use.at_peak(each.peak_ns) for each in gpus if each.gpu == use.gpu]
                    uses.append(use.at_end())
                    left = list(use.never_freed())
                    rows += left
                    windows.append(self._torch_window(process, use, left))
            elif process.index in self._torch_began:
                uses.append(block_use(process.index, NAME, None, "end", 0, 0, note=MISSING))
            uses += self._jax_lines(process.index)
        leaks = view.leaks if segments is None else tuple(segments.judge_leaks(view))
        driver = view.windows if segments is None else [_rejudged(each, leaks) for each in view.windows]
        outside = _outside(view, [*view.frameworks, *uses])
        rows.sort(key=lambda row: (row.verdict == "in use at exit", -row.site.nbytes))
        return replace(
            view,
            stacks=tuple(self._stacks),
            frameworks=(*view.frameworks, *uses, *outside),
            windows=(*driver, *windows),
            held=tuple(sorted(self._held(segments), key=lambda each: -each.nbytes))[:MAX_ROWS],
            leaks=(*leaks, *rows[:MAX_ROWS]),
            damage=(*view.damage, *self._damage),
        )

    def _intern(self, stack: CallStack) -> int:
        if not self._numbers:
            self._numbers = {each: number for number, each in enumerate(self._stacks)}
        if self._text_left < 0:
            stack = CallStack(stack.frames[:MIN_FRAMES])
        number = self._numbers.setdefault(stack, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(stack)
            self._text_left -= sum(len(frame.function) + len(frame.file) for frame in stack.frames)
        return number

    # ---- PyTorch ----

    def _torch_of(
        self, process: TracedProcess, snapshot: torch_history.Snapshot, segments: TorchSegments
    ) -> Iterator[TorchUse]:
        zero_ns = process.started_wall_ns - process.first_ns
        late_ns = segments.lateness_ns(process.index, zero_ns)
        devices = {each[0] for each in snapshot.segments}
        devices |= {device for device, each in enumerate(snapshot.traces) if each.action}
        for device in sorted(devices):
            yield TorchUse(
                snapshot,
                device,
                gpu=segments.gpu(process.index, device),
                process=process.index,
                zero_ns=zero_ns + late_ns,
                intern=self._intern,
            )

    def _torch_window(self, process: TracedProcess, use: TorchUse, left: list[LeakSite]) -> Window:
        """From the beginning of the driver's windows on, or of this process's recording."""
        since_ns = max([process.first_ns, *(each.begin_ns for each in self._view.windows[:1])])
        growing = {row.site.stack for row in left if row.verdict == "growing"}
        arrays = self._arrays.get(process.index)
        return torch_window(use, since_ns, self._view.duration_ns, arrays, growing)

    # ---- what was there before ----

    def _held(self, segments: TorchSegments | None) -> Iterator[HeldArrays]:
        for process, blob in self._arrays.items():

            def gpu_of(device: int, process: int = process) -> int | None:
                return device if segments is None else segments.gpu(process, device)

            yield from held_arrays.held_arrays(blob, process, gpu_of)

    # ---- JAX ----

    def _jax_lines(self, process: int) -> Iterator[BlockUse]:
        """What JAX holds at the end: its profile knows no other moment."""
        buffers = self._jax.get(process, [])
        pools = {gpu: (taken, used) for gpu, taken, used in self._jax_pools.get(process, [])}
        for gpu in sorted({each.gpu for each in buffers} | set(pools), key=lambda gpu: (gpu is None, gpu)):
            mine = [each for each in buffers if each.gpu == gpu]
            sites = tuple(
                Site(
                    stack=self._intern(each.stack),
                    kind="jax buffer",
                    gpu=gpu,
                    process=process,
                    count=each.count,
                    nbytes=each.nbytes,
                )
                for each in sorted(mine, key=lambda each: -each.nbytes)
            )
            listed = sum(each.nbytes for each in mine)
            taken, used = pools.get(gpu, (listed, listed)) if gpu is not None else (listed, listed)
            yield block_use(process, JAX, gpu, "end", max(taken, 0), max(used, 0), sites)


def _without_ours(stack: CallStack) -> CallStack:
    """A stack without the hook through which CuPy told the recorder."""
    if stack.frames and stack.frames[0].file == HOOK_FILE:
        return CallStack(stack.frames[1:])
    return stack


def _rejudged(window: Window, leaks: Iterable[LeakSite]) -> Window:
    """A segment that holds tensors does not grow: they do."""
    growing = {
        (leak.site.stack, leak.site.kind, leak.site.gpu, leak.site.process)
        for leak in leaks
        if leak.verdict == "growing"
    }
    places = []
    for place in window.places:
        site = place.site
        still = place.growing and (site.stack, site.kind, site.gpu, site.process) in growing
        places.append(place if still == place.growing else replace(place, growing=still))
    return replace(window, places=tuple(places), trend=trend(window.lowest, window.highest_nbytes, places))


# ---- the rest ----


def _outside(view: TraceView, uses: Iterable[BlockUse]) -> Iterator[BlockUse]:
    """What the driver gave a process beyond what its frameworks took, at the same moment."""
    taken: dict[tuple[int, int | None, Literal["peak", "end"]], int] = {}
    for use in uses:
        if use.note is None or use.reserved_nbytes:
            key = use.process, use.gpu, use.at
            taken[key] = taken.get(key, 0) + use.reserved_nbytes
    for (process, gpu, at), reserved in taken.items():
        rows = view.peak if at == "peak" else [row.site for row in view.leaks]
        sites = [each for each in rows if each.kind in ON_GPU and (each.process, each.gpu) == (process, gpu)]
        rest = sum(each.nbytes for each in sites) - reserved
        if rest > 0:
            yield block_use(process, OUTSIDE_FRAMEWORKS, gpu, at, rest, rest)
