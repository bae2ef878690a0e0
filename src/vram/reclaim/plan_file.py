"""Plans with a digest, and in files: what runs later is what was shown, by the same user in the same boot."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from vram import untrusted
from vram.errors import BadPlan, WorldChanged
from vram.files import write_new
from vram.model.plan import PLAN_SCHEMA, Plan, Step

MAX_NBYTES = 4 << 20
_HINT = "make a new plan with `vram free --dry-run --save FILE`"


def with_digest(
    made_at: str,
    boot_id: str,
    goal: int | None,
    gpus: tuple[int, ...],
    steps: Iterable[Step],
    available: int | None = None,
) -> Plan:
    """Return a plan with its digest."""
    plan = Plan(
        made_at=made_at,
        boot_id=boot_id,
        goal_bytes=goal,
        available_bytes=available,
        gpus=gpus,
        steps=tuple(steps),
        digest="",
    )
    return replace(plan, digest=digest_of(plan))


def digest_of(plan: Plan) -> str:
    """SHA-256 over everything that the plan says, but when it was made."""
    bare = msgspec.to_builtins(replace(plan, made_at="", digest=""))
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def save(plan: Plan, path: str) -> None:
    """Write *plan* to a new file that only we can read and change."""
    content = msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
    try:
        write_new(path, content)
    except FileExistsError as error:
        raise BadPlan(f"{path} already exists", hint="name a file that does not exist yet") from error
    except OSError as error:
        hint = "choose a file in a folder that only you can write to"
        raise BadPlan(f"cannot write {path}: {error.strerror}", hint=hint) from error


def load(path: str, boot_id: str) -> Plan:
    """Read a plan; refuse one that is foreign, edited, broken, newer than us or of another boot."""
    plan = _decode(path, _read(path))
    if plan.schema != PLAN_SCHEMA:
        raise BadPlan(f"{path} was written by another version of vram", hint=_HINT)
    if digest_of(plan) != plan.digest:
        raise BadPlan(f"{path} was changed after it was written: its digest does not match", hint=_HINT)
    if plan.boot_id != boot_id:
        raise WorldChanged(f"{path} was written on another machine, or before the last restart", hint=_HINT)
    return plan


def _read(path: str) -> bytes:
    # The digest shows an accident; that no other user wrote the file is shown by its owner and mode.
    try:
        return untrusted.read_file(path, nbytes=MAX_NBYTES, owner=os.geteuid(), follow=True)
    except untrusted.Rejected as error:
        hint = "make your own plan" if error.code == "not-ours" else _HINT
        raise BadPlan(f"cannot use {path}: {error}", hint=hint) from error


def _decode(path: str, content: bytes) -> Plan:
    try:
        return untrusted.decode(content, Plan)
    except untrusted.Rejected as error:
        raise BadPlan(f"{path} is not a plan: {error}", hint=_HINT) from error
