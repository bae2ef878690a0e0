"""A trace for PyTorch's memory viewer (pytorch.org/memory_viz, torch/cuda/_memory_viz.py): a pickle.

Its form is that of ``torch.cuda.memory._snapshot()``: ``device_traces`` has a list of events for each GPU,
``segments`` what is live at the end, in blocks that fill each segment. Memory of the driver is a segment.
Where no framework's blocks lie in it, one block fills it, so that the viewer draws it too. Of a process that
left PyTorch's own history (``--framework torch``), that is what the viewer gets, and the driver's memory
outside of it.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

from vram import untrusted
from vram.model.trace import KIND_NUMBERS, CallStack, Frame
from vram.trace.exports import CONTEXT, ON_GPU_KINDS, OUTLIVE_CONTEXT, PHYSICAL, named, text
from vram.trace.frameworks import torch_history
from vram.trace.frameworks.torch_history import AWAITING_FREE, IN_USE, TAKES, Snapshot
from vram.trace.reader import ALLOC, FAILED, FREE, MAP, UNMAP
from vram.trace.symbols import naming

if TYPE_CHECKING:
    from vram.trace.analysis import StackTable
    from vram.trace.reader import EventBatch, Trace, TraceEvent

# As many as PyTorch keeps at most by default; a browser takes no more. The last ones are kept.
MAX_EVENTS = 1_000_000
_FIRST_BLOCK = _TORCH = KIND_NUMBERS["torch block"]
# Processes have their own addresses: those of later ones are moved apart. JavaScript counts up to 2**53.
_APART = 48
_MAX_PROCESSES = 32

Frames = list[dict[str, Any]]


def write(trace: Trace, stream: BinaryIO) -> None:
    """Write the snapshot of *trace*; of a long one, its last events."""
    own = _torch_memories(trace)
    split = _Segments()
    for batch in trace.events():
        for event in _other_events(batch, own):
            split.add(event)
    history = _History(trace, split, own)
    for batch in trace.events():
        for event in _other_events(batch, own):
            history.add(event, batch.stacks)
    pickle.dump(history.snapshot(), stream, protocol=4)


def _other_events(batch: EventBatch, own: dict[int, _TorchMemory]) -> Iterator[TraceEvent]:
    """The events without those of memory that PyTorch accounts for itself, each process's addresses apart."""
    for event in batch.rows():
        account = own.get(event.process)
        if account is not None:
            is_block = event.kind == _TORCH and event.type in (ALLOC, FREE)
            if is_block or (event.type != FAILED and account.owns(event.address)):
                continue
        if event.process:
            apart = min(event.process, _MAX_PROCESSES - 1) << _APART
            event = event._replace(address=event.address + apart, context=event.context + apart)
        yield event


# ---- the parts of a snapshot ----


def _describe(stack: CallStack, known: dict[Frame, dict[str, Any]]) -> Frames:
    """Innermost first, as PyTorch has them. Frames are shared through *known*: each is pickled once."""
    for frame in stack.frames:
        if frame not in known:
            line = min(frame.line, 2**31 - 1)
            known[frame] = {"name": text(frame.function), "filename": text(frame.file), "line": line}
    return [known[frame] for frame in stack.frames]


def _event(
    action: str, address: int, nbytes: int, stream: int, time_us: int, frames: Frames
) -> dict[str, Any]:
    event = {
        "action": action,
        "addr": address,
        "size": nbytes,
        "stream": stream,
        "time_us": time_us,
        "frames": frames,
    }
    if action == "oom":
        event["device_free"] = 0  # a trace does not have it
    return event


def _segment(
    gpu: int, address: int, nbytes: int, blocks: list[dict[str, Any]], *, is_expandable: bool
) -> dict[str, Any]:
    used = sum(block["size"] for block in blocks if block["state"] != "inactive")
    return {
        "device": gpu,
        "address": address,
        "total_size": nbytes,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "large" if nbytes > 2 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": is_expandable,
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, nbytes: int, requested: int, state: str, frames: Frames) -> dict[str, Any]:
    return {
        "address": address,
        "size": nbytes,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }


def _unused(address: int, end: int) -> dict[str, Any]:
    return _block(address, end - address, 0, "inactive", [])


# ---- what PyTorch says ----

# By the actions of torch_history.
_ACTIONS = ("alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
_STATES = {IN_USE: "active_allocated", AWAITING_FREE: "active_awaiting_free"}


def _torch_memories(trace: Trace) -> dict[int, _TorchMemory]:
    """The last account of each process that left one."""
    found: dict[int, _TorchMemory] = {}
    for process, name, data in trace.blobs():
        if name == "torch":
            try:
                snapshot = torch_history.decode(data)
            except untrusted.Rejected:
                continue
            if snapshot.at not in ("begin", "attach"):
                found[process] = _TorchMemory(snapshot, process << _APART)
    return found


class _TorchMemory:
    """What PyTorch took from the driver in one process, and what it did with it."""

    def __init__(self, snapshot: Snapshot, offset: int) -> None:
        self._snapshot, self._offset = snapshot, offset
        self._frames: dict[int, Frames] = {}
        self._known: dict[Frame, dict[str, Any]] = {}
        ranges = [(address, address + nbytes) for _, address, nbytes, _, _ in snapshot.segments]
        for history in snapshot.traces:
            rows = zip(history.action, history.address, history.nbytes, strict=True)
            ranges += [(address, address + nbytes) for action, address, nbytes in rows if action in TAKES]
        self._starts, self._ends = _join(ranges)

    def owns(self, address: int) -> bool:
        """Whether memory of the driver at *address* is PyTorch's."""
        found = bisect_right(self._starts, address) - 1
        return found >= 0 and address < self._ends[found]

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every event with its GPU, oldest first."""
        for gpu, history in enumerate(self._snapshot.traces):
            rows = zip(
                history.action, history.address, history.nbytes, history.time_us, history.stack, strict=True
            )
            for action, address, nbytes, time_us, stack in rows:
                frames = self._frames_of(stack)
                yield gpu, _event(_ACTIONS[action], address + self._offset, nbytes, 0, time_us, frames)

    def segments(self) -> Iterator[dict[str, Any]]:
        """What PyTorch has when the account was written."""
        for gpu, address, nbytes, is_expandable, blocks in self._snapshot.segments:
            begin = address + self._offset
            shown = list(self._blocks(begin, begin + nbytes, blocks))
            yield _segment(gpu, begin, nbytes, shown, is_expandable=is_expandable)

    def _blocks(self, address: int, end: int, blocks: list[int]) -> Iterator[dict[str, Any]]:
        for at in range(0, len(blocks), 4):
            size, requested, state, stack = blocks[at : at + 4]
            yield _block(address, size, requested, _STATES.get(state, "inactive"), self._frames_of(stack))
            address += size
        if address < end:
            yield _unused(address, end)

    def _frames_of(self, number: int) -> Frames:
        found = self._frames.get(number)
        if found is None:
            stack = torch_history.stack_of(self._snapshot, number)
            found = self._frames[number] = _describe(stack, self._known)
        return found


def _join(ranges: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Ranges without overlaps, in order: where they start, where they end."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(ranges):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


# ---- what the driver says ----


class _Segments:
    """Finds by address and time which memory of the driver has a framework's blocks in it, and which blocks
    lie in none: their segment is older than the recording."""

    def __init__(self) -> None:
        self.holding: set[tuple[int, int]] = set()
        self.outside: set[tuple[int, int]] = set()
        self._starts: list[int] = []
        self._at: dict[int, tuple[int, int]] = {}

    def add(self, event: TraceEvent) -> None:
        if event.type == ALLOC and event.kind >= _FIRST_BLOCK:
            found = bisect_right(self._starts, event.address) - 1
            start = self._starts[found] if found >= 0 else 0
            end, time_ns = self._at[start] if found >= 0 else (0, 0)
            if event.address < end:
                self.holding.add((start, time_ns))
            else:
                self.outside.add((event.address, event.time_ns))
        elif _begins_segment(event):
            if event.address not in self._at:
                insort(self._starts, event.address)
            self._at[event.address] = (event.address + event.nbytes, event.time_ns)
        elif _ends_segment(event) and event.address in self._at:
            del self._at[event.address]
            del self._starts[bisect_right(self._starts, event.address) - 1]


def _begins_segment(event: TraceEvent) -> bool:
    """A plain allocation, or a handle's memory where it is mapped."""
    return event.type == MAP or (event.type == ALLOC and _is_plain(event))


def _ends_segment(event: TraceEvent) -> bool:
    return event.type == UNMAP or (event.type == FREE and _is_plain(event))


def _is_plain(event: TraceEvent) -> bool:
    return event.kind in ON_GPU_KINDS and event.kind != PHYSICAL


class _History:
    """The events of each GPU, and what is live."""

    def __init__(self, trace: Trace, split: _Segments, own: dict[int, _TorchMemory]) -> None:
        view = trace.view()
        self._naming, self._own = naming(view, trace.builds()), own
        self._began_us = view.processes[0].started_wall_ns // 1000 if view.processes else 0
        self._holding, self._outside = split.holding, split.outside
        self._frames: dict[int, Frames] = {}
        self._known: dict[Frame, dict[str, Any]] = {}
        self._traces: dict[int, deque[dict[str, Any]]] = {}
        self._segments: dict[int, TraceEvent] = {}
        self._blocks: dict[int, TraceEvent] = {}
        self._ordered: list[int] = []
        """The addresses of the blocks."""
        self._in_context: dict[tuple[int, int], dict[int, None]] = {}

    def add(self, event: TraceEvent, stacks: StackTable) -> None:
        address, is_block = event.address, event.kind >= _FIRST_BLOCK
        if event.type in (ALLOC, FAILED, MAP) and event.stack not in self._frames:
            stack = named(stacks[event.stack], self._naming)
            self._frames[event.stack] = _describe(stack, self._known)
        if event.type == ALLOC and is_block and (address, event.time_ns) not in self._outside:
            if address not in self._blocks:
                insort(self._ordered, address)
            self._blocks[address] = event
            self._keep("alloc", event)
        elif event.type == FREE and is_block:
            if address in self._blocks:
                self._end_block(address, event.time_ns)
            elif address in self._segments:
                self._end_segment(address, event.time_ns)
        elif _begins_segment(event) or (event.type == ALLOC and is_block):
            # The viewer draws no block without a segment: one that lies in none is its own.
            if (replaced := self._segments.get(address)) is not None:
                del self._in_context[replaced.process, replaced.context][address]
            self._segments[address] = event
            self._in_context.setdefault((event.process, event.context), {})[address] = None
            self._keep("segment_map" if event.type == MAP else "segment_alloc", event)
            if not self._holds_blocks(event):
                self._keep("alloc", event)
        elif _ends_segment(event):
            self._end_segment(address, event.time_ns)
        elif event.type == FREE and event.kind == CONTEXT:
            self._end_context(event)
        elif event.type == FAILED:
            self._keep("oom", event)

    def _end_block(self, address: int, time_ns: int) -> None:
        self._keep("free_completed", self._blocks.pop(address), time_ns)
        del self._ordered[bisect_left(self._ordered, address)]

    def _end_segment(self, address: int, time_ns: int) -> None:
        made = self._segments.pop(address, None)
        if made is not None:
            del self._in_context[made.process, made.context][address]
            if self._holds_blocks(made):
                for block in self._blocks_between(address, address + made.nbytes):
                    self._end_block(block, time_ns)
            else:
                self._keep("free_completed", made, time_ns)
            self._keep("segment_unmap" if made.type == MAP else "segment_free", made, time_ns)

    def _end_context(self, context: TraceEvent) -> None:
        """What was allocated in a context ends with it, without events of its own."""
        inside = self._in_context.get((context.process, context.address), {})
        for made in [self._segments[address] for address in inside]:
            if made.type == ALLOC and made.kind not in OUTLIVE_CONTEXT:
                self._end_segment(made.address, context.time_ns)

    def _holds_blocks(self, segment: TraceEvent) -> bool:
        return (segment.address, segment.time_ns) in self._holding

    def _blocks_between(self, begin: int, end: int) -> list[int]:
        return self._ordered[bisect_left(self._ordered, begin) : bisect_left(self._ordered, end)]

    def _keep(self, action: str, made: TraceEvent, time_ns: int | None = None) -> None:
        kept = self._traces.setdefault(max(0, made.gpu), deque(maxlen=MAX_EVENTS))
        time_us = self._began_us + (made.time_ns if time_ns is None else time_ns) // 1000
        frames = self._frames[made.stack]
        kept.append(_event(action, made.address, made.nbytes, made.stream, time_us, frames))

    def snapshot(self) -> dict[str, Any]:
        starts = sorted(self._segments)
        shown = []
        for start, following in pairwise([*starts, 1 << 64]):
            made = self._segments[start]
            blocks = self._fill(made, following)
            segment = _segment(max(0, made.gpu), start, made.nbytes, blocks, is_expandable=made.type == MAP)
            shown.append(segment | {"stream": made.stream, "frames": self._frames[made.stack]})
        for account in self._own.values():
            shown += account.segments()
        traces = self._all_traces()
        gpus = [*traces, *(segment["device"] for segment in shown)]
        return {
            "segments": shown,
            "device_traces": [traces.get(gpu, []) for gpu in range(max(gpus, default=-1) + 1)],
        }

    def _all_traces(self) -> dict[int, list[dict[str, Any]]]:
        """The events of the driver and of PyTorch, in the order of time; the last ones of many."""
        traces = {gpu: list(kept) for gpu, kept in self._traces.items()}
        for account in self._own.values():
            for gpu, event in account.events():
                traces.setdefault(gpu, []).append(event)
        if self._own:
            for kept in traces.values():
                kept.sort(key=lambda event: event["time_us"])
                del kept[:-MAX_EVENTS]
        return traces

    def _fill(self, segment: TraceEvent, following: int) -> list[dict[str, Any]]:
        """The blocks of a segment, with what lies between them."""
        if not self._holds_blocks(segment):
            return [self._used(segment.address, segment.nbytes, segment)]
        # Segments do not overlap, except in a trace that was made to say so.
        end = min(segment.address + segment.nbytes, following)
        filled, at = [], segment.address
        for address in self._blocks_between(segment.address, end):
            block = self._blocks[address]
            if address > at:
                filled.append(_unused(at, address))
            if address >= at:
                nbytes = min(block.nbytes, end - address)
                filled.append(self._used(address, nbytes, block))
                at = address + nbytes
        if at < end:
            filled.append(_unused(at, end))
        return filled

    def _used(self, address: int, nbytes: int, made: TraceEvent) -> dict[str, Any]:
        return _block(address, nbytes, nbytes, "active_allocated", self._frames[made.stack])
