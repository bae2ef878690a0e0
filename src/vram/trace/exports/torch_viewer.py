"""A trace for PyTorch's memory viewer (pytorch.org/memory_viz, torch/cuda/_memory_viz.py): a pickle.

Its form is that of ``torch.cuda.memory._snapshot()``: ``device_traces`` has a list of events for each GPU,
``segments`` what is live at the end, in blocks that fill each segment. Memory of the driver is a segment.
Where no framework's blocks lie in it, one block fills it, so that the viewer draws it too. Of a process that
left PyTorch's own history, that is what the viewer gets, and the driver's memory outside of it.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from vram.model.trace import KIND_NUMBERS, Frame
from vram.trace.exports.places import CONTEXT, ON_GPU_KINDS, OUTLIVE_CONTEXT, PHYSICAL, named
from vram.trace.exports.torch_accounts import Frames, TorchMemory, accounts, described
from vram.trace.naming import naming
from vram.trace.reader import ALLOC, FAILED, FREE, MAP, UNMAP

if TYPE_CHECKING:
    from vram.trace.analysis import StackTable
    from vram.trace.reader import EventBatch, Trace

# As many as PyTorch keeps at most by default; a browser takes no more. The last ones are kept.
MAX_EVENTS = 1_000_000
_FIRST_BLOCK = _TORCH = KIND_NUMBERS["torch block"]
# Processes have their own addresses: those of later ones are moved apart. JavaScript counts up to 2**53.
_APART = 48
_MAX_PROCESSES = 32


def write(trace: Trace, stream: BinaryIO) -> None:
    """Write the snapshot of *trace*; of a long one, its last events."""
    own = accounts(trace, _APART)
    split = _Segments()
    for batch in trace.events():
        for row in _rows(batch, own):
            split.add(row)
    history = _History(trace, split, own)
    for batch in trace.events():
        for row in _rows(batch, own):
            history.add(row, batch.stacks)
    pickle.dump(history.snapshot(), stream, protocol=4)


class _Row:
    """One event."""

    __slots__ = (
        "address",
        "context",
        "frames",
        "gpu",
        "handle",
        "kind",
        "nbytes",
        "process",
        "stack",
        "stream",
        "time_ns",
        "type",
    )

    def __init__(self, *values: int) -> None:
        (
            self.type,
            self.kind,
            self.time_ns,
            self.process,
            self.gpu,
            self.nbytes,
            self.handle,
            self.context,
            self.stream,
            self.stack,
        ) = values
        self.frames: Frames = []
        self.address = self.handle + (min(self.process, _MAX_PROCESSES - 1) << _APART)


def _rows(batch: EventBatch, own: dict[int, TorchMemory]) -> Iterator[_Row]:
    """The events, without those of memory that PyTorch accounts for itself."""
    rows = map(
        _Row,
        batch.type,
        batch.kind,
        batch.time_ns,
        batch.process,
        batch.gpu,
        batch.nbytes,
        batch.address,
        batch.context,
        batch.stream,
        batch.stack,
    )
    if not own:
        return rows
    return (row for row in rows if not _is_accounted(row, own.get(row.process)))


def _is_accounted(row: _Row, account: TorchMemory | None) -> bool:
    if account is None:
        return False
    is_block = row.kind == _TORCH and row.type in (ALLOC, FREE)
    return is_block or (row.type != FAILED and account.owns(row.handle))


class _Segments:
    """Finds which memory of the driver has a framework's blocks in it, and which blocks lie in none.

    Both by address and time. A block lies in none where a process was attached to: its segment is older.
    """

    def __init__(self) -> None:
        self.holding: set[tuple[int, int]] = set()
        self.outside: set[tuple[int, int]] = set()
        self._starts: list[int] = []
        self._at: dict[int, tuple[int, int]] = {}

    def add(self, row: _Row) -> None:
        if row.type == ALLOC and row.kind >= _FIRST_BLOCK:
            found = bisect_right(self._starts, row.address) - 1
            start = self._starts[found] if found >= 0 else 0
            end, time_ns = self._at[start] if found >= 0 else (0, 0)
            if row.address < end:
                self.holding.add((start, time_ns))
            else:
                self.outside.add((row.address, row.time_ns))
        elif _begins_segment(row):
            if row.address not in self._at:
                insort(self._starts, row.address)
            self._at[row.address] = (row.address + row.nbytes, row.time_ns)
        elif _ends_segment(row) and row.address in self._at:
            del self._at[row.address]
            del self._starts[bisect_right(self._starts, row.address) - 1]


def _begins_segment(row: _Row) -> bool:
    """A plain allocation, or a handle's memory where it is mapped."""
    return row.type == MAP or (row.type == ALLOC and row.kind in ON_GPU_KINDS and row.kind != PHYSICAL)


def _ends_segment(row: _Row) -> bool:
    return row.type == UNMAP or (row.type == FREE and row.kind in ON_GPU_KINDS and row.kind != PHYSICAL)


class _History:
    """The events of each GPU, and what is live."""

    def __init__(self, trace: Trace, split: _Segments, own: dict[int, TorchMemory]) -> None:
        view = trace.view()
        self._naming, self._own = naming(view, trace.builds()), own
        self._began_us = view.processes[0].started_wall_ns // 1000 if view.processes else 0
        self._holding, self._outside = split.holding, split.outside
        self._frames: dict[int, Frames] = {}
        self._known: dict[Frame, dict[str, Any]] = {}
        self._traces: dict[int, deque[dict[str, Any]]] = {}
        self._segments: dict[int, _Row] = {}
        self._blocks: dict[int, _Row] = {}
        self._ordered: list[int] = []
        """The addresses of the blocks."""
        self._starts: list[int] = []
        """Those of the segments, at the end."""
        self._in_context: dict[tuple[int, int], dict[int, None]] = {}

    def add(self, row: _Row, stacks: StackTable) -> None:
        if row.type in (ALLOC, FAILED, MAP):
            row.frames = self._described(row.stack, stacks)
        if row.type == ALLOC and row.kind >= _FIRST_BLOCK and (row.address, row.time_ns) not in self._outside:
            if row.address not in self._blocks:
                insort(self._ordered, row.address)
            self._blocks[row.address] = row
            self._keep("alloc", row)
        elif row.type == FREE and row.kind >= _FIRST_BLOCK:
            if row.address in self._blocks:
                self._end_block(row.address, row.time_ns)
            elif row.address in self._segments:
                self._end_segment(row.address, row.time_ns)
        elif _begins_segment(row) or (row.type == ALLOC and row.kind >= _FIRST_BLOCK):
            # The viewer draws no block without a segment: one that lies in none is its own.
            if (replaced := self._segments.get(row.address)) is not None:
                del self._in_context[replaced.process, replaced.context][row.address]
            self._segments[row.address] = row
            self._in_context.setdefault((row.process, row.context), {})[row.address] = None
            self._keep("segment_map" if row.type == MAP else "segment_alloc", row)
            if not self._holds_blocks(row):
                self._keep("alloc", row)
        elif _ends_segment(row):
            self._end_segment(row.address, row.time_ns)
        elif row.type == FREE and row.kind == CONTEXT:
            self._end_context(row)
        elif row.type == FAILED:
            self._keep("oom", row)

    def _end_block(self, address: int, time_ns: int) -> None:
        self._keep("free_completed", self._blocks.pop(address), time_ns)
        del self._ordered[bisect_left(self._ordered, address)]

    def _end_segment(self, address: int, time_ns: int) -> None:
        made = self._segments.pop(address, None)
        if made is not None:
            del self._in_context[made.process, made.context][address]
            if self._holds_blocks(made):
                first = bisect_left(self._ordered, address)
                last = bisect_left(self._ordered, address + made.nbytes)
                for block in self._ordered[first:last]:
                    self._end_block(block, time_ns)
            else:
                self._keep("free_completed", made, time_ns)
            self._keep("segment_unmap" if made.type == MAP else "segment_free", made, time_ns)

    def _end_context(self, row: _Row) -> None:
        """What was allocated in a context ends with it, without events of its own."""
        inside = self._in_context.get((row.process, row.handle), {})
        for made in [self._segments[address] for address in inside]:
            if made.type == ALLOC and made.kind not in OUTLIVE_CONTEXT:
                self._end_segment(made.address, row.time_ns)

    def _holds_blocks(self, row: _Row) -> bool:
        return (row.address, row.time_ns) in self._holding

    def _keep(self, action: str, row: _Row, time_ns: int | None = None) -> None:
        kept = self._traces.setdefault(max(0, row.gpu), deque(maxlen=MAX_EVENTS))
        at = row.time_ns if time_ns is None else time_ns
        event = {
            "action": action,
            "addr": row.address,
            "size": row.nbytes,
            "stream": row.stream,
            "time_us": self._began_us + at // 1000,
            "frames": row.frames,
        }
        if action == "oom":
            event["device_free"] = 0  # a trace does not have it
        kept.append(event)

    def _described(self, number: int, stacks: StackTable) -> Frames:
        found = self._frames.get(number)
        if found is None:
            found = self._frames[number] = described(named(stacks[number], self._naming), self._known)
        return found

    def snapshot(self) -> dict[str, Any]:
        self._starts = sorted(self._segments)
        segments = [self._segments[address] for address in self._starts]
        shown = [self._segment(row) for row in segments]
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

    def _segment(self, row: _Row) -> dict[str, Any]:
        blocks = self._filled(row)
        used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": max(0, row.gpu),
            "address": row.address,
            "total_size": row.nbytes,
            "allocated_size": used,
            "active_size": used,
            "requested_size": used,
            "stream": row.stream,
            "segment_type": "large" if row.nbytes > 2 << 20 else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": row.type == MAP,
            "frames": row.frames,
            "blocks": blocks,
        }

    def _filled(self, row: _Row) -> list[dict[str, Any]]:
        """The blocks of a segment, with what lies between them."""
        if not self._holds_blocks(row):
            return [self._block(row.address, row.nbytes, row)]
        # Segments do not overlap, except in a trace that was made to say so.
        after = bisect_right(self._starts, row.address)
        end = min(row.address + row.nbytes, *self._starts[after : after + 1] or [1 << 64])
        filled, at = [], row.address
        first, last = bisect_left(self._ordered, row.address), bisect_left(self._ordered, end)
        for address in self._ordered[first:last]:
            block = self._blocks[address]
            if address > at:
                filled.append(self._block(at, address - at, None))
            if address >= at:
                nbytes = min(block.nbytes, end - address)
                filled.append(self._block(address, nbytes, block))
                at = address + nbytes
        if at < end:
            filled.append(self._block(at, end - at, None))
        return filled

    def _block(self, address: int, nbytes: int, row: _Row | None) -> dict[str, Any]:
        return {
            "address": address,
            "size": nbytes,
            "requested_size": nbytes if row else 0,
            "state": "active_allocated" if row else "inactive",
            "frames": row.frames if row else [],
        }
