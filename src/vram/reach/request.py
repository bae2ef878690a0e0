"""What travels into a process, and what comes back: the same for every way."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

from vram import untrusted
from vram.errors import NotReachable
from vram.model.inside import Via

LONGEST_ANSWER = 16 << 20
MOST_ITEMS = 200_000  # of an answer: objects, lists and members together
# Of the reasons that a process gives.
_MOST_REASONS, _LONGEST_REASON = 5, 300

Shape = TypeVar("Shape")


class Request(Struct, frozen=True):
    """Which payload answers (a folder of ``vram/payloads``), and what it is asked: plain JSON data."""

    payload: str
    fields: dict[str, Any]

    def whole(self, pid: int, until: float, **more: Any) -> dict[str, Any]:
        """With what the payload checks before it does anything."""
        return {**self.fields, **more, "pid": pid, "until": until}


class Raw(Struct, frozen=True):
    """An answer as it came, one JSON object; for how long the process was stopped, where it was."""

    body: bytes
    stopped_s: float | None = None


class Answer(Struct, frozen=True):
    """An answer whose payload says that it ran, and which way the question went."""

    via: Via
    body: bytes
    stopped_s: float | None = None


class _Status(Struct):
    status: str
    notes: tuple[str, ...] = ()


def require_done(pid: int, body: bytes) -> None:
    """Raise why the payload did not do what it was asked for."""
    told = decoded(pid, body, _Status)
    reasons = "; ".join(note[:_LONGEST_REASON] for note in told.notes[:_MOST_REASONS]) or "it gave no reason"
    if told.status == "cancelled":
        raise NotReachable(f"pid {pid} declined: {reasons}")
    if told.status != "done":
        raise NotReachable(f"pid {pid} could not answer: {reasons}")


def decoded(pid: int, body: bytes, kind: type[Shape]) -> Shape:
    """What *pid* answered, as *kind*; raises where it is anything else."""
    try:
        return untrusted.decode(body, kind, most_items=MOST_ITEMS)
    except untrusted.Rejected as error:
        raise NotReachable(
            f"pid {pid} gave an answer that cannot be read: {str(error)[:_LONGEST_REASON]}",
            hint="something in that process changes what is sent to it, or it ended in the middle",
        ) from error
