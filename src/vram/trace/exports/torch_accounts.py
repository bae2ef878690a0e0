"""PyTorch's own account of a traced process, in the form of its memory viewer.

Where a trace was recorded with ``--framework torch``, a process has left its allocator's history. Its events
and segments stand for the memory that PyTorch took from the driver.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vram import untrusted
from vram.model.trace import CallStack, Frame
from vram.trace.exports.places import text
from vram.trace.frameworks import torch_history
from vram.trace.frameworks.torch_history import (
    ALLOC,
    AWAITING_FREE,
    FREE,
    IN_USE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    TAKES,
    Snapshot,
)

if TYPE_CHECKING:
    from vram.trace.reader import Trace

ACTIONS = {
    ALLOC: "alloc",
    FREE: "free_completed",
    SEGMENT_ALLOC: "segment_alloc",
    SEGMENT_FREE: "segment_free",
    SEGMENT_MAP: "segment_map",
    SEGMENT_UNMAP: "segment_unmap",
    OOM: "oom",
}
STATES = {IN_USE: "active_allocated", AWAITING_FREE: "active_awaiting_free"}

Frames = list[dict[str, Any]]


def accounts(trace: Trace, shift: int) -> dict[int, TorchMemory]:
    """The last account of each process that left one; addresses of process N are moved by N << *shift*."""
    found: dict[int, TorchMemory] = {}
    for process, name, data in trace.blobs():
        if name != "torch":
            continue
        try:
            snapshot = torch_history.decode(data)
        except untrusted.Rejected:
            continue
        if snapshot.at not in ("begin", "attach"):
            found[process] = TorchMemory(snapshot, process << shift)
    return found


class TorchMemory:
    """What PyTorch took from the driver in one process, and what it did with it."""

    def __init__(self, snapshot: Snapshot, offset: int) -> None:
        self._snapshot, self._offset = snapshot, offset
        self._frames: dict[int, Frames] = {}
        self._known: dict[Frame, dict[str, Any]] = {}
        ranges = [(address, address + nbytes) for _, address, nbytes, _, _ in snapshot.segments]
        for history in snapshot.traces:
            rows = zip(history.action, history.address, history.nbytes, strict=True)
            ranges += [(address, address + nbytes) for action, address, nbytes in rows if action in TAKES]
        self._starts, self._ends = _joined(ranges)

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
                event = {
                    "action": ACTIONS[action],
                    "addr": address + self._offset,
                    "size": nbytes,
                    "stream": 0,
                    "time_us": time_us,
                    "frames": self._described(stack),
                }
                if action == OOM:
                    event["device_free"] = 0
                yield gpu, event

    def segments(self) -> Iterator[dict[str, Any]]:
        """What PyTorch has when the account was written."""
        for gpu, address, nbytes, is_expandable, blocks in self._snapshot.segments:
            shown = list(self._blocks(address + self._offset, nbytes, blocks))
            used = sum(block["size"] for block in shown if block["state"] != "inactive")
            yield {
                "device": gpu,
                "address": address + self._offset,
                "total_size": nbytes,
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block["requested_size"] for block in shown),
                "stream": 0,
                "segment_type": "large" if nbytes > 2 << 20 else "small",
                "segment_pool_id": (0, 0),
                "is_expandable": is_expandable,
                "frames": [],
                "blocks": shown,
            }

    def _blocks(self, address: int, nbytes: int, blocks: list[int]) -> Iterator[dict[str, Any]]:
        end = address + nbytes
        for at in range(0, len(blocks), 4):
            size, asked, state, stack = blocks[at : at + 4]
            yield {
                "address": address,
                "size": size,
                "requested_size": asked,
                "state": STATES.get(state, "inactive"),
                "frames": self._described(stack),
            }
            address += size
        if address < end:
            rest = {"address": address, "size": end - address, "requested_size": 0}
            yield {**rest, "state": "inactive", "frames": []}

    def _described(self, number: int) -> Frames:
        found = self._frames.get(number)
        if found is None:
            stack = torch_history.stack_of(self._snapshot, number)
            found = self._frames[number] = described(stack, self._known)
        return found


def described(stack: CallStack, known: dict[Frame, dict[str, Any]]) -> Frames:
    """Innermost first, as PyTorch has them; each frame, and the list of a stack, is pickled once.

    *known* has the frames of other stacks.
    """
    for frame in stack.frames:
        if frame not in known:
            line = min(frame.line, 2**31 - 1)
            known[frame] = {"name": text(frame.function), "filename": text(frame.file), "line": line}
    return [known[frame] for frame in stack.frames]


def _joined(ranges: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
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
