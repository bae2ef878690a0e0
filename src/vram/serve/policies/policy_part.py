"""Carries out what policies decide: audited first, in a worker, one at a time.

Ending runs as the service's own user. A process is parked and brought back as its owner, who finds it in
`vram park` and can resume it. Without an audit log nothing is done.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from vram import untrusted
from vram.errors import AuditUnavailable, NotPermitted, VramError
from vram.host.local.processes import LocalSignals
from vram.ledger.jobs import find_held_jobs
from vram.ledger.processes import processes
from vram.model.forecast import Forecast
from vram.model.ledger import Ledger
from vram.model.plan import OutcomeStatus
from vram.policy.config import read_policies
from vram.policy.engine import HOUR_S, PolicyEngine, PolicyReading
from vram.policy.kinds import KINDS, before_oom
from vram.policy.policy import (
    AllowedProcess,
    Consent,
    Decision,
    DecisionStatus,
    Identity,
    PolicyMemory,
    PolicyTarget,
    Relief,
)
from vram.reclaim import audit, state
from vram.reclaim.candidates import ORPHAN
from vram.reclaim.device_state import available_bytes
from vram.serve.forecast_part import ForecastPart
from vram.serve.part import PartHealth, ServicePart, counter, gauge
from vram.serve.policies.consent import CONSENTS, Consents, may_be_allowed
from vram.serve.policies.cpu_times import cpu_times
from vram.serve.policies.relief import relieve
from vram.serve.policies.reports import notice
from vram.serve.socket.become import RunAs
from vram.serve.socket.peers import Peer, agreed_to, identify_own, opted_in, owner_of
from vram.serve.socket.protocol import PlanWords
from vram.serve.socket.waiting import WaitingList
from vram.serve.socket.worker import WorkerAnswer, WorkerRequest
from vram.serve.socket.worker_process import failed, own_rights, start_worker

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading

MAX_DECISIONS = 200
_LOCK = "policy-action.lock"
_MEMORY = "policies.json"
_MAX_NBYTES, _SCHEMA = 8 << 20, 1  # of that
_MAX_MESSAGE_LENGTH = 500
_END_S, _MOVE_S, _RELIEVE_S, _TELL_S = 60.0, 900.0, 120.0, 120.0
_MAX_ALLOWED = 64
_MAX_PLANNED = 32
_REFUSALS = (
    *(
        "NoSuchProcess",
        "NotOnGpu",
        "NotPermitted",
        "Protected",
        "WorldChanged",
        "AuditUnavailable",
        "CannotPark",
    ),
    *("GoalImpossible", "Refused", "UsageError"),
)


class PolicyPart(ServicePart):
    """The policies of the configuration, at work. ``decisions`` are the last two hundred, oldest first."""

    name = "policies"

    def __init__(self, service: Service) -> None:
        self._service = service
        self.waiting = WaitingList()
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self.engine = PolicyEngine(())
        self.counts: Counter[tuple[str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._planning = asyncio.Semaphore(1)
        self._trouble = ""
        self._not_before = 0.0
        self._lock = -1
        self._opted_in = {what: Consents(partial(opted_in, what)) for what in CONSENTS}
        self._agreed = Consents(lambda *each: not agreed_to(*each).isdisjoint(before_oom.RELIEFS))

    # ---- as a part of the service ----

    async def start(self) -> None:
        state.use_folder(self._service.places.state)
        self._lock = state.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
        self.engine = PolicyEngine(read_policies(self._service.config.policy), self._load_memory())
        for policy in self.engine.policies:
            self._service.log.info(f"policy {policy.name!r} ({policy.do}): {policy.mode}")

    def _load_memory(self) -> PolicyMemory:
        try:
            return load_memory()
        except untrusted.Rejected as error:
            # What was done in the last hour is not known: so long nothing is.
            self._not_before = self._service.clock.now().boot + HOUR_S
            self._trouble = f"what policies did before is not readable ({error}); they wait for an hour"
            self._service.log.error(self._trouble)
            set_memory_aside()
            return PolicyMemory()

    async def reload(self, config: ServeConfig) -> None:
        self.engine.use(read_policies(config.policy))

    async def close(self) -> None:
        """What is being done now is ended as by Ctrl-C: a process that is being moved is brought back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def health(self) -> PartHealth:
        return PartHealth("degraded", self._trouble) if self._trouble else PartHealth()

    def metrics(self) -> Iterable[Metric]:
        counts = sorted(self.counts.items())
        yield counter("vram_policy_decisions", "decisions of policies", counts, "do", "verdict")
        parked = len(self.engine.memory.parked)
        yield gauge("vram_policy_parked", "processes that policies have parked", parked)

    async def on_reading(self, reading: Reading) -> None:
        if reading.ledger is None or not (self.engine.policies or self.engine.memory.parked):
            return
        for decision in self.engine.decide(self._policy_reading(reading, reading.ledger)):
            self._take(decision, reading.ledger)

    def _policy_reading(self, reading: Reading, ledger: Ledger) -> PolicyReading:
        return PolicyReading(
            ledger=ledger,
            moment=reading.moment,
            good=reading.error is None,
            longest_pause_s=self._service.longest_pause_s,
            waiters=self.waiting.waiters,
            allowed=(allowed := {what: self._find_allowed(ledger, what) for what in CONSENTS}),
            cpu_s=cpu_times({**dict.fromkeys(allowed["sleep"]), **self._orphans(ledger)}),
            own_pids=LocalSignals().self_and_ancestors(),
            forecasts=(forecasts := self._forecasts()),
            agreed=self._find_agreed(ledger, forecasts),
        )

    def _forecasts(self) -> tuple[Forecast, ...]:
        part = self._service.part(ForecastPart.name)
        return part.forecasts if isinstance(part, ForecastPart) else ()

    def _orphans(self, ledger: Ledger) -> dict[Identity, int | None]:
        """The processes of orphaned jobs and who started each, where a policy asks whether they work."""
        if not any(KINDS[policy.do].gives_notice for policy in self.engine.policies):
            return {}
        return {
            (each.pid, each.started_at): each.job.head if each.job is not None else None
            for job in find_held_jobs(ledger)
            for each in job.holders
            if job.is_orphan and each.started_at is not None
        }

    # ---- what owners allow ----

    def allow(self, what: Consent, pid: int, peer: Peer, *, revoke: bool) -> Identity:
        """Remember that *peer* allows *what* while *pid* is idle. Raises where that is not its owner."""
        identity = identify_own(pid, peer)
        memory = self.engine.memory
        same = (what, identity)
        others = [
            each for each in memory.allowed if (each.what, each.identity) != same and owner_of(*each.identity)
        ]
        mine = sum((each.uid, each.what) == (peer.uid, what) for each in others)
        if mine >= _MAX_ALLOWED and not revoke:
            raise NotPermitted(
                f"you have allowed it for {_MAX_ALLOWED} processes already", hint="take one back: --revoke"
            )
        boot_id = self._service.clock.now().boot_id
        added = () if revoke else (AllowedProcess(*identity, peer.uid, boot_id, what),)
        memory.allowed = [*others, *added]
        save_memory(memory)
        return identity

    def _find_allowed(self, ledger: Ledger, what: Consent) -> frozenset[Identity]:
        """Those whose owner allows *what*: at the start, in the environment, or over the socket."""
        if not any(KINDS[policy.do].consent == what for policy in self.engine.policies):
            return frozenset()
        there = may_be_allowed(ledger, what)
        said = {each.identity for each in self.engine.memory.allowed if each.what == what}
        by_environment = self._opted_in[what].among(there, self._service.clock.now().boot)
        return by_environment | frozenset(each for each in there if each in said)

    def _find_agreed(self, ledger: Ledger, forecasts: tuple[Forecast, ...]) -> frozenset[Identity]:
        """Those on GPUs that may be full soon whose owners let them be asked for memory then."""
        policies = [each for each in self.engine.policies if each.do == before_oom.KIND.name]
        if not policies:
            return frozenset()
        free, full = available_bytes(ledger), {each.gpu for each in forecasts}
        full |= {
            gpu for gpu, nbytes in free.items() if any(nbytes < each.min_free_bytes for each in policies)
        }
        there = [
            (each.pid, each.holder.started_at)
            for each in (processes(ledger).values() if full else ())
            if each.holder.started_at is not None and not full.isdisjoint(each.gpus)
        ]
        return self._agreed.among(there, self._service.clock.now().boot)

    def _require_allowed(self, what: Consent, target: PolicyTarget) -> RunAs:
        """The owner of *target*, read anew right before; raises where that owner does not allow *what*."""
        owner = owner_of(*target.identity)
        allowed = self.engine.memory.allowed
        by_socket = any((each.what, each.identity) == (what, target.identity) for each in allowed)
        if owner is None or not (by_socket or opted_in(what, *target.identity)):
            raise NotPermitted(f"pid {target.pid} has ended, changed its user, or does not allow it any more")
        return owner

    # ---- decisions ----

    def _take(self, decision: Decision, ledger: Ledger) -> None:
        """Log *decision*, and carry it out where it says so. No log, no action."""
        now = self._service.clock.now()
        if decision.verdict == "act" and now.boot < self._not_before:
            decision = replace(decision, verdict="refused", message=self._trouble)
        try:
            token = self._log(decision)
            if token is not None:
                self._begin(decision)
        except AuditUnavailable as error:
            self._note_trouble(f"nothing is done: {error}")
            self.engine.finished(decision, "refused", now)
            self._remember(replace(decision, verdict="refused", status="refused", message=str(error)))
            return
        self._trouble = "" if now.boot >= self._not_before else self._trouble
        self._remember(decision)
        self.counts[decision.do, decision.verdict] += 1
        plans = decision.verdict == "dry-run" and decision.do == "end" and len(self._tasks) < _MAX_PLANNED
        if token is not None or plans:
            task = asyncio.create_task(self._carry_out(decision, token, ledger.host.name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._service.log.info(f"policy {decision.policy!r}: {decision.verdict}: {decision.reason}")
        if decision.verdict == "refused":
            self.engine.finished(decision, "refused", now)

    def _begin(self, decision: Decision) -> None:
        """Have it counted, on the disk, before it is done."""
        self.engine.begun(decision, self._service.clock.now())
        if decision.do == "park":
            self._expect_parked(decision)
        try:
            save_memory(self.engine.memory)
        except AuditUnavailable:
            if decision.do == "park":
                self.engine.unparked(decision.targets[0].identity)
            raise

    def _log(self, decision: Decision) -> str | None:
        """Write it down; the token of an action that is about to be done."""
        record = {"action": "policy", "decision": msgspec.to_builtins(decision)}
        if decision.verdict == "act":
            return audit.log_intent(record)
        audit.log_decision(record)
        return None

    def _note_trouble(self, sentence: str) -> None:
        if sentence != self._trouble:
            self._service.log.error(sentence)
        self._trouble = sentence

    def _remember(self, decision: Decision) -> None:
        for at, each in enumerate(self.decisions):
            if each.number == decision.number:
                self.decisions[at] = decision
                return
        self.decisions.append(decision)

    # ---- carrying out ----

    async def _carry_out(self, decision: Decision, token: str | None, host_name: str) -> None:
        try:
            if token is None:
                async with self._planning:  # a dry run: there may be many, and none is urgent
                    answer = await self._end(decision)
            else:
                answer = await self._do(decision, host_name)
        except VramError as error:
            answer = failed(error)
        except Exception as error:  # a bug must not leave the policies waiting for ever
            self._service.log.error(f"policy {decision.policy!r}: {type(error).__name__}: {error}")
            answer = WorkerAnswer(is_last=True, status="failed", message="this is a bug in vram")
        except asyncio.CancelledError:
            self._finish(decision, token, "failed", WorkerAnswer(message="the service was stopped"))
            raise
        self._finish(decision, token, _status(answer), answer)

    async def _do(self, decision: Decision, host_name: str) -> WorkerAnswer:
        if decision.do == "end":
            return await self._end(decision)
        if decision.do == "park":
            return await self._park(decision)
        if decision.do == "unpark":
            return await self._unpark(decision)
        if decision.do == "sleep":
            return await self._sleep(decision)
        if decision.do == "relieve":
            return await self._relieve(decision, host_name)
        return await self._tell(decision, host_name, decision.targets)

    async def _end(self, decision: Decision) -> WorkerAnswer:
        self._require_nobody_acts()
        order = WorkerRequest(
            job="end-orphans" if decision.code == ORPHAN else "end",
            state=self._service.places.state,
            deadline_s=self._service.reader_options.deadline_s,
            targets=tuple(target.identity for target in decision.targets),
            grace_s=decision.grace_s,
            dry_run=decision.verdict != "act",
        )
        limit_s = _END_S + (decision.grace_s + 10.0) * len(decision.targets)
        return await self._run_worker(order, own_rights(), limit_s, self._lock)

    def _require_nobody_acts(self) -> None:
        """A worker of a service that died may still be at it: it has the lock for as long as it lives."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotPermitted("an action that an earlier service began is not over yet") from error

    async def _park(self, decision: Decision) -> WorkerAnswer:
        (target,) = decision.targets
        try:
            owner = self._require_allowed("park", target)
        except NotPermitted:
            self.engine.unparked(target.identity)
            raise
        answer = await self._run_worker(self._move("park", decision, owner), owner, _MOVE_S, parks=decision)
        if _status(answer) == "refused":
            self.engine.unparked(target.identity)
        elif _status(answer) != "done":
            await self._run_worker(self._move("recover", decision, owner), owner, _MOVE_S)
        return answer

    def _expect_parked(self, decision: Decision, by_pid: int = 0) -> None:
        """Remember it before it is done: were the service killed then, the next one brings it back."""
        owner = owner_of(*decision.targets[0].identity)
        shares = dict(zip(decision.gpus, decision.by_gpu, strict=True))
        self.engine.parked(decision, owner.uid if owner else -1, shares, self._service.clock.now(), by_pid)

    async def _unpark(self, decision: Decision) -> WorkerAnswer:
        (target,) = decision.targets
        owner = owner_of(*target.identity)
        if owner is None:
            self.engine.unparked(target.identity)
            return WorkerAnswer(is_last=True, status="not-needed", message="it has ended")
        answer = await self._run_worker(self._move("unpark", decision, owner), owner, _MOVE_S)
        if _status(answer) in ("done", "not-needed") or owner_of(*target.identity) is None:
            self.engine.unparked(target.identity)
        return answer

    async def _sleep(self, decision: Decision) -> WorkerAnswer:
        """From then on it is in the care of its owner's waker: nothing of it is remembered here."""
        (target,) = decision.targets
        owner = self._require_allowed("sleep", target)
        return await self._run_worker(self._move("sleep", decision, owner), owner, _MOVE_S)

    def _move(
        self, job: Any, decision: Decision, owner: RunAs, target: PolicyTarget | None = None
    ) -> WorkerRequest:
        own, parked = owner.uid == os.geteuid(), self.engine.memory.parked
        targets = decision.targets if target is None else (target,)
        return WorkerRequest(
            job=job,
            # What sleeps is in the care of its owner's waker, with the state of the owner's own vram.
            state=self._service.places.state if own and job != "sleep" else None,
            deadline_s=self._service.reader_options.deadline_s,
            words=PlanWords(gpus=decision.gpus if job == "sleep" else ()),
            targets=tuple(each.identity for each in targets),
            by_pid=next((each.by_pid for each in parked if each.target == targets[0]), 0),
        )

    async def _relieve(self, decision: Decision, host_name: str) -> WorkerAnswer:
        async def ask(relief: Relief, target: PolicyTarget, owner: RunAs) -> WorkerAnswer:
            limit_s = _MOVE_S if relief == "sleep" else _RELIEVE_S
            return await self._run_worker(self._move(relief, decision, owner, target), owner, limit_s)

        async def tell() -> WorkerAnswer:
            return await self._tell(decision, host_name, decision.told)

        is_told = bool(decision.told) and self._tells_somebody(decision)
        return await relieve(decision, ask, tell if is_told else None, _status)

    def _tells_somebody(self, decision: Decision) -> bool:
        notify = [each.notify for each in self.engine.policies if each.name == decision.policy]
        return any(each.terminals or each.mail or each.webhook for each in notify)

    async def _tell(
        self, decision: Decision, host_name: str, targets: tuple[PolicyTarget, ...]
    ) -> WorkerAnswer:
        policy = next((each for each in self.engine.policies if each.name == decision.policy), None)
        if policy is None:
            return WorkerAnswer(is_last=True, status="not-needed", message="the policy was removed meanwhile")
        owners = [owner_of(*target.identity) for target in targets]
        uids = tuple(dict.fromkeys(owner.uid for owner in owners if owner is not None))
        message = notice(decision, host_name, uids)
        order = WorkerRequest(job="notify", message=message, notify=policy.notify)
        return await self._run_worker(order, own_rights(), _TELL_S)

    async def _run_worker(
        self,
        order: WorkerRequest,
        run_as: RunAs,
        limit_s: float,
        lock: int | None = None,
        parks: Decision | None = None,
    ) -> WorkerAnswer:
        worker = start_worker(order, run_as, limit_s, lock)
        if parks is not None:
            self._expect_parked(parks, worker.pid)
        try:
            return await worker.last()
        finally:
            worker.end(late=False)
            await worker.has_ended.wait()

    def _finish(
        self, decision: Decision, token: str | None, status: DecisionStatus, answer: WorkerAnswer
    ) -> None:
        now = self._service.clock.now()
        message = (answer.error.message if answer.error else answer.message)[:_MAX_MESSAGE_LENGTH]
        done = replace(
            decision, status=status, message=message, digest=answer.digest, freed_bytes=answer.freed_bytes
        )
        if token is not None:
            self.engine.finished(decision, status, now)
            with suppress(AuditUnavailable):
                audit.log_outcome(token, {"status": status, "message": message, "freed": answer.freed_bytes})
                save_memory(self.engine.memory)
            self._service.read_soon()
        elif status == "refused":
            done = replace(done, verdict="refused")
        self._remember(done)
        self._service.log.info(f"policy {done.policy!r}: {done.do}: {done.reason}: {status}: {message}")


def _status(answer: WorkerAnswer) -> OutcomeStatus:
    if answer.error is None:
        return answer.status or "failed"
    return "refused" if answer.error.name in _REFUSALS else "failed"


# ---- what policies must not forget: a file in the service's state folder, replaced whole or not at all ----


def load_memory() -> PolicyMemory:
    """What was saved; nothing where there is no file. Raises Rejected where it cannot be used."""
    folder = state.open_folder()
    try:
        os.stat(_MEMORY, dir_fd=folder, follow_symlinks=False)
        data = untrusted.read_file(_MEMORY, nbytes=_MAX_NBYTES, dir_fd=folder, owner=os.geteuid())
    except FileNotFoundError:
        return PolicyMemory()
    finally:
        os.close(folder)
    memory = untrusted.decode(data, PolicyMemory)
    if memory.schema != _SCHEMA:
        raise untrusted.Rejected("wrong-shape", f"it has version {memory.schema}")
    return memory


def save_memory(memory: PolicyMemory) -> None:
    """Put it on the disk. Raises AuditUnavailable, and then nothing may be done."""
    fresh = f"{_MEMORY}.new"
    folder = state.open_folder()
    try:
        file = state.open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(file, "wb") as stream:
            stream.write(msgspec.json.encode(memory))
            stream.flush()
            os.fsync(file)
        os.replace(fresh, _MEMORY, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise AuditUnavailable(
            f"cannot save what policies did: {error.strerror}", hint="without that, caps would be forgotten"
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=folder)
        os.close(folder)


def set_memory_aside() -> None:
    """Keep a file that cannot be used under another name."""
    folder = state.open_folder()
    try:
        with suppress(OSError):
            os.replace(_MEMORY, f"set-aside-{_MEMORY}", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
