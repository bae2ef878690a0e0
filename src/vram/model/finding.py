"""What it means: a judged cause, its evidence, and what to do about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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


class Finding(Struct, frozen=True, kw_only=True):
    """A cause that a rule found in the ledger."""

    code: str
    title: str
    nbytes: int | None
    cause: str
    gpus: tuple[int, ...]
    pids: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    severity: Literal["problem", "warning", "info"] = "problem"
