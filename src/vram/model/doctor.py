"""What the doctor says: one result for each check, and what they come to."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["ok", "limited", "missing", "broken", "not-applicable", "unknown"]
Topic = Literal["driver", "gpu", "permissions", "place", "parking", "reaching", "vram"]
Verdict = Literal["ready", "limited", "broken", "no-driver"]
Verb = Literal["why", "who", "check", "free", "trim", "park", "borrow", "kill", "reset", "deep"]
"""A command that something bears on; "deep" is `vram why --deep`, and "park" is unpark too."""


class CheckResult(Struct, frozen=True, kw_only=True):
    """The answer to one question. ``check`` never changes its meaning."""

    check: str
    topic: Topic
    state: State
    seen: str
    """What was found, with its figures: a few words."""
    details: tuple[str, ...] = ()
    means: str = ""
    """What follows for vram's commands; empty where all is well."""
    fix: str = ""
    """The sentence that puts it right."""
    command: str = ""
    """The same as a command, where there is one; it can be pasted as it stands."""
    verbs: tuple[Verb, ...] = ()
    """The commands that it bears on."""
    optional: bool = False
    """vram works without it, so it never changes the verdict."""


class Examination(Struct, frozen=True, kw_only=True):
    """Every result, in the order of the checks; the verdict is the gravest that counts."""

    verdict: Verdict
    results: tuple[CheckResult, ...]
