"""PyTorch's account of its own memory: the blob that a traced program leaves, checked and put in order.

``vram.payloads.tracer.frameworks`` writes it. The program that was traced may have written anything:
sizes are bounded before memory is taken for them, and every number is checked before it is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Struct

from vram import untrusted
from vram.model.trace import CallStack, Frame

FORM = 1
MAX_TEXT = 128 << 20
# What was packed expands to about ten times its size; a blob that was made for it, to a thousand times.
MAX_EXPANSION, MIN_LIMIT = 100, 1 << 20
DEEPEST, MAX_NAME_LENGTH = 512, 1024
MAX_ITEMS = 8_000_000

ALLOC, FREE, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM = range(7)
TAKES = (SEGMENT_ALLOC, SEGMENT_MAP)
RETURNS = (SEGMENT_FREE, SEGMENT_UNMAP)
USED = (1, -1, 0, 0, 0, 0, 0)
RESERVED = (0, 0, 1, -1, 1, -1, 0)
"""By action: whether its bytes are added to what tensors hold, and to what was taken from the driver."""
IN_USE, AWAITING_FREE, UNUSED = range(3)

CLOCK_ERROR_US = 1000
"""PyTorch converts its clock, and notes what the driver returned some microseconds later."""

_HIGHEST = 1 << 64
_MAX_GPUS = 256


class Columns(Struct, frozen=True):
    """The history of one GPU, oldest first: what happened, where, how much, when, by which stack."""

    action: list[int]
    address: list[int]
    nbytes: list[int]
    time_us: list[int]
    stack: list[int]


class Snapshot(Struct, frozen=True, kw_only=True):
    """The blob as it was written."""

    form: int
    at: Literal["begin", "attach", "exit", "detach", "oom"]
    wall_ns: int
    """When it was taken. The history's times are those of the same clock."""
    ours: bool
    """Whether the recorder switched the history on; else the program had, with its own settings."""
    version: str = ""
    limit: int = 0
    expandable: bool = False
    segments: list[tuple[int, int, int, bool, list[int]]] = []
    traces: list[Columns] = []
    left_out: list[int] = []
    texts: list[str] = []
    frames: list[tuple[int, int, int]] = []
    stacks: list[list[int]] = []


class Block(NamedTuple):
    """A tensor's memory: from when to when, as far as the history knows."""

    address: int
    nbytes: int
    stack: int
    begin: int | None
    """Number of the event that allocated it; None: before the history begins."""
    end: int | None
    """Number of the event that freed it; None: never."""


def decode(data: bytes) -> Snapshot:
    """The snapshot in a blob. Raises ``untrusted.Rejected``."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, min(MAX_TEXT, unpacked_limit(len(data))))
    except zlib.error as error:
        raise untrusted.Rejected("wrong-shape", f"it cannot be unpacked: {error}") from error
    if not unpacking.eof:
        code: untrusted.Code = "too-large" if unpacking.unconsumed_tail else "cut-short"
        raise untrusted.Rejected(code, "it is larger than allowed, or cut short")
    snapshot = untrusted.decode(text, Snapshot, most_items=MAX_ITEMS)
    if snapshot.form != FORM:
        raise untrusted.Rejected("wrong-shape", f"its form is {snapshot.form}; this vram reads form {FORM}")
    for problem in _problems(snapshot):
        raise untrusted.Rejected("wrong-shape", problem)
    return snapshot


def unpacked_limit(nbytes: int) -> int:
    """How large a blob of *nbytes* may become."""
    return max(MIN_LIMIT, nbytes * MAX_EXPANSION)


def _problems(snapshot: Snapshot) -> Iterator[str]:
    """What does not fit together; the first is enough."""
    if not all(_below(numbers[:2], len(snapshot.texts)) and numbers[2] >= 0 for numbers in snapshot.frames):
        yield "a frame names a text that is not there"
    if not all(_below(frames, len(snapshot.frames)) for frames in snapshot.stacks):
        yield "a stack names a frame that is not there"
    for gpu, address, nbytes, _, blocks in snapshot.segments:
        is_in_memory = min(address, nbytes) >= 0 and address + nbytes < _HIGHEST
        if not 0 <= gpu < _MAX_GPUS or not is_in_memory or len(blocks) % 4:
            yield "a segment is impossible"
        if not _below(blocks[3::4], len(snapshot.stacks)) or not _below(blocks[2::4], 3):
            yield "a block is impossible"
        if min(blocks, default=0) < 0 or sum(blocks[0::4]) > nbytes or sum(blocks[1::4]) > nbytes:
            yield "a segment's blocks are larger than the segment"
    if len(snapshot.traces) > _MAX_GPUS:
        yield "it has too many GPUs"
    for each in snapshot.traces:
        lengths = {
            len(column) for column in (each.action, each.address, each.nbytes, each.time_us, each.stack)
        }
        if len(lengths) != 1:
            yield "the columns of the history differ in length"
        if not _below(each.action, 7) or not _below(each.stack, len(snapshot.stacks)):
            yield "an event is impossible"
        if min(each.address, default=0) < 0 or not _below(each.nbytes, _HIGHEST):
            yield "an event's address or size is impossible"
        if not _below(each.time_us, 1 << 53):
            yield "an event's time is impossible"


def _below(numbers: list[int] | tuple[int, ...], end: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < end)


def stack_of(snapshot: Snapshot, number: int) -> CallStack:
    """A stack in the words of a trace. PyTorch gives frames of C++ without a line."""
    frames = []
    for each in snapshot.stacks[number][:DEEPEST] if number < len(snapshot.stacks) else ():
        name, file, line = snapshot.frames[each]
        language: Literal["python", "native"] = "python" if line else "native"
        texts = snapshot.texts[name][:MAX_NAME_LENGTH], snapshot.texts[file][:MAX_NAME_LENGTH]
        frames.append(Frame(language, texts[0], texts[1], line))
    return CallStack(tuple(frames))


# ---- what was where, when ----


class PeakUse(NamedTuple):
    """The state after an event (-1: before the first)."""

    event: int
    used: int
    reserved: int


class GpuHistory:
    """One GPU's part of a snapshot: its segments and blocks, and what was in use at any event."""

    def __init__(self, snapshot: Snapshot, gpu: int) -> None:
        self.snapshot, self.gpu = snapshot, gpu
        empty = Columns([], [], [], [], [])
        self.events = snapshot.traces[gpu] if gpu < len(snapshot.traces) else empty
        self.reserved_end = sum(each[2] for each in snapshot.segments if each[0] == gpu)
        self.live: dict[int, tuple[int, int]] = dict(self._live_at_end())
        """What tensors hold when the snapshot was taken: address to (bytes, stack)."""
        self.blocks = list(self._blocks())

    def _live_at_end(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for gpu, address, _, _, blocks in self.snapshot.segments:
            if gpu != self.gpu:
                continue
            for at in range(0, len(blocks), 4):
                nbytes, asked, state, stack = blocks[at : at + 4]
                if state != UNUSED:
                    yield address, (asked, stack)
                address += nbytes

    def _blocks(self) -> Iterator[Block]:
        """Every block that the history or the snapshot knows."""
        events, began = self.events, dict[int, int]()
        for number, action in enumerate(events.action):
            address = events.address[number]
            if action == ALLOC:
                began[address] = number
            elif action == FREE:
                begin = began.pop(address, None)
                stack = 0 if begin is None else events.stack[begin]
                yield Block(address, events.nbytes[number], stack, begin, number)
        for address, (nbytes, stack) in self.live.items():
            yield Block(address, nbytes, stack, began.get(address), None)

    def moment_of_most_use(self, since_us: int) -> PeakUse | None:
        """The event after which tensors held most, from *since_us* up to the next return of a segment.

        A segment that makes a GPU's peak is taken right before the tensor that needed it: the fullest moment
        of that stretch says what the memory was for. None where the history does not reach back so far.
        """
        events = self.events
        used, reserved = self._before_the_history()
        first, last = since_us - CLOCK_ERROR_US, since_us + CLOCK_ERROR_US
        if reserved and events.time_us and events.time_us[0] > last:
            return None
        best = PeakUse(-1, used, reserved)
        for number, action in enumerate(events.action):
            time_us = events.time_us[number]
            if action in RETURNS and time_us > last:
                break
            used += USED[action] * events.nbytes[number]
            reserved += RESERVED[action] * events.nbytes[number]
            if time_us < first or used >= best.used:
                best = PeakUse(number, used, reserved)
        return best

    @property
    def begins_late(self) -> bool:
        """Whether PyTorch had memory when the history begins: it lacks what came before."""
        return any(self._before_the_history())

    def _before_the_history(self) -> tuple[int, int]:
        """(bytes in blocks, bytes of segments) when the history begins: the end, with every event undone."""
        used = sum(each.nbytes for each in self.blocks if each.begin is None)
        changes = zip(self.events.action, self.events.nbytes, strict=True)
        taken = sum(RESERVED[action] * nbytes for action, nbytes in changes)
        return used, max(0, self.reserved_end - taken)

    def live_at(self, number: int) -> Iterator[Block]:
        """The blocks that tensors held after event *number*."""
        for each in self.blocks:
            begun = each.begin is None or each.begin <= number
            if begun and (each.end is None or each.end > number):
                yield each
