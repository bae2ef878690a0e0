"""Ask one process what arrays it has on GPUs and who refers to them; it goes on meanwhile."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
from msgspec.structs import replace

from vram.errors import NotOnGpu, Protected, VramError
from vram.host.ports import Host
from vram.ledger.split import gpus_of, splits
from vram.model.inside import MOST_GROUPS, Inside, InsideReceipt
from vram.model.ledger import Ledger
from vram.model.plan import Target
from vram.reach import payload
from vram.reach.injectors import ask, choose_injector
from vram.reach.payload import PayloadAnswer
from vram.reclaim import audit
from vram.reclaim.accounts import accounts
from vram.reclaim.identity import identify, open_verified
from vram.reclaim.measuring import offered

# Of the time given, for the way in and back.
SHARE = 0.9


def look_inside(
    host: Host, ledger: Ledger, pid: int, via: str | None, deadline_s: float, min_nbytes: int = 0
) -> InsideReceipt:
    """What *pid* answers; raises why it could not be asked, and then it was left alone."""
    runs_us = pid in host.signals.self_and_ancestors()
    target, offer = offered(host, pid) if runs_us else (identify(host, pid), None)
    if pid not in accounts(ledger):
        raise NotOnGpu(f"pid {pid} holds no GPU memory", hint="`vram who` lists those that do")
    began = host.clock.monotonic()
    if runs_us and via not in (None, offer):
        raise Protected(
            f"pid {pid} runs this very command: it is asked by {offer} alone", hint="leave out --via"
        )
    _, way = choose_injector(target, offer if runs_us else via)
    told = _asked(host, target, way.NAME, deadline_s, min_nbytes, runs_us=runs_us)
    answer = decoded(pid, told.body)
    gpu_of = gpus_of(ledger, pid, answer)
    return InsideReceipt(
        target=target,
        via=told.via,
        stopped_s=told.stopped_s,
        took_s=host.clock.monotonic() - began,
        answer=answer,
        gpu_of=gpu_of,
        splits=tuple(splits(ledger, pid, answer, gpu_of)),
    )


def decoded(pid: int, body: bytes) -> Inside:
    return payload.decoded(pid, body, Inside)


def _asked(
    host: Host, target: Target, via: str, deadline_s: float, min_nbytes: int, *, runs_us: bool
) -> PayloadAnswer:
    fields = {"limit_s": deadline_s * SHARE, "most": MOST_GROUPS, "min_nbytes": min_nbytes}
    foreign = target.uid != host.facts().uid
    # Nothing is changed by asking. Where root asks somebody else's process, that is written down.
    record = {"action": "inside", "target": msgspec.to_builtins(target), "via": via}
    token = audit.log_intent(record) if foreign else None
    try:
        with nullcontext() if runs_us else open_verified(host, target):
            answer = ask(target, "inside", fields, deadline_s, via=via)
    except BaseException as error:
        if token is not None:
            status = "refused" if isinstance(error, VramError) else "failed"
            audit.log_outcome(token, {"status": status, "message": f"{type(error).__name__}: {error}"})
        raise
    if token is not None:
        audit.log_outcome(token, {"status": "done"})
    return answer


def only(receipt: InsideReceipt, gpus: set[int] | None, min_nbytes: int) -> InsideReceipt:
    """Return *receipt* with only the arrays on *gpus* (None: on all) that are large enough."""
    answer = receipt.answer
    kept = tuple(
        group
        for group in answer.groups
        if group.each_nbytes >= min_nbytes
        and (gpus is None or group.device is None or receipt.gpu_of.get(group.device) in gpus)
    )
    splits = tuple(split for split in receipt.splits if gpus is None or split.gpu in gpus)
    return replace(receipt, answer=replace(answer, groups=kept), splits=splits)
