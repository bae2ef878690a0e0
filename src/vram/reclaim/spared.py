"""Who holds memory and is left alone by a plan, why, and which command would change that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vram.diagnosis.health import is_stuck
from vram.errors import CannotPark, NotReachable, Refused
from vram.model.plan import Plan, Spared
from vram.protected import role
from vram.reclaim.accounts import Account
from vram.reclaim.candidates import Scene
from vram.reclaim.leftovers import doubt, leftovers


def spared(scene: Scene, plan: Plan, refusals: Mapping[int, Refused]) -> tuple[Spared, ...]:
    """Everybody who was meant, holds memory and gets no step; the largest first."""
    planned = {step.target.process.pid for step in plan.steps if step.target}
    found = _described(scene, planned, refusals)
    return tuple(sorted(found, key=lambda each: (-each.nbytes, each.pid)))


def _described(scene: Scene, planned: set[int], refusals: Mapping[int, Refused]) -> Iterator[Spared]:
    kept = {
        account.holder.pid: leftover
        for leftover in leftovers(scene.findings, scene.known)
        for account in leftover.accounts
    }
    for account in scene.chosen():
        pid = account.holder.pid
        nbytes = account.own_bytes + sum(entry.nbytes for entry in account.kept)
        if pid in planned or not nbytes:
            continue
        under_windows = scene.ledger.host.wsl_facts is not None
        verb = "kill" if under_windows else "park"
        why, command = _reason(account, refusals.get(pid), verb, named=bool(scene.wish.pids))
        if pid in kept and pid not in refusals:
            unsure = doubt(kept[pid])
            code = kept[pid].finding.code
            why = unsure or f"a leftover: {kept[pid].finding.title}"
            command = command if unsure else f"vram free --finding {code}"
        holder = account.holder
        yield Spared(pid=pid, nbytes=nbytes, user=holder.user, name=holder.command, why=why, command=command)


def _reason(account: Account, refusal: Refused | None, verb: str, *, named: bool) -> tuple[str, str]:
    holder = account.holder
    part = role(holder.pid, holder.parent, holder.executable)
    if part:
        return f"it is {part}", ""
    if is_stuck(holder):
        return "no signal reaches it now: it waits inside the kernel, or is exiting", ""
    # That nothing leads into a process to trim it is the rule, and under Windows' driver that
    # nothing is parked; the other refusals are news.
    expected = (NotReachable, CannotPark) if verb == "kill" else NotReachable
    if refusal is not None and not isinstance(refusal, expected):
        return "; ".join(filter(None, (str(refusal), refusal.hint))), ""
    if not account.own:
        return "it has the GPU's files open", f"vram kill {holder.pid}"
    if named:
        return "it gives nothing back without harm", f"vram {verb} {holder.pid}"
    return "it is in use; vram parks or ends it only where you name it", f"vram {verb} {holder.pid}"
