"""Whose caches could be emptied: every process on a GPU, and the way in or the reason why there is none."""

from __future__ import annotations

from vram.errors import Refused
from vram.host.ports import Host
from vram.model.inside import Trimmable
from vram.reach.ways import choose
from vram.reclaim.accounts import Account, accounts
from vram.reclaim.identity import capture
from vram.reclaim.looking import look


def trimmable(host: Host, via: str | None, deadline_s: float) -> tuple[Trimmable, ...]:
    """Look at everybody, largest first, and touch nobody."""
    known = accounts(look(host, (), deadline_s)[0])
    found = [_judged(host, account, via) for account in known.values() if account.own]
    return tuple(sorted(found, key=lambda each: (-each.nbytes, each.pid)))


def _judged(host: Host, account: Account, via: str | None) -> Trimmable:
    holder = account.holder
    way, reason = None, ""
    try:
        way = choose(capture(host, holder.pid), via)[1].NAME
    except Refused as error:
        reason = str(error)
    return Trimmable(
        pid=holder.pid,
        gpus=account.gpus,
        nbytes=account.own_bytes,
        user=holder.user,
        command=holder.command or "",
        via=way,
        reason=reason,
    )
