"""A trace for Perfetto (ui.perfetto.dev): the JSON that Chrome's tracing defined, written event by event.

Format: "Trace Event Format" of the Chromium project. Used of it: counters (``C``), instants (``i``), slices
that may overlap (``b`` and ``e``, paired by category and id), metadata (``M``). Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vram.model.trace import KINDS_BY_NUMBER, CallStack, Frame, TraceView
from vram.trace.exports import BLOCK_KINDS, CONTEXT, ON_GPU_KINDS, OUTLIVE_CONTEXT, named, text
from vram.trace.places import place, position
from vram.trace.reader import ALLOC, FAILED, FREE
from vram.trace.symbols import Naming, naming

if TYPE_CHECKING:
    from vram.trace.analysis import StackTable
    from vram.trace.reader import EventBatch, Trace, TraceEvent

# From this size on an allocation is a slice of its own; smaller ones would bury them.
SLICE_NBYTES = 1 << 20
# A browser takes a file of some hundred megabytes. With many events each carries fewer frames; with very many
# only large allocations are events of their own, and a counter moves in steps of a thousandth of the peak.
_FRAMES, _FEW_FRAMES, _MANY_EVENTS = 32, 4, 200_000
_MAX_NAME_LENGTH, _FRAME_LENGTH = 200, 150
VERY_MANY_EVENTS, _STEPS = 1_000_000, 1000
_PIECE = 1 << 20


def write(trace: Trace, stream: BinaryIO) -> None:
    """Write *trace* to *stream*, without keeping it in memory."""
    view = trace.view()
    stream.write(b'{"displayTimeUnit":"ns","otherData":{"exporter":"vram"},"traceEvents":[\n')
    first = True
    for piece in _pieces(_Writer(view, naming(view, trace.builds())).events(trace)):
        stream.write(piece if first else b",\n" + piece)
        first = False
    stream.write(b"\n]}\n")


def _pieces(events: Iterable[str]) -> Iterator[bytes]:
    """Gather events into pieces that are worth a write."""
    kept: list[str] = []
    size = 0
    for event in events:
        kept.append(event)
        size += len(event)
        if size > _PIECE:
            yield ",\n".join(kept).encode()
            kept, size = [], 0
    if kept:
        yield ",\n".join(kept).encode()


class _Allocated(NamedTuple):
    """A live allocation, and the beginning of the slice that it draws; empty where it draws none."""

    event: TraceEvent
    slice: str


class _Writer:
    """Turns events into JSON; keeps what is live, not what was."""

    def __init__(self, view: TraceView, naming: Naming | None) -> None:
        self._view, self._naming = view, naming
        self._pids = {process.index: process.pid for process in view.processes}
        self._sums: dict[tuple[int, int, str], int] = {}
        self._live: dict[int, _Allocated] = {}
        self._in_context: dict[tuple[int, int], dict[int, None]] = {}
        self._stacks: dict[int, tuple[str, str]] = {}
        self._frames = _FRAMES if view.events <= _MANY_EVENTS else _FEW_FRAMES
        self._is_thinned = view.events > VERY_MANY_EVENTS
        peak = max((use.peak_nbytes for use in view.gpus), default=0)
        self._step = peak // _STEPS if self._is_thinned else 0
        self._drawn: dict[tuple[int, int, str], int] = {}

    def events(self, trace: Trace) -> Iterator[str]:
        for process in self._view.processes:
            name = text(" ".join(process.command) or process.executable or "traced process")[:200]
            yield _event(ph="M", name="process_name", pid=process.pid, tid=0, args={"name": name})
        for batch in trace.events():
            yield from self._batch(batch)
        yield from self._tail()

    def _batch(self, batch: EventBatch) -> Iterator[str]:
        for event in batch.rows():
            kind, nbytes, gpu, number = event.kind, event.nbytes, event.gpu, event.allocation
            at = f"{event.time_ns // 1000}.{event.time_ns % 1000:03d}"
            pid = self._pids.get(event.process, event.process)
            where = f'"pid":{pid},"tid":{event.thread},"ts":{at}'
            if event.type == ALLOC:
                name, frames = self._stack(event.stack, batch.stacks)
                about = (
                    f'{{"bytes":{nbytes},"address":"{event.address:#x}","stream":"{event.stream:#x}",'
                    f'"gpu":{gpu},"kind":"{KINDS_BY_NUMBER.get(kind, "unknown")}","stack":{frames}}}'
                )
                if nbytes >= SLICE_NBYTES or not self._is_thinned:
                    yield f'{{"ph":"i","s":"t","cat":"alloc","name":{name},{where},"args":{about}}}'
                head = ""
                if nbytes >= SLICE_NBYTES and number:
                    head = f'"cat":"live","id":"{number:#x}","name":{name}'
                    yield f'{{"ph":"b",{head},{where},"args":{about}}}'
                if number:
                    self._live[number] = _Allocated(event, head)
                    if kind not in OUTLIVE_CONTEXT:
                        self._in_context.setdefault((event.process, event.context), {})[number] = None
                yield from self._count(event, nbytes, at)
            elif event.type == FREE:
                if (ended := self._live.pop(number, None)) is not None:
                    self._in_context.get((ended.event.process, ended.event.context), {}).pop(number, None)
                    yield from self._end(ended, where, at)
                if kind == CONTEXT:
                    # What was allocated in a context ends with it, without events of its own.
                    for inside in self._in_context.pop((event.process, event.address), ()):
                        yield from self._end(self._live.pop(inside), where, at)
            elif event.type == FAILED:
                frames = self._stack(event.stack, batch.stacks)[1]
                about = f'{{"bytes":{nbytes},"gpu":{gpu},"stack":{frames}}}'
                name = '"cat":"failed","name":"allocation failed"'
                yield f'{{"ph":"i","s":"p",{name},{where},"args":{about}}}'

    def _end(self, ended: _Allocated, where: str, at: str) -> Iterator[str]:
        if ended.slice:
            yield f'{{"ph":"e",{ended.slice},{where}}}'
        yield from self._count(ended.event, -ended.event.nbytes, at)

    def _tail(self) -> Iterator[str]:
        if self._is_thinned:
            for key, live in self._sums.items():
                yield self._counter(key, live, f"{self._view.duration_ns / 1000:.3f}")
        for mark in self._view.marks:
            pid = self._pids.get(mark.process, 0)
            yield _event(
                ph="i", s="p", cat="mark", name=text(mark.text), pid=pid, tid=pid, ts=mark.time_ns / 1000
            )
        for number, gap in enumerate(self._view.gaps):
            pid = self._pids.get(gap.process, 0)
            end = self._view.duration_ns if gap.end_ns is None else gap.end_ns
            name = f"not recorded: {gap.reason}"
            about = {"cat": "gap", "id": f"gap-{number}", "name": name, "pid": pid, "tid": pid}
            yield _event(ph="b", ts=gap.start_ns / 1000, **about)
            yield _event(ph="e", ts=end / 1000, **about)

    def _count(self, event: TraceEvent, change: int, at: str) -> Iterator[str]:
        """The live bytes of the process on the GPU, drawn as a counter; a framework's blocks apart."""
        if event.kind in ON_GPU_KINDS:
            what = "live"
        elif event.kind in BLOCK_KINDS:
            what = f"in {KINDS_BY_NUMBER[event.kind]}s"
        else:
            return
        key = (event.process, event.gpu, what)
        live = self._sums[key] = self._sums.get(key, 0) + change
        if abs(live - self._drawn.get(key, -1)) >= self._step:
            yield self._counter(key, live, at)

    def _counter(self, key: tuple[int, int, str], live: int, at: str) -> str:
        self._drawn[key] = live
        process, gpu, what = key
        name = f"GPU {gpu} {what}" if gpu >= 0 else f"unknown GPU {what}"
        pid = self._pids.get(process, process)
        return f'{{"ph":"C","name":"{name}","pid":{pid},"ts":{at},"args":{{"bytes":{live}}}}}'

    def _stack(self, number: int, stacks: StackTable) -> tuple[str, str]:
        """The name and the frames of a stack, as JSON."""
        found = self._stacks.get(number)
        if found is None:
            stack = named(stacks[number], self._naming)
            shown = _frame_lines(stack, self._frames, self._frames * _FRAME_LENGTH)
            found = json.dumps(_name(stack)[:_MAX_NAME_LENGTH]), json.dumps("\n".join(shown))
            self._stacks[number] = found
        return found


def _event(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _name(stack: CallStack) -> str:
    """What an allocation is called: the function that made it, and where."""
    frame = place(stack)
    if frame is None:
        return "no stack"
    return f"{text(frame.function)} {text(position(frame)).rpartition('/')[2]}"


def _frame_lines(stack: CallStack, most: int, length: int) -> list[str]:
    """The frames, innermost first: at most so many, and about this *length* together."""
    shown: list[str] = []
    for frame in stack.frames[:most]:
        line = f"{text(frame.function)} {_position(frame)}"
        if shown and length < len(line):
            break
        shown.append(line)
        length -= len(line)
    left = len(stack.frames) - len(shown)
    return [*shown, f"({left} frames more)"] if left else shown


def _position(frame: Frame) -> str:
    return f"{text(frame.file)}:{frame.line}" if frame.has_line else f"{text(frame.file)}+{frame.line:#x}"
