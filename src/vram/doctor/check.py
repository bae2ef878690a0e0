"""A check of the doctor: one question about the host, its answer, and its manual page."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec import Struct

from vram.doctor.facts import DoctorFacts
from vram.model.doctor import State, Topic, Verb

EVERY_COMMAND: tuple[Verb, ...] = (
    "why",
    "who",
    "check",
    "free",
    "trim",
    "park",
    "borrow",
    "kill",
    "reset",
    "deep",
)


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """What a check says; who it is and what it bears on is the check's own."""

    state: State
    seen: str
    details: tuple[str, ...] = ()
    means: str = ""
    fix: str = ""
    command: str = ""


class Check(Struct, frozen=True, kw_only=True):
    """``id`` never changes its meaning. ``verbs`` are the commands that it bears on, ``page`` is its manual
    page (None under Python -OO, which removes it). ``optional``: vram works without what it asks for."""

    id: str
    topic: Topic
    verbs: tuple[Verb, ...]
    optional: bool
    page: str | None
    judge: Callable[[DoctorFacts], CheckAnswer]


def check(
    into: list[Check], id: str, verbs: tuple[Verb, ...], *, optional: bool = False
) -> Callable[[Callable[[DoctorFacts], CheckAnswer]], Callable[[DoctorFacts], CheckAnswer]]:
    """Add the decorated function to *into*. Its docstring is the page, the first word of *id* the topic."""

    def add(judge: Callable[[DoctorFacts], CheckAnswer]) -> Callable[[DoctorFacts], CheckAnswer]:
        topic = cast("Topic", id.partition(".")[0])
        page = _unindented(judge.__doc__) if judge.__doc__ else None
        into.append(Check(id=id, topic=topic, verbs=verbs, optional=optional, page=page, judge=judge))
        return judge

    return add


def _unindented(docstring: str) -> str:
    # inspect.cleandoc would do, and importing inspect takes longer than all checks together.
    return "\n".join(line.removeprefix("    ") for line in docstring.rstrip().split("\n")) + "\n"


def ok(seen: str, *details: str) -> CheckAnswer:
    return CheckAnswer(state="ok", seen=seen, details=details)


def not_applicable(seen: str) -> CheckAnswer:
    return CheckAnswer(state="not-applicable", seen=seen)


def not_tried(why: str) -> CheckAnswer:
    return CheckAnswer(
        state="unknown",
        seen=f"not tried: {why}",
        fix="Raise this user's process limit (ulimit -u) and pids.max of its cgroup.",
        command="ulimit -u",
    )


NO_DRIVER = not_applicable("no driver answers")
