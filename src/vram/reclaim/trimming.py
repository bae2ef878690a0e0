"""Trim processes that were named: who may be, the visit itself, and the driver's word before and after."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vram.errors import NotOnGpu, NotPermitted, Protected, VramError
from vram.host.ports import Host
from vram.model.inside import TrimReceipt, Verb
from vram.model.plan import Target
from vram.reach.ways import Visit, choose, reach
from vram.reclaim import audit
from vram.reclaim.accounts import Account, accounts
from vram.reclaim.identity import capture, hold
from vram.reclaim.looking import look
from vram.reclaim.verify import used_bytes


class Order(msgspec.Struct, frozen=True):
    """A process that may be trimmed, and what the driver charged it with."""

    target: Target
    gpus: tuple[int, ...]
    charged: int
    via: str
    whole_gpu: bool = False


def admit(host: Host, pids: Sequence[int], via: str | None, deadline_s: float) -> tuple[Order, ...]:
    """Look at everybody first: who is refused is refused before anybody is touched."""
    try:
        targets = [capture(host, pid) for pid in dict.fromkeys(pids)]
        known = accounts(look(host, (), deadline_s)[0])
        orders = [_order(target, known.get(target.process.pid), via) for target in targets]
        return tuple(_measured_whole(host, order) for order in orders)
    except (NotPermitted, Protected) as error:
        audit.refused({"action": "trim", "message": str(error), "pids": list(pids)})
        raise


def _order(target: Target, account: Account | None, via: str | None) -> Order:
    pid = target.process.pid
    if account is None or not account.own:
        raise NotOnGpu(f"pid {pid} holds no GPU memory of its own", hint="`vram who` lists those that do")
    _, way = choose(target, via)
    return Order(target, account.gpus, account.own_bytes, way.NAME)


def _measured_whole(host: Host, order: Order) -> Order:
    """Under WSL2 only a GPU's total tells whether anything came back."""
    used = used_bytes(host, order.gpus) if host.facts().wsl_facts is not None else None
    return order if used is None else msgspec.structs.replace(order, charged=used, whole_gpu=True)


def trim(host: Host, order: Order, deadline_s: float, *, tracebacks: bool = False) -> TrimReceipt:
    """Trim one process; written down before and after, measured by the driver.

    Raises why it was not done; the process runs on in every case.
    """
    began = host.clock.monotonic()
    record = {"action": "trim", "target": msgspec.to_builtins(order.target), "via": order.via}
    token = audit.intend({**record, "tracebacks": tracebacks, "charged_before": order.charged})
    try:
        visit = visited(host, order.target, "trim", order.via, deadline_s, tracebacks=tracebacks)
    except BaseException as error:
        status = "refused" if isinstance(error, VramError) else "failed"
        audit.outcome(token, {"status": status, "message": f"{type(error).__name__}: {error}"})
        raise
    took_s = host.clock.monotonic() - began
    after = _charged(host, order, deadline_s)
    audit.outcome(
        token,
        {"status": "done", "charged_after": after, "took_s": round(took_s, 6), "stopped_s": visit.stopped_s},
    )
    return TrimReceipt(
        target=order.target,
        gpus=order.gpus,
        via=visit.via,
        answer=visit.answer,
        charged_before=order.charged,
        charged_after=after,
        took_s=took_s,
        stopped_s=visit.stopped_s,
        whole_gpu=order.whole_gpu,
    )


def visited(
    host: Host, target: Target, verb: Verb, via: str | None, deadline_s: float, *, tracebacks: bool = False
) -> Visit:
    """Go into the very process that was chosen."""
    with hold(host, target) as held:
        held.recheck()
        return reach(target, verb, deadline_s, tracebacks=tracebacks, via=via)


def _charged(host: Host, order: Order, deadline_s: float) -> int | None:
    """What the driver charges it with now; None where that can no longer be told."""
    if order.whole_gpu:
        return used_bytes(host, order.gpus)
    try:
        account = accounts(look(host, order.gpus, deadline_s)[0]).get(order.target.process.pid)
    except VramError:
        return None
    return account.own_bytes if account else None
