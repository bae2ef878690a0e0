"""A trace with what frameworks say: a segment seen at the driver is split into the tensors in it.

The recorder sees what a framework takes from the driver; the framework says what it used it for. Both are
put beside each other, and what is left of the driver's bytes (cuBLAS, NCCL, code, other libraries) is a
line of its own. Blobs come from the traced program: one that cannot be read is a sentence in ``damage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from vram import untrusted
from vram.model.trace import ON_GPU, BlockUse, LeakSite, Site, Stack, TracedProcess, TraceView
from vram.trace.frameworks import jax_profile, torch_history
from vram.trace.frameworks.torch_use import MISSING, NAME, TorchClock, TorchUse

OUTSIDE = "outside frameworks"
CUPY, JAX = "CuPy", "JAX"
HOOK_FILE = "<vram tracer>"
"""The file of the one frame of vram's own in a stack of CuPy's blocks (payloads/tracer/frameworks.py)."""
MOST_ROWS = 20_000


class BlobSource(Protocol):
    """What is needed of a trace."""

    def blobs(self) -> Iterator[tuple[int, str, bytes]]: ...


class _Pools(Struct):
    form: int
    pools: list[tuple[int, int, int]] = []


def with_frameworks(view: TraceView, trace: BlobSource) -> TraceView:
    """*view* with ``frameworks``, the leaks of frameworks' blocks, and segments that are no leaks."""
    merge = _Merge(view)
    for process, name, data in trace.blobs():
        merge.add(process, name, data)
    return merge.view()


class _Merge:
    """What becomes of one view."""

    def __init__(self, view: TraceView) -> None:
        self._view = view
        self._stacks = [_without_ours(each) for each in view.stacks]
        self._numbers: dict[Stack, int] = {}
        self._torch: dict[int, list[torch_history.Snapshot]] = {}
        self._jax: dict[int, list[jax_profile.Buffers]] = {}
        self._jax_pools: dict[int, list[tuple[int, int, int]]] = {}
        self._damage: list[str] = []

    def add(self, process: int, name: str, data: bytes) -> None:
        """Take one blob; names of other versions are skipped."""
        try:
            if name == "torch":
                self._torch.setdefault(process, []).append(torch_history.decode(data))
            elif name == "jax":
                self._jax[process] = jax_profile.decode(data)
            elif name == "jax-pools":
                self._jax_pools[process] = untrusted.decode(data, _Pools, most_items=100_000).pools
        except untrusted.Rejected as error:
            self._damage.append(f"what {name} said of its memory in process {process} is unreadable: {error}")

    def view(self) -> TraceView:
        view = self._view
        uses: list[BlockUse] = []
        rows: list[LeakSite] = []
        for process in view.processes:
            for use in self._torch_of(process):
                uses += self._torch_lines(use, view)
                rows += use.never_freed()
            uses += self._torch_missing(process.index)
            uses += self._jax_lines(process.index)
            uses += _cupy_lines(view, process.index)
        uses += _outside(view, uses)
        rows.sort(key=lambda row: (row.verdict == "in use at exit", -row.site.nbytes))
        return replace(
            view,
            stacks=tuple(self._stacks),
            frameworks=tuple(uses),
            leaks=(*view.leaks, *rows[:MOST_ROWS]),
            damage=(*view.damage, *self._damage),
        )

    def _intern(self, stack: Stack) -> int:
        if not self._numbers:
            self._numbers = {each: number for number, each in enumerate(self._stacks)}
        number = self._numbers.setdefault(stack, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(stack)
        return number

    # ---- PyTorch ----

    def _latest(self, process: int) -> torch_history.Snapshot | None:
        whole = [each for each in self._torch.get(process, ()) if each.at not in ("begin", "attach")]
        return whole[-1] if whole else None

    def _torch_of(self, process: TracedProcess) -> Iterator[TorchUse]:
        snapshot = self._latest(process.index)
        if snapshot is None:
            return
        origin = min(each.first_ns for each in self._view.processes)
        gpus = {each[0] for each in snapshot.segments}
        gpus |= {gpu for gpu, each in enumerate(snapshot.traces) if each.action}
        for gpu in sorted(gpus):
            yield TorchUse(snapshot, gpu, process.index, TorchClock(origin), self._intern)

    def _torch_lines(self, use: TorchUse, view: TraceView) -> Iterator[BlockUse]:
        for each in view.gpus:
            if each.gpu == use.gpu:
                yield use.at_peak(each.peak_ns)
        yield use.at_end()

    def _torch_missing(self, process: int) -> Iterator[BlockUse]:
        began = any(each.at == "begin" for each in self._torch.get(process, ()))
        if began and self._latest(process) is None:
            yield _line(process, NAME, None, 0, 0, (), MISSING)

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
            yield _line(process, JAX, gpu, max(taken, 0), max(used, 0), sites, None)


def _without_ours(stack: Stack) -> Stack:
    """A stack without the hook through which CuPy told the recorder."""
    if stack.frames and stack.frames[0].file == HOOK_FILE:
        return Stack(stack.frames[1:])
    return stack


def _line(
    process: int,
    framework: str,
    gpu: int | None,
    reserved: int,
    used: int,
    sites: tuple[Site, ...],
    note: str | None,
) -> BlockUse:
    return BlockUse(
        process=process,
        framework=framework,
        gpu=gpu,
        at="end",
        reserved_nbytes=reserved,
        used_nbytes=used,
        sites=sites,
        note=note,
    )


# ---- CuPy, whose blocks are events of the trace ----


def _cupy_lines(view: TraceView, process: int) -> Iterator[BlockUse]:
    live = [row.site for row in view.leaks if row.site.kind == "cupy block" and row.site.process == process]
    for gpu in sorted({site.gpu for site in live}, key=lambda gpu: (gpu is None, gpu)):
        mine = tuple(site for site in live if site.gpu == gpu)
        used = sum(site.nbytes for site in mine)
        yield _line(process, CUPY, gpu, used, used, mine, None)


# ---- the rest ----


def _outside(view: TraceView, uses: Iterable[BlockUse]) -> Iterator[BlockUse]:
    """What the driver gave a process beyond what its frameworks took, at the same moment."""
    taken: dict[tuple[int, int | None, str], int] = {}
    for use in uses:
        if use.note is None or use.reserved_nbytes:
            key = use.process, use.gpu, use.at
            taken[key] = taken.get(key, 0) + use.reserved_nbytes
    for (process, gpu, at), reserved in taken.items():
        rows = view.peak if at == "peak" else (row.site for row in view.leaks)
        sites = [each for each in rows if each.kind in ON_GPU and (each.process, each.gpu) == (process, gpu)]
        rest = sum(each.nbytes for each in sites) - reserved
        if rest > 0:
            line = _line(process, OUTSIDE, gpu, rest, rest, (), None)
            yield replace(line, at=at)
