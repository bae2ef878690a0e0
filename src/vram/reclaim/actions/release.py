"""Ask a server to release its GPU memory in its own way, and measure whether it did.

Who is asked is found and checked first (`prepare_release`); nothing but reads is sent for that. Then the
requests go out one after the other, each logged, and the driver's figures are the answer: a server that says
"done" and frees nothing has freed nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vram.errors import NoSuchProcess, NotOnGpu, NotReachable, TargetDied, TimedOut, VramError, WorldChanged
from vram.host.ports import Host
from vram.ledger.processes import ProcessMemory, processes
from vram.model.plan import Step, StepKind, Target
from vram.model.release import AskedRequest, ReleaseEnd, ReleaseOrder, ReleaseReceipt
from vram.reach.http import NoAnswer, ServerRequest
from vram.reach.sockets import NotConnected
from vram.reclaim import audit, state
from vram.reclaim.actions import target_of
from vram.reclaim.device_state import read_ledger, settled_bytes, used_bytes, uses_system_memory
from vram.reclaim.identity import identify, open_verified, require_certain
from vram.reclaim.server_search import (
    FoundServer,
    Relatives,
    Search,
    looks_like_a_server,
    relatives,
)
from vram.reclaim.servers import SERVERS
from vram.reclaim.servers.server import Requests

READ_S = 5.0
# Servers answer before they are done (SGLang, ComfyUI, ollama): for so long the bytes are read again.
SETTLE_S = 8.0
_PAUSE_S = 0.2
_LOCK = "release.lock"
_RELEASE, _UNDO = "release", "release-undo"


class AskedBefore(Struct, frozen=True):
    """Whether a server may still have released what this user's vram asked it to, and the models of that.

    ``charged_before`` and ``charged_after`` are what its processes were charged with then.
    """

    released: bool = False
    models: tuple[str, ...] = ()
    charged_before: int | None = None
    charged_after: int | None = None

    def is_still_released(self, charged: int | None) -> bool:
        """Whether the driver still charges it with less: a client's request makes it take memory again."""
        before, after = self.charged_before, self.charged_after
        if not self.released or charged is None or before is None or (after is not None and after >= before):
            return self.released
        return charged < (before if after is None else (before + after) / 2)


class PreparedRelease(Struct, frozen=True):
    """An order, and what it takes to carry it out."""

    order: ReleaseOrder
    found: FoundServer
    requests: tuple[ServerRequest, ...]
    before: AskedBefore


class Release:
    """The action of a plan: asks the server that a process belongs to."""

    kind: StepKind = "release"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        """Add whom it asks and what for, by asking the server what it is. Raises where it is none."""
        prepared = prepare_release(host, target_of(step).process.pid, undo=False)
        order = prepared.order
        checked = replace(
            step,
            via=f"{order.server} at {order.where}",
            loses=order.loses,
            reversible=order.has_undo,
            reason=f"it can release its memory when it is asked: {', '.join(order.requests)}",
            predicted_bytes=order.predicted_bytes,
        )
        if step.via is not None and (step.via, step.reason) != (checked.via, checked.reason):
            raise WorldChanged(f"{order.server} is no longer as the plan has it", hint="make a new plan")
        same = next((each for each in before if each.kind == self.kind and each.via == checked.via), None)
        if same is not None and same.target is not None and same.target != step.target:
            raise NotReachable(f"it is a part of the server that pid {same.target.process.pid} leads to")
        return checked

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        prepared = prepare_release(host, target_of(step).process.pid, undo=False)
        if f"{prepared.order.server} at {prepared.order.where}" != step.via:
            raise WorldChanged("another server answers now", hint="make a new plan")
        receipt = release(host, prepared, timeout_s)
        sentence = summary(receipt)
        if receipt.end == "ended":
            raise TargetDied(sentence)
        if receipt.end != "answered":
            raise NotDone(sentence)
        return sentence

    def verify(self, host: Host, step: Step) -> bool:
        """Whether it runs on; a runner may have ended with its model, as it should."""
        try:
            with open_verified(host, target_of(step)) as process:
                return process.facts.state not in ("T", "t")
        except NoSuchProcess:
            return True


class NotDone(VramError):
    """The server was asked, and did not do it, or did not say so."""


def summary(receipt: ReleaseReceipt) -> str:
    """One sentence about what was asked and what the server said."""
    order = receipt.order
    answers = "; ".join(f"{each.request}: {each.problem or f'HTTP {each.status}'}" for each in receipt.asked)
    undo = f"; `vram release --undo {order.pid}` undoes it" if order.has_undo and not order.undo else ""
    return f"{order.server} at {order.where}: {answers}{undo if receipt.end == 'answered' else ''}"


# ---- who is asked, and for what ----


def prepare_release(host: Host, pid: int, *, undo: bool, deadline_s: float = READ_S) -> PreparedRelease:
    """Find the server that *pid* belongs to and what to ask of it; nothing is changed by that.

    Only a process that looks like a known server is asked what it is: what listens in a training job (a store
    of its ranks, NCCL) is not made for strangers' requests. Raises the refusal.
    """
    identify(host, pid)
    family = relatives(host, pid)
    ledger = read_ledger(host, (), deadline_s)
    known = {each: found for each, found in processes(ledger).items() if found.charged}
    if not undo and not known.keys() & set(family.pids):
        raise NotOnGpu(
            f"neither pid {pid} nor a process that it belongs to holds GPU memory",
            hint="`vram who` lists those that do",
        )
    for each in family.pids:
        if each in known:
            require_certain(ledger.host, known[each])
    if not looks_like_a_server(host, family):
        raise NotReachable(
            f"pid {pid} does not look like a server that vram can ask: nothing was sent",
            hint=f"vram release asks {', '.join(SERVERS)}, known by command, program or folder",
        )
    found, wanted, before = _choose(host, family, known, undo)
    return PreparedRelease(_order(host, family, found, wanted, known, undo), found, wanted.requests, before)


def _choose(
    host: Host, family: Relatives, known: Mapping[int, ProcessMemory], undo: bool
) -> tuple[FoundServer, Requests, AskedBefore]:
    """The first server that can do it. A model's own process may be a server, too, and its parent the one."""
    search = Search(host, family)
    refusals: list[VramError] = []
    for found in search.found():
        before = _asked_before(host, found.client.target)
        by_us = before.is_still_released(_charged(host, _members(host, family, found.client.target), known))
        try:
            if undo:
                wanted = found.server.undo(found.client, before.models, by_us=by_us)
            else:
                wanted = found.server.release(found.client, by_us=by_us)
            return found, wanted, before
        except NotReachable as error:
            refusals.append(error)
        except (NoAnswer, NotConnected) as error:
            why = f"{found.server.name} at {found.client.listener.name}: {error}"
            refusals.append(TimedOut(why) if getattr(error, "fault", "") == "late" else NotReachable(why))
    raise refusals[0] if refusals else search.refusal()


def _order(
    host: Host,
    family: Relatives,
    found: FoundServer,
    wanted: Requests,
    known: Mapping[int, ProcessMemory],
    undo: bool,
) -> ReleaseOrder:
    server, target = found.server, found.client.target
    pids = _members(host, family, target)
    held = [known[each] for each in pids if each in known]
    order = ReleaseOrder(
        pid=family.pid,
        target=target,
        server=server.name,
        version=found.version,
        where=found.client.listener.name,
        undo=undo,
        requests=tuple(each.words for each in wanted.requests),
        loses="nothing; it takes its GPU memory again" if undo else server.loses,
        undone="" if undo else server.undone,
        has_undo=server.has_undo,
        predicted_bytes=wanted.predicted_bytes,
        pids=pids,
        gpus=tuple(sorted({gpu for each in held for gpu in each.gpus})),
        charged=sum(each.charged_bytes for each in held),
    )
    if not order.gpus:  # all is released: where it will be again is not known
        order = replace(order, gpus=_all_gpus(host))
    # What a server moves to the machine's memory it is charged with no more, and there that frees nothing.
    apart = host.facts().wsl_facts is not None or uses_system_memory(host, order.gpus)
    if apart and (used := used_bytes(host, order.gpus)) is not None:
        order = replace(order, charged=used, whole_gpu=True)
    return order


def _charged(host: Host, pids: Sequence[int], known: Mapping[int, ProcessMemory]) -> int | None:
    """What *pids* are charged with; None where the driver does not say that of single processes."""
    if host.facts().wsl_facts is not None:
        return None
    return sum(known[each].charged_bytes for each in pids if each in known)


def _all_gpus(host: Host) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in read_ledger(host, (), READ_S).gpus)


def _members(host: Host, family: Relatives, server: Target) -> tuple[int, ...]:
    """The processes whose memory is the server's: it and its descendants, or those of the one named."""
    top = server.process.pid if server.process.pid in family.ancestors else family.pid
    return tuple(dict.fromkeys((top, *host.proc.descendants(top), server.process.pid)))


# ---- asking ----


def release(
    host: Host,
    prepared: PreparedRelease,
    deadline_s: float,
    on_asked: Callable[[AskedRequest], None] | None = None,
) -> ReleaseReceipt:
    """Send what was prepared, one request after the other, and measure; logged before and after.

    *on_asked* is called before each request goes out, with no answer in it, and again with the answer. Raises
    only where nothing was sent; from then on, what goes wrong is in the receipt.
    """
    order = prepared.order
    began = host.clock.monotonic()
    with _one_at_a_time():
        if _asked_before(host, order.target) != prepared.before:
            raise WorldChanged(f"another vram asked {order.server} meanwhile", hint="try again")
        before = used_bytes(host, order.gpus)
        token = audit.log_intent(_intent(host, order, prepared.requests))
        run = _Run(host, prepared, host.clock.monotonic() + deadline_s, on_asked)
        try:
            end = run.send_all()
            _settle(host, order, before, end)
            after = _charged_now(host, order)
        except BaseException as error:
            audit.log_outcome(token, run.log_fields("failed", f"{type(error).__name__}: {error}"))
            raise
        took_s = host.clock.monotonic() - began
        fields = run.log_fields("done" if end == "answered" else end, "")
        audit.log_outcome(token, {**fields, "charged_after": after, "took_s": round(took_s, 6)})
    return ReleaseReceipt(
        order=order,
        end=end,
        asked=tuple(run.asked),
        charged_before=order.charged,
        charged_after=after,
        took_s=took_s,
    )


def _intent(host: Host, order: ReleaseOrder, requests: Sequence[ServerRequest]) -> dict[str, Any]:
    return {
        "action": _UNDO if order.undo else _RELEASE,
        "boot_id": host.limits.boot_id(),
        "since_boot_s": host.clock.monotonic(),
        "target": to_builtins(order.target),
        "server": order.server,
        "where": order.where,
        "requests": [each.words for each in requests],
        "models": [each.model for each in requests if each.model is not None],
        "charged_before": order.charged,
    }


class _Run:
    """Requests on their way: ``asked`` is what was sent by now, and what is known of it."""

    def __init__(
        self,
        host: Host,
        prepared: PreparedRelease,
        until: float,
        on_asked: Callable[[AskedRequest], None] | None,
    ) -> None:
        self._host, self._prepared, self._until = host, prepared, until
        self._on_asked = on_asked or (lambda asked: None)
        self.asked: list[AskedRequest] = []

    def send_all(self) -> ReleaseEnd:
        for request in self._prepared.requests:
            try:
                end = self._send(request)
            except VramError as error:
                if not self.asked:
                    raise
                # Others went out before it: this one did not.
                self.asked.append(
                    AskedRequest(
                        request=request.words, status=None, problem=f"not sent: {error}", model=request.model
                    )
                )
                return "ended" if isinstance(error, TargetDied | NoSuchProcess) else "unanswered"
            if end != "answered":
                return end
        return "answered"

    def _send(self, request: ServerRequest) -> ReleaseEnd:
        client, server = self._prepared.found.client, self._prepared.found.server
        pending = AskedRequest(
            request=request.words, status=None, problem="no answer yet", model=request.model
        )
        sent = len(self.asked)

        def note() -> None:
            self.asked.append(pending)
            self._on_asked(pending)

        try:
            answer = client.send(request, self._until, note)
        except VramError as error:
            if len(self.asked) == sent:
                raise
            self._answered(replace(pending, problem=str(error)))
            return "ended" if isinstance(error, TargetDied) else "unanswered"
        problem = server.complaint(request, answer)
        self._answered(replace(pending, status=answer.status, problem=problem))
        return "refused" if problem else "answered"

    def _answered(self, asked: AskedRequest) -> None:
        self.asked[-1] = asked
        self._on_asked(asked)

    def log_fields(self, status: str, message: str) -> dict[str, Any]:
        return {"status": status, "message": message, "asked": to_builtins(self.asked)}


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """One request of this user's is under way. Raises where another vram asks a server now."""
    file = state.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TimedOut("another vram is asking a server now", hint="try again when it is done") from error
        yield
    finally:
        os.close(file)


# ---- what it did ----


def _settle(host: Host, order: ReleaseOrder, before: int | None, end: ReleaseEnd) -> None:
    """Come back when the bytes have changed and change no more, or when that takes too long."""
    if before is None or end == "refused":
        return
    until = host.clock.monotonic() + SETTLE_S
    last: int | None = None
    while True:
        promised = None if order.undo else (order.predicted_bytes or 1)
        now = settled_bytes(host, order.gpus, before, promised, rest=host.clock.sleep)
        changed = now is not None and (now > before if order.undo else now < before)
        if now is None or (changed and now == last) or host.clock.monotonic() >= until:
            return
        last = now
        host.clock.sleep(_PAUSE_S)


def _charged_now(host: Host, order: ReleaseOrder) -> int | None:
    """What the server's processes are charged with now; None where that can no longer be read."""
    if order.whole_gpu:
        return used_bytes(host, order.gpus)
    top = order.pids[0]
    pids = {*order.pids, *host.proc.descendants(top)}
    try:
        known = processes(read_ledger(host, (), READ_S))
    except VramError:
        return None
    return sum(each.charged_bytes for pid, each in known.items() if pid in pids)


# ---- what was asked before ----


def _asked_before(host: Host, target: Target) -> AskedBefore:
    """What the audit logs of this user's vrams say of this very process."""
    boot_id, process = host.limits.boot_id(), to_builtins(target.process)
    intents: list[dict[str, Any]] = []
    outcomes: dict[str, dict[str, Any]] = {}
    for record in audit.records(b'"asked"', b'"release'):
        named = record.get("target")
        if record.get("event") == "outcome":
            outcomes[str(record.get("token"))] = record
        elif (
            record.get("event") == "intend"
            and record.get("boot_id") == boot_id
            and isinstance(named, dict)
            and named.get("process") == process
        ):
            intents.append(record)
    intents.sort(key=lambda each: each.get("since_boot_s", 0.0))  # they may be of several logs
    released, models = False, dict[str, None]()
    charged_before, charged_after = None, None
    for each in intents:
        # A vram that was killed wrote no outcome: what it asked for may have been done.
        killed = {"asked": [{"model": model} for model in each.get("models", ())] or [{}]}
        outcome = outcomes.get(str(each.get("token")), killed)
        asked = outcome.get("asked", ())
        if each.get("action") == _RELEASE:
            charged_before, charged_after = each.get("charged_before"), outcome.get("charged_after")
            maybe = [one for one in asked if one.get("status") is None or not one.get("problem")]
            released = released or bool(maybe)
            models |= dict.fromkeys(one["model"] for one in maybe if isinstance(one.get("model"), str))
        elif each.get("action") == _UNDO:
            surely = [one for one in asked if one.get("status") is not None and not one.get("problem")]
            for one in surely:
                models.pop(one.get("model"), None)
            released = released and (not surely or bool(models))
    return AskedBefore(released, tuple(models), charged_before, charged_after)
