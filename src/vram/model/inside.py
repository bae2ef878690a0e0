"""What a process has on GPUs by its own account: its arrays, and who refers to them.

Every field was written inside somebody else's program: sizes are checked, text is bounded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from vram.model.plan import Target
from vram.model.trimming import Bytes, CacheLine, Count, Ordinal, Seconds, Text, Via

Shape = Annotated[tuple[Bytes, ...], Meta(max_length=32)]

# What a process is asked for at most; more is no answer to that.
MOST_GROUPS = 500

HeldBy = Literal[
    "cell",
    "output",
    "module",
    "frame",
    "exception",
    "thread",
    "closure",
    "generator",
    "cycle",
    "native",
    "gone",
    "unknown",
]


class ArrayGroup(Struct, frozen=True, kw_only=True):
    """Arrays that are alike and lie side by side.

    ``nbytes`` is the memory that they keep from being freed, zero where arrays before them keep the
    same (``is_shared``); ``each_nbytes`` is one array's. ``device`` is the number that the process knows
    the GPU by. ``held_by`` is the shortest chain of references, in the program's own names; ``kind``
    what it begins with.
    """

    framework: Text
    device: Ordinal | None
    dtype: Text
    shape: Shape
    count: Count
    each_nbytes: Bytes
    nbytes: Bytes
    is_shared: bool
    note: Text
    held_by: Text
    kind: HeldBy


class LeftOut(Struct, frozen=True, kw_only=True):
    """What an answer has no room for."""

    groups: Count = 0
    arrays: Count = 0
    nbytes: Bytes = 0


class Inside(Struct, frozen=True, kw_only=True):
    """A process's own account. ``nbytes`` counts shared memory once; ``lines`` are the frameworks' pools.

    The look took ``took_s``, of which it worked for ``worked_s``; ``longest_s`` is its longest stretch
    of work without a rest: for so long at most, no other thread of the program ran.
    """

    status: Literal["done"]
    python: Text
    devices: Annotated[dict[Text, Text | None], Meta(max_length=4096)]
    lines: Annotated[tuple[CacheLine, ...], Meta(max_length=10_000)]
    objects: Count
    arrays: Count
    nbytes: Bytes
    frameworks: Annotated[dict[Text, Bytes], Meta(max_length=100)]
    groups: Annotated[tuple[ArrayGroup, ...], Meta(max_length=MOST_GROUPS)]
    left_out: LeftOut
    was_cut: bool
    took_s: Seconds
    worked_s: Seconds
    longest_s: Seconds
    notes: Annotated[tuple[Text, ...], Meta(max_length=50)] = ()


class Split(Struct, frozen=True, kw_only=True):
    """What one GPU's driver charges a process with, by what it is for; the parts sum to ``charged``.

    ``arrays`` are those that Python knows; ``unseen`` is in use by a framework without an array that
    Python can see, as what a backward pass still needs; ``cached`` comes back by a trim; ``pooled`` is
    lost in pools that do not shrink; ``rest`` is the context, code, and what nobody accounts for.
    """

    gpu: int
    charged: int
    arrays: int
    unseen: int
    cached: int
    pooled: int
    rest: int


class InsideReceipt(Struct, frozen=True, kw_only=True):
    """One process that was asked. ``gpu_of`` gives the machine's number for each of the process's own.

    ``stopped_s`` is for how long it stood still while the question was brought in; None where
    it never did.
    """

    target: Target
    via: Via
    stopped_s: float | None
    took_s: float
    answer: Inside
    gpu_of: dict[int, int]
    splits: tuple[Split, ...]
