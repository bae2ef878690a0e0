"""What a policy tells people about a decision: a title, lines, and the same as values for a webhook."""

from __future__ import annotations

from vram.policy.decision import Decision
from vram.report.escape import inert
from vram.serve.socket.worker import Notification
from vram.units import duration, size


def notice(decision: Decision, host_name: str, uids: tuple[int, ...]) -> Notification:
    """The message about *decision* for the owners *uids*."""
    where = ", ".join(f"GPU {gpu}" for gpu in decision.gpus)
    if decision.do == "alert":
        title = f"vram on {host_name}: {size(decision.nbytes)} on {where} is unexplained"
        lines = [decision.reason, "`vram why` on that machine shows more."]
    else:
        title = f"vram on {host_name}: {size(decision.nbytes)} of a dead process is held on {where}"
        lines = [f"It has been held for {duration(decision.held_s)}, by:"]
        lines += [f"  pid {target.pid}  {target.command or ''}" for target in decision.targets]
        pids = " ".join(str(target.pid) for target in decision.targets)
        lines += [f"If you do not need it: vram kill {pids}", "Evidence:"]
        lines += [f"  {line}" for line in decision.evidence[:5]]
    facts = {
        "schema": 1,
        "host": host_name,
        "policy": decision.policy,
        "code": decision.code,
        "gpus": list(decision.gpus),
        "nbytes": decision.nbytes,
        "held_s": decision.held_s,
        "processes": [
            {"pid": each.pid, "user": inert(each.user or ""), "command": inert(each.command or "")}
            for each in decision.targets
        ],
        "evidence": [inert(line) for line in decision.evidence],
    }
    return Notification(title=inert(title), lines=tuple(map(inert, lines)), uids=uids, facts=facts)
