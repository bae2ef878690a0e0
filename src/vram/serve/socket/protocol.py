"""What goes over the socket: requests, answers, errors. One JSON object a line, one request a connection."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from vram.errors import UsageError

SCHEMA = 1
MAX_REQUEST = 64 << 10
_MAX_NAMED = 256


class PlanWords(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `vram free` and `vram kill` are asked with."""

    available_bytes: int | None = None
    goal_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    up_to: Literal["trim", "park", "kill"] | None = None
    only: Literal["trim", "park", "kill"] | None = None
    findings: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    caches: bool = False
    release: bool = False
    park_idle: bool = False
    alone: bool = False
    tree: bool = False
    orphans: bool = False


def require_sound(words: PlanWords) -> None:
    """Raise where a request names more than a user can mean."""
    if len(words.pids) > _MAX_NAMED or len(words.gpus) > _MAX_NAMED or len(words.findings) > _MAX_NAMED:
        raise UsageError(f"more than {_MAX_NAMED} names", hint="ask for fewer at once")
    if any(not 0 < pid < 1 << 22 for pid in words.pids):
        raise UsageError("invalid pid", hint="`vram who` lists them")
    sizes = (words.available_bytes, words.goal_bytes)
    if any(nbytes is not None and not 0 < nbytes < 1 << 60 for nbytes in sizes):
        raise UsageError("the size is not possible", hint="for example 20GiB")


class WorkerError(Struct, frozen=True, kw_only=True):
    """Why it was not done."""

    name: str
    message: str
    hint: str = ""
    exit_code: int = 3


RequestedThing = Literal["status", "why", "plan", "run", "wait", "allow-park", "allow-sleep", "decisions"]


class SocketRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. ``words`` and ``digest`` are for plan and run, ``nbytes`` and ``gpus`` for wait, and
    ``pid`` for allow-park and allow-sleep."""

    schema: int
    do: RequestedThing
    words: PlanWords = PlanWords()
    digest: str | None = None
    grace_s: float = 10.0
    deadline_s: float = 5.0
    nbytes: int = 0
    gpus: tuple[int, ...] = ()
    pid: int = 0
    revoke: bool = False


class SocketAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an answer. ``event`` says what a line before the last one is: an outcome, or "room"."""

    is_last: bool = False
    event: str | None = None
    data: Raw | UnsetType = UNSET
    error: WorkerError | None = None
