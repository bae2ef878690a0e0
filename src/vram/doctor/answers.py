"""The shapes that an answer can have: well, not a question here, or something that is to be put right."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from vram.doctor.sight import Sight
from vram.model.doctor import State, Topic, Verb


class Answer(Struct, frozen=True, kw_only=True):
    """What a check says; who it is and what it bears on is the check's own."""

    state: State
    seen: str
    details: tuple[str, ...] = ()
    means: str = ""
    fix: str = ""
    command: str = ""


class Check(Protocol):
    """A module of ``checks``: an id that never changes, a manual page, and a judgement.

    ``OPTIONAL``: vram works without it. ``VERBS``: the commands that it bears on.
    """

    ID: str
    TOPIC: Topic
    VERBS: tuple[Verb, ...]
    OPTIONAL: bool

    def judge(self, sight: Sight) -> Answer: ...


def ok(seen: str, *details: str) -> Answer:
    return Answer(state="ok", seen=seen, details=details)


def not_applicable(seen: str) -> Answer:
    return Answer(state="not-applicable", seen=seen)


def not_tried(why: str) -> Answer:
    return Answer(
        state="unknown",
        seen=f"not tried: {why}",
        fix="Let this user have more processes: see its limit, and pids.max of its cgroup.",
        command="ulimit -u",
    )


NO_DRIVER = not_applicable("no driver answers")
