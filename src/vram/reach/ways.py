"""The ways into a live Python process, safest first, and the choice among them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from vram.errors import NotReachable
from vram.model.plan import Target
from vram.model.trimming import Trimmed, Verb, Via
from vram.reach import agent, debugger, jupyter, remote_exec
from vram.reach.python_process import PythonProcess, examine


class Way(Protocol):
    """``closed`` tells why it does not lead in, having touched nothing; ``visit`` goes in.

    Whatever ``visit`` raises, the target runs on.
    """

    NAME: Via

    def closed(self, process: PythonProcess) -> str | None: ...
    def visit(
        self, process: PythonProcess, verb: Verb, deadline_s: float, *, tracebacks: bool
    ) -> Trimmed: ...


WAYS: tuple[Way, ...] = (agent, jupyter, remote_exec)
"""Taken without being asked for. A debugger stops the target: that is for its user to decide."""

ALL: dict[str, Way] = {way.NAME: way for way in (*WAYS, debugger)}


class Visit(Struct, frozen=True):
    """What a process answered, and which way the question went."""

    via: Via
    answer: Trimmed


def choose(target: Target, via: str | None = None) -> tuple[PythonProcess, Way]:
    """The safest way that is open, or the one called *via*; raises why there is none."""
    process = examine(target)
    wanted = WAYS if via is None else (ALL[via],)
    reasons = {}
    for way in wanted:
        reason = way.closed(process)
        if reason is None:
            return process, way
        reasons[way.NAME] = reason
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise NotReachable(
        f"no way leads into pid {process.pid} ({told})",
        hint=f"`vram trim {process.pid} --via debugger` can, by stopping it for a moment"
        if via is None
        else "without --via the safest way that is open is taken",
    )


def reach(
    target: Target, verb: Verb, deadline_s: float, *, tracebacks: bool = False, via: str | None = None
) -> Visit:
    """Go into *target* and have it *verb*; raises a Refused where that cannot be, target unharmed."""
    process, way = choose(target, via)
    answer = way.visit(process, verb, deadline_s, tracebacks=tracebacks)
    if answer.status == "cancelled":
        raise NotReachable(f"pid {process.pid} declined: {'; '.join(answer.notes)}")
    return Visit(way.NAME, answer)
