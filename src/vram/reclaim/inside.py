"""Asks willing processes what they hold inside: an agent or a Jupyter kernel, nobody else."""

from __future__ import annotations

from vram.errors import VramError
from vram.host.ports import Host
from vram.ledger.deepen import Inside
from vram.model.ledger import Ledger
from vram.model.plan import Target
from vram.reach.ways import reach

# They answer without being stopped or changed. Other ways run code in a process that did not offer it.
WILLING = ("agent", "jupyter")
EACH_S = 2.0


def ask_inside(host: Host, ledger: Ledger, deadline_s: float) -> dict[int, Inside]:
    """What every process of *ledger* that can be asked answers, as far as the time goes."""
    until = host.clock.monotonic() + deadline_s
    pids = dict.fromkeys(
        entry.holder.pid
        for gpu in ledger.gpus
        for entry in gpu.entries
        if entry.kind == "process" and entry.holder is not None
    )
    answers = {}
    for pid in pids:
        left_s = until - host.clock.monotonic()
        if left_s <= 0:
            break
        inside = _ask(host, pid, min(EACH_S, left_s))
        if inside is not None:
            answers[pid] = inside
    return answers


def _ask(host: Host, pid: int, deadline_s: float) -> Inside | None:
    """Also of our own ancestors: whoever types this in a notebook wants to see that notebook."""
    seen = host.proc.facts(pid)
    if seen is None or seen[1].uid != host.facts().uid:
        return None
    process, facts = seen
    target = Target(
        process=process,
        uid=host.facts().uid,
        user=facts.user,
        command=facts.command,
        executable=facts.executable,
    )
    return next(filter(None, (_by(target, via, deadline_s) for via in WILLING)), None)


def _by(target: Target, via: str, deadline_s: float) -> Inside | None:
    try:
        # Both doors are bound to pid and start time; nothing is changed by asking.
        visit = reach(target, "measure", deadline_s, via=via)
    except VramError:
        return None
    return Inside(visit.via, visit.answer)
