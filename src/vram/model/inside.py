"""What a process reports of itself: its arrays, its caches, and what trimming them freed."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from vram.model.plan import Target

# ---- caches, and what trimming them freed ----
#
# An answer was written inside another program: sizes are checked, text is bounded.

Via = Literal["agent", "jupyter", "remote-exec", "ptrace", "native"]
"""How a process is attached to, safest first; the last one is for every program, the others for Python."""

Verb = Literal["measure", "trim"]

Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Text = Annotated[str, Meta(max_length=400)]
Ordinal = Annotated[int, Meta(ge=0, le=4096)]


class CacheLine(Struct, frozen=True, kw_only=True):
    """One framework's memory on one device, by its own count; None where it does not report it.

    ``device`` is the number that the process itself knows the GPU by, which
    CUDA_VISIBLE_DEVICES may have changed.
    """

    name: Text
    memory: Literal["device", "pinned host"]
    device: Ordinal | None
    held: Bytes | None
    reclaimable: Bytes | None
    held_after: Bytes | None
    used: Bytes | None = None

    @property
    def returned_bytes(self) -> int | None:
        if self.held is None or self.held_after is None:
            return None
        return self.held - self.held_after


class Trimmed(Struct, frozen=True, kw_only=True):
    """A process's own account of being trimmed, or only measured."""

    status: Literal["done", "cancelled"]
    python: Text | None = None
    devices: Annotated[dict[Text, Text | None], Meta(max_length=4096)] = {}
    lines: Annotated[tuple[CacheLine, ...], Meta(max_length=10_000)] = ()
    collected: Count = 0
    dropped: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    exceptions_kept: Count | None = None
    notes: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    took_s: Seconds = 0.0

    @property
    def reclaimable_bytes(self) -> int:
        """Device memory that the frameworks call unused, as far as they report it."""
        return sum(line.reclaimable or 0 for line in self.lines if line.memory == "device")

    @property
    def returned_bytes(self) -> int:
        """Device memory that the frameworks released, by their own count."""
        return sum(line.returned_bytes or 0 for line in self.lines if line.memory == "device")


class TrimReceipt(Struct, frozen=True, kw_only=True):
    """One process trimmed: its own account, and the driver's figures before and after.

    Where the driver has no figures per process (WSL2), ``whole_gpu`` says that these are about
    all processes on those GPUs together. ``stopped_s`` is how long it was stopped, ``waited_s`` the longest
    time for which another of its threads waited.
    """

    target: Target
    gpus: tuple[int, ...]
    via: Via
    answer: Trimmed
    charged_before: int
    charged_after: int | None
    took_s: float
    stopped_s: float | None = None
    waited_s: float | None = None
    whole_gpu: bool = False

    @property
    def returned_bytes(self) -> int | None:
        """Measured by the driver; None where it could not be read again."""
        return None if self.charged_after is None else self.charged_before - self.charged_after


class Trimmable(Struct, frozen=True, kw_only=True):
    """One process with memory of its own. ``via`` None: it cannot be attached to, and ``reason`` says why.

    ``nbytes`` is all that the driver charges it with, None where it does not report that: how much of that is
    cache, only the process knows.
    """

    pid: int
    gpus: tuple[int, ...]
    nbytes: int | None
    user: str | None
    command: str
    via: Via | None
    reason: str = ""


# ---- arrays ----

Shape = Annotated[tuple[Bytes, ...], Meta(max_length=32)]

# What a process is asked for at most; more is no answer to that.
MAX_GROUPS = 500

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

    The search took ``took_s``, of which it worked for ``worked_s``; ``longest_s`` is its longest slice of
    work without a rest.
    """

    status: Literal["done"]
    python: Text
    devices: Annotated[dict[Text, Text | None], Meta(max_length=4096)]
    lines: Annotated[tuple[CacheLine, ...], Meta(max_length=10_000)]
    objects: Count
    arrays: Count
    nbytes: Bytes
    frameworks: Annotated[dict[Text, Bytes], Meta(max_length=100)]
    groups: Annotated[tuple[ArrayGroup, ...], Meta(max_length=MAX_GROUPS)]
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
    lost in pools that do not shrink; ``rest`` is the context, code, and what no account explains.
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
    it never did. ``waited_s`` is the longest time for which another of its threads waited.
    """

    target: Target
    via: Via
    stopped_s: float | None
    waited_s: float | None
    took_s: float
    answer: Inside
    gpu_of: dict[int, int]
    splits: tuple[Split, ...]
