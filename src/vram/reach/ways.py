"""The ways into a live Python process, safest first, and the choice among them."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from vram.errors import AttachDenied, NotReachable
from vram.model.inside import Trimmed, Verb, Via
from vram.model.plan import Target
from vram.reach import agent, direct, jupyter, remote_exec
from vram.reach.python_process import PythonProcess, examine
from vram.reach.request import Answer, Raw, Request, decoded, require_done
from vram.reach.within import within


class Way(Protocol):
    """``closed`` tells why it does not lead in, or raises that the kernel forbids it, having touched
    nothing; ``visit`` goes in.

    Whatever ``visit`` raises, the target runs on.
    """

    NAME: Via

    def closed(self, process: PythonProcess) -> str | None: ...
    def visit(self, process: PythonProcess, request: Request, deadline_s: float) -> Raw: ...


WAYS: tuple[Way, ...] = (agent, jupyter, remote_exec, direct)
"""Safest first. The last two stop the process for about a millisecond; the others do not stop it."""

_CHOOSING_S = 2.0

ALL: dict[str, Way] = {way.NAME: way for way in WAYS}


class Visit(Struct, frozen=True):
    """What a process answered, which way the question went, and for how long it was stopped."""

    via: Via
    answer: Trimmed
    stopped_s: float | None = None


def choose(target: Target, via: str | None = None) -> tuple[PythonProcess, Way]:
    """The safest way that is open, or the one called *via*; raises why there is none."""
    process, name = within(_CHOOSING_S, target.process.pid, target.uid, lambda: _choose(target, via))
    return process, ALL[name]


def _choose(target: Target, via: str | None) -> tuple[PythonProcess, str]:
    process = examine(target)
    wanted = WAYS if via is None else (ALL[via],)
    reasons = {}
    denied: AttachDenied | None = None
    for way in wanted:
        try:
            reason = way.closed(process)
        except AttachDenied as error:
            denied, reason = error, str(error)
        if reason is None:
            return process, way.NAME
        reasons[way.NAME] = reason
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    message = f"cannot attach to pid {process.pid} ({told})"
    if denied is not None:
        raise AttachDenied(message, hint=denied.hint) from denied
    raise NotReachable(
        message,
        hint="it can let vram in itself: vram.agent()"
        if via is None
        else "without --via the safest way that is open is taken",
    )


def ask(
    target: Target, payload: str, fields: dict[str, Any], deadline_s: float, *, via: str | None = None
) -> Answer:
    """Have *payload* answer inside *target*; raises a Refused where that cannot be, target unharmed.

    *payload* is a folder of ``vram/payloads`` with ``answer(request)``; *fields* are plain JSON data.
    """

    def visit() -> Answer:
        process, name = _choose(target, via)
        raw = ALL[name].visit(process, Request(payload, fields), deadline_s)
        require_done(process.pid, raw.body)
        return Answer(ALL[name].NAME, raw.body, raw.stopped_s)

    return within(deadline_s, target.process.pid, target.uid, visit)


def reach(
    target: Target, verb: Verb, deadline_s: float, *, tracebacks: bool = False, via: str | None = None
) -> Visit:
    """Go into *target* and have it *verb*; raises a Refused where that cannot be, target unharmed."""
    told = ask(target, "trim", {"verb": verb, "tracebacks": tracebacks}, deadline_s, via=via)
    return Visit(told.via, decoded(target.process.pid, told.body, Trimmed), told.stopped_s)
