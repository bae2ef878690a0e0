"""Plans with a seal, on paper: what is run later is what was shown, by the same user, in the same boot."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from vram.errors import BadPlan, WorldChanged
from vram.files import write_new
from vram.model.plan import PLAN_SCHEMA, Plan, Step

LARGEST = 4 << 20
_HINT = "make a new plan with `vram free --dry-run --save FILE`"


def seal(made_at: str, boot_id: str, goal: int | None, gpus: tuple[int, ...], steps: Iterable[Step]) -> Plan:
    """Return a plan with its digest."""
    plan = Plan(made_at=made_at, boot_id=boot_id, goal_bytes=goal, gpus=gpus, steps=tuple(steps), digest="")
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
        raise BadPlan(f"{path} exists already", hint="name a file that does not exist yet") from error
    except OSError as error:
        hint = "name a file in a folder of yours, which nobody else may write to"
        raise BadPlan(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def load(path: str, boot_id: str) -> Plan:
    """Read a plan; refuse one that is foreign, edited, broken, newer than us or of another boot."""
    plan = _decode(path, _read(path))
    if plan.schema != PLAN_SCHEMA:
        raise BadPlan(f"{path} was made by another version of vram", hint=_HINT)
    if digest_of(plan) != plan.digest:
        raise BadPlan(f"{path} was changed after it was made: its digest does not fit", hint=_HINT)
    if plan.boot_id != boot_id:
        raise WorldChanged(f"{path} was made on another machine, or before it was restarted", hint=_HINT)
    return plan


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadPlan(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    try:
        about = os.fstat(file)
        _require_ours(path, about)
        if about.st_size > LARGEST:
            raise BadPlan(f"{path} is too large to be a plan", hint=_HINT)
        return os.read(file, LARGEST)
    finally:
        os.close(file)


def _require_ours(path: str, about: os.stat_result) -> None:
    # The digest shows an accident; that nobody else wrote the file is shown by its owner and mode.
    if not stat.S_ISREG(about.st_mode):
        raise BadPlan(f"{path} is not a plain file")
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise BadPlan(
            f"{path} belongs to somebody else, or others may change it", hint="make a plan of your own"
        )


def _decode(path: str, content: bytes) -> Plan:
    try:
        return msgspec.json.decode(content, type=Plan)
    except msgspec.MsgspecError as error:
        raise BadPlan(f"{path} is not a plan: {error}", hint=_HINT) from error
