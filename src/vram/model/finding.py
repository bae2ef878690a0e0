"""What it means: a judged cause, its evidence, and what to do about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.hold import HoldShare

Harm = Literal["none", "interrupts", "loses-work", "affects-others"]


class Remedy(Struct, frozen=True, kw_only=True):
    """One way out. It names a step and a target, never a callable.

    ``command`` can be pasted into a shell as it stands; it is empty where the way out is
    not a command. ``pids`` are the processes that it acts on or looks at; ``target`` says the same to
    people.
    """

    step: str
    target: str
    text: str
    command: str = ""
    harm: Harm = "none"
    pids: tuple[int, ...] = ()


class FindingFields(Struct, frozen=True, kw_only=True):
    """What a report says of a finding."""

    code: str
    title: str
    nbytes: int | None
    cause: str
    gpus: tuple[int, ...]
    pids: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    severity: Literal["problem", "warning", "info"] = "problem"


class Finding(FindingFields, frozen=True, kw_only=True):
    """A cause that a rule found in the ledger. ``holds`` name the memory that it is about: in no report."""

    holds: tuple[HoldShare, ...] = ()
