"""What a process held as cache and what it released, as its own frameworks report it.

An answer was written inside somebody else's program: sizes are checked, text is bounded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from vram.model.plan import Target

Via = Literal["agent", "jupyter", "remote-exec", "ptrace"]
"""How a process is attached to, safest first."""

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
    everybody on those GPUs together. ``stopped_s`` is how long it was stopped.
    """

    target: Target
    gpus: tuple[int, ...]
    via: Via
    answer: Trimmed
    charged_before: int
    charged_after: int | None
    took_s: float
    stopped_s: float | None = None
    whole_gpu: bool = False

    @property
    def returned_bytes(self) -> int | None:
        """Measured by the driver; None where it could not be read again."""
        return None if self.charged_after is None else self.charged_before - self.charged_after


class Trimmable(Struct, frozen=True, kw_only=True):
    """One process with memory of its own. ``via`` None: it cannot be attached to, and ``reason`` says why.

    ``nbytes`` is all that the driver charges it with: how much of that is cache, only the process knows.
    """

    pid: int
    gpus: tuple[int, ...]
    nbytes: int
    user: str | None
    command: str
    via: Via | None
    reason: str = ""
