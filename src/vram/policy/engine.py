"""From readings to decisions: delays, settling times, caps, backoff, one action at a time. It only decides.

A condition must be met in every reading, over so many of them and for so long by the clock that neither jumps
nor stops. Whatever leaves a doubt about that starts the delay again: a failed reading, a pause between two, a
wall clock that was set, another driver, a restart of the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vram.model.forecast import Forecast
from vram.model.ledger import Ledger
from vram.model.moment import Moment
from vram.policy.config import MAX_PER_HOUR
from vram.policy.kinds import KINDS, park_idle, subjects
from vram.policy.policy import (
    MESSAGES,
    Consent,
    DecidedAction,
    Decision,
    DecisionStatus,
    Identity,
    ParkedByPolicy,
    Policy,
    PolicyMemory,
    RememberedAct,
    RememberedNotice,
    Verdict,
    Waiter,
)
from vram.policy.subjects import GhostNames, JobNames, Subject
from vram.reclaim.device_state import available_bytes
from vram.reclaim.selection import fewest
from vram.units import MIB, duration, size

HOUR_S = 3600.0
# A request for room that is not used keeps no process parked for longer.
UNUSED_S = 600.0
# A wall clock is slewed by less than this between two readings; more is a jump.
_CLOCK_SLACK_S = 5.0
_REMIND_S = 86400.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 60.0, 3600.0
_MAX_REMEMBERED = 4096
# What a process that waits may use: some programs wake up now and then to see whether they still have to.
IDLE_SHARE, IDLE_SLACK_S = 0.02, 0.05
# And for how much of the time it may wait for a CPU: a program that computes on an overloaded machine
# gets next to none, and waits all the time.
MAX_WAITING_SHARE = 0.2
# For so long after the time that it names, a notice counts; then the owner is told again.
NOTICE_COUNTS_S = 86400.0
# What a context takes beside the bytes that the driver lists for it; the checkpoint worker asks for as much.
ROOM_MARGIN = 64 * MIB


class CpuTime(NamedTuple):
    """What a process's threads have used so far, and how long those that live have waited for a CPU."""

    used_s: float
    waited_s: float = 0.0


class PolicyReading(Struct, frozen=True, kw_only=True):
    """What decisions are made from. ``good``: the ledger was read just now, and nothing failed.

    ``longest_pause_s`` is how long two readings may lie apart to count as one after the other. ``cpu_s`` has
    for each process of an orphaned job, and for each that may be put to sleep, the CPU time of all that it
    consists of: of itself, of the part of the job that started it, and of each process below these. One that
    is not there could not be read. ``own_pids`` are the service and its ancestors. ``agreed`` are the
    processes that may be asked for memory before a GPU is full.
    """

    ledger: Ledger
    moment: Moment
    good: bool = True
    longest_pause_s: float = 60.0
    waiters: tuple[Waiter, ...] = ()
    allowed: Mapping[Consent, frozenset[Identity]] = {}
    cpu_s: Mapping[Identity, Mapping[Identity, CpuTime]] = {}
    own_pids: frozenset[int] = frozenset()
    forecasts: tuple[Forecast, ...] = ()
    agreed: frozenset[Identity] = frozenset()


class _Delay:
    """Since when, and in how many readings, one policy's condition is met for one subject.

    ``idle_since``: since when its processes have done nothing, where the policy asks for that.
    """

    def __init__(self, boot: float) -> None:
        self.since = boot
        self.readings = 0
        self.decided: dict[tuple[DecidedAction, Verdict], float] = {}
        """When each verdict was last decided: the same is not repeated in every reading."""
        self.idle_since = boot
        self._cpu_s: Mapping[Identity, Mapping[Identity, CpuTime]] = {}
        self._cpu_read_at = boot

    def note_work(self, subject: Subject, reading: PolicyReading) -> None:
        """Begin the idle time anew where a process of *subject* worked since the last reading, or may."""
        boot = reading.moment.boot
        elapsed_s = boot - self._cpu_read_at
        rested = (
            _has_rested(self._cpu_s.get(each.identity), reading.cpu_s.get(each.identity), elapsed_s)
            for each in subject.targets
        )
        if subject.works or not all(rested):
            self.idle_since = boot
        self._cpu_s, self._cpu_read_at = reading.cpu_s, boot


def _has_rested(
    before: Mapping[Identity, CpuTime] | None, now: Mapping[Identity, CpuTime] | None, elapsed_s: float
) -> bool:
    """Whether a process, and each below it, wanted next to no CPU, and none of those came or went."""
    if before is None or now is None or before.keys() != now.keys():
        return False
    used_s = sum(now[each].used_s - before[each].used_s for each in now)
    # Less than before means that a thread has ended which had waited for a CPU: it had worked.
    waited_s = sum(abs(now[each].waited_s - before[each].waited_s) for each in now)
    return (
        used_s <= IDLE_SLACK_S + IDLE_SHARE * elapsed_s
        and waited_s <= IDLE_SLACK_S + MAX_WAITING_SHARE * elapsed_s
    )


class _Backoff(Struct):
    until: float
    delay_s: float


class PolicyEngine:
    """Decides. The caller carries a decision out that says "act", and reports what came of it."""

    def __init__(
        self,
        policies: tuple[Policy, ...],
        memory: PolicyMemory | None = None,
        *,
        most_per_hour: int = MAX_PER_HOUR,
    ) -> None:
        self.policies = policies
        self.memory = memory or PolicyMemory()
        self.most_per_hour = most_per_hour
        self.busy: Decision | None = None
        self._number = 0
        self._delays: dict[tuple[str, str], _Delay] = {}
        self._backoffs: dict[tuple[str, str], _Backoff] = {}
        self._last: tuple[Moment, object] | None = None
        self._seen: tuple[Ledger, object, dict[Policy, tuple[Subject, ...]]] | None = None
        """What was found in the last ledger: it is the same object while nothing changes."""
        self._names = GhostNames()
        self._jobs = JobNames()
        self._unwaited: dict[Identity, float] = {}
        """Since when no request waits for the room of a process that a policy parked."""
        self._unused: dict[Identity, float] = {}
        """Since when that room is there and unused."""

    def use(self, policies: tuple[Policy, ...], most_per_hour: int = MAX_PER_HOUR) -> None:
        """Take other policies. The delays of those that are unchanged go on; all others begin anew."""
        same = {policy.name for policy in policies if policy in self.policies}
        self._delays = {key: each for key, each in self._delays.items() if key[0] in same}
        self.policies, self.most_per_hour = policies, most_per_hour

    def decide(self, reading: PolicyReading) -> tuple[Decision, ...]:
        """What follows from *reading*: at most one decision that has consequences, none while one is busy."""
        if not self._follows(reading):
            self._delays.clear()
            self._names.forget()
            self._jobs.forget()
            self._unwaited.clear()
            self._unused.clear()
        if not reading.good:
            return ()
        self._forget_old(reading.moment)
        decided = [each for policy in self.policies for each in self._of_policy(policy, reading)]
        return tuple(self._one_at_a_time([*self._unparks(reading), *decided]))

    # ---- what the caller reports ----

    def begun(self, decision: Decision, moment: Moment) -> None:
        """*decision* is about to be carried out; from now on it counts."""
        self.busy = decision
        if decision.do != "unpark":
            self.memory.acts.append(
                RememberedAct(
                    decision.policy,
                    decision.subject,
                    decision.do in MESSAGES,
                    moment.wall,
                    moment.boot,
                    moment.boot_id,
                )
            )
            del self.memory.acts[:-_MAX_REMEMBERED]

    def finished(self, decision: Decision, status: DecisionStatus, moment: Moment) -> None:
        """What came of it. One that failed is tried again later and later; an unkillable one never."""
        if self.busy is not None and self.busy.number == decision.number:
            self.busy = None
        key = (decision.policy, decision.subject)
        if decision.do == "sleep":
            # It sleeps, or works after all: when it is awake, it must be idle for as long again.
            self._delays.pop(key, None)
        if status == "unkillable":
            self.memory.unkillable.append(decision.subject)
            del self.memory.unkillable[:-_MAX_REMEMBERED]
        if decision.do == "announce" and status == "done":
            self._remember_notice(decision, moment)
        if status in ("done", "not-needed"):
            self._backoffs.pop(key, None)
            return
        last = self._backoffs.get(key)
        delay_s = _FIRST_BACKOFF_S if last is None else min(_MAX_BACKOFF_S, 2 * last.delay_s)
        self._backoffs[key] = _Backoff(moment.boot + delay_s, delay_s)

    def _remember_notice(self, decision: Decision, moment: Moment) -> None:
        """The owner knows it now; one who could not be told does not, and nothing follows from that."""
        self.memory.notices.append(
            RememberedNotice(
                policy=decision.policy,
                subject=decision.subject,
                notice_s=decision.notice_s,
                wall=moment.wall,
                boot=moment.boot,
                boot_id=moment.boot_id,
            )
        )
        del self.memory.notices[:-_MAX_REMEMBERED]

    def parked(
        self, decision: Decision, uid: int, shares: dict[int, int], moment: Moment, by_pid: int = 0
    ) -> None:
        """A process is parked now, or may be: it is ours to bring back."""
        (target,) = decision.targets
        delays = [policy.unpark_after_s for policy in self.policies if policy.name == decision.policy]
        self.unparked(target.identity)
        self.memory.parked.append(
            ParkedByPolicy(
                policy=decision.policy,
                target=target,
                uid=uid,
                gpus=tuple(shares),
                nbytes=tuple(shares.values()),
                boot_id=moment.boot_id,
                unpark_after_s=delays[0] if delays else 0.0,
                by_pid=by_pid,
            )
        )

    def unparked(self, identity: Identity) -> None:
        """It runs again, or has ended."""
        self.memory.parked = [each for each in self.memory.parked if each.target.identity != identity]

    # ---- delays ----

    def _follows(self, reading: PolicyReading) -> bool:
        """Whether nothing speaks against comparing *reading* with the one before it."""
        now, last = reading.moment, self._last
        self._last = (now, _hardware(reading.ledger))
        if not reading.good or last is None:
            return False
        before = last[0]
        apart = now.boot - before.boot
        is_clock_set = abs((now.wall - before.wall) - apart) > _CLOCK_SLACK_S
        is_same = now.boot_id == before.boot_id and last[1] == self._last[1]
        return is_same and not is_clock_set and 0.0 <= apart <= reading.longest_pause_s

    def _of_policy(self, policy: Policy, reading: PolicyReading) -> Iterator[Decision]:
        boot, kind = reading.moment.boot, KINDS[policy.do]
        idle_s = policy.idle_s if kind.only_idle else 0.0
        present: dict[str, Subject] = {}
        for subject in self._subjects(policy, reading):
            present[subject.key] = subject
            delay = self._delays.setdefault((policy.name, subject.key), _Delay(boot))
            delay.readings += 1
            if kind.only_idle:
                delay.note_work(subject, reading)
        mine = {key: each for (name, key), each in self._delays.items() if name == policy.name}
        for key in mine.keys() - present.keys():
            del self._delays[policy.name, key]
        due = sorted(
            (delay.since, key)
            for key, delay in mine.items()
            if key in present
            and boot - delay.since >= policy.after_s
            and boot - delay.idle_since >= idle_s
            and delay.readings >= policy.readings
        )
        ready = [present[key] for _, key in due if not self._is_put_off(policy.name, key, reading.moment)]
        if kind.waits_for_room:
            ready = list(to_park(ready, reading.ledger, reading.waiters))
        for subject in ready:
            yield from self._of_subject(policy, subject, mine[subject.key], reading.moment)

    def _subjects(self, policy: Policy, reading: PolicyReading) -> tuple[Subject, ...]:
        seen = self._seen
        about = (reading.allowed, reading.own_pids, reading.forecasts, reading.agreed)
        if seen is None or seen[0] is not reading.ledger or seen[1] != about:
            seen = self._seen = (reading.ledger, about, {})
        if policy not in seen[2]:
            seen[2][policy] = tuple(
                subjects(
                    policy,
                    reading.ledger,
                    reading.allowed,
                    self._names,
                    self._jobs,
                    reading.own_pids,
                    reading.forecasts,
                    reading.agreed,
                )
            )
        return seen[2][policy]

    def _is_put_off(self, policy: str, key: str, moment: Moment) -> bool:
        backoff = self._backoffs.get((policy, key))
        return key in self.memory.unkillable or (backoff is not None and moment.boot < backoff.until)

    def _of_subject(
        self, policy: Policy, subject: Subject, delay: _Delay, moment: Moment
    ) -> Iterator[Decision]:
        kind = KINDS[policy.do]
        if (kind.is_message or kind.again_after_s) and self._was_told(policy, subject, moment):
            return
        verdict: Verdict = "act" if policy.mode == "act" else "dry-run"
        do, more = self._after_notice(policy, subject, moment) if kind.gives_notice else (kind.action, "")
        if do is None:
            return
        held_s = moment.boot - delay.since
        idle = f", idle for {duration(moment.boot - delay.idle_since)}" if kind.only_idle else ""
        reason = f"{subject.what}, for {duration(held_s)}{idle}{more}"
        if verdict == "act" and (cap := self._cap(policy, do in MESSAGES, moment)):
            verdict, reason = "capped", f"{reason}; {cap}"
        pause_s = HOUR_S if verdict == "capped" else _REMIND_S
        if verdict != "act" and moment.boot - delay.decided.get((do, verdict), -pause_s) < pause_s:
            return
        delay.decided[do, verdict] = moment.boot
        made = self._decision(policy, do, subject, moment, reason)
        yield replace(made, verdict=verdict, held_s=round(held_s, 3), readings=delay.readings)

    def _after_notice(
        self, policy: Policy, subject: Subject, moment: Moment
    ) -> tuple[DecidedAction | None, str]:
        """What is to be done with *subject*: its owner is told, nothing while that is new, or the action."""
        action, notice = KINDS[policy.do].action, duration(policy.notice_s)
        if not policy.notice_s:
            return action, ""
        if policy.mode != "act":
            return action, f"; its owner would be told {notice} before"
        told = [
            each
            for each in self.memory.notices
            if (each.policy, each.subject) == (policy.name, subject.key)
            and moment.since(each.moment) < each.notice_s + NOTICE_COUNTS_S
        ]
        if not told:
            return "announce", f"; its owner is told {notice} before it is ended"
        # The later of what was said and what the policy says now.
        ago_s, notice_s = moment.since(told[-1].moment), max(policy.notice_s, told[-1].notice_s)
        return (action, f"; its owner was told {duration(ago_s)} ago") if ago_s >= notice_s else (None, "")

    # ---- caps ----

    def _cap(self, policy: Policy, is_message: bool, moment: Moment) -> str:
        """Why *policy* may not act now; nothing where it may. Messages and actions are counted apart."""
        recent = [
            act
            for act in self.memory.acts
            if act.is_message == is_message and moment.since(act.moment) < HOUR_S
        ]
        if sum(act.policy == policy.name for act in recent) >= policy.most_per_hour:
            return f"the policy's cap of {policy.most_per_hour} in an hour is reached"
        if len(recent) >= self.most_per_hour:
            return f"the cap of {self.most_per_hour} in an hour for all policies is reached"
        return ""

    def _was_told(self, policy: Policy, subject: Subject, moment: Moment) -> bool:
        return any(
            (act.policy, act.subject) == (policy.name, subject.key)
            and moment.since(act.moment) < policy.again_after_s
            for act in self.memory.acts
        )

    def _forget_old(self, moment: Moment) -> None:
        kept_s = max((HOUR_S, *(policy.again_after_s for policy in self.policies)))
        self.memory.acts = [act for act in self.memory.acts if moment.since(act.moment) < kept_s]
        # A pid and its start time mean nothing after another boot.
        self.memory.parked = [each for each in self.memory.parked if each.boot_id == moment.boot_id]
        self.memory.allowed = [each for each in self.memory.allowed if each.boot_id == moment.boot_id]
        self.memory.notices = [
            each
            for each in self.memory.notices
            if each.boot_id == moment.boot_id and moment.since(each.moment) < each.notice_s + NOTICE_COUNTS_S
        ]

    def _one_at_a_time(self, decided: list[Decision]) -> Iterator[Decision]:
        is_taken = self.busy is not None
        for decision in decided:
            if decision.verdict != "act" or not is_taken:
                is_taken = is_taken or decision.verdict == "act"
                yield decision

    # ---- who was parked comes back ----

    def _unparks(self, reading: PolicyReading) -> Iterator[Decision]:
        moment = reading.moment
        for each in self.memory.parked:
            subject = _of_parked(each)
            is_due = self._may_come_back(each, reading)
            if is_due and not self._is_put_off(each.policy, subject.key, moment):
                acting = Policy(name=each.policy, do=park_idle.KIND.name, mode="act")
                reason = f"{subject.what}: its room is no longer used, and there is room for it"
                made = self._decision(acting, "unpark", subject, moment, reason)
                yield replace(made, targets=(each.target,))

    def _may_come_back(self, each: ParkedByPolicy, reading: PolicyReading) -> bool:
        """No request waits for its room, or one that does not use it has had it for long enough."""
        identity, boot = each.target.identity, reading.moment.boot
        if is_waited_for(each.gpus, reading.waiters):
            self._unwaited.pop(identity, None)
        else:
            self._unwaited.setdefault(identity, boot)
        if not may_return(each, reading.ledger):
            self._unused.pop(identity, None)
            return False
        unused_s = boot - self._unused.setdefault(identity, boot)
        unwaited_s = boot - self._unwaited.get(identity, boot)
        return unused_s >= UNUSED_S or (identity in self._unwaited and unwaited_s >= each.unpark_after_s)

    def _decision(
        self, policy: Policy, do: DecidedAction, subject: Subject, moment: Moment, reason: str
    ) -> Decision:
        self._number += 1
        return Decision(
            number=self._number,
            at=moment.text,
            policy=policy.name,
            do=do,
            mode=policy.mode,
            verdict="act",
            reason=reason,
            subject=subject.key,
            targets=subject.targets,
            gpus=subject.gpus,
            nbytes=subject.nbytes,
            by_gpu=subject.by_gpu,
            code=subject.code,
            evidence=subject.evidence,
            told=subject.told,
            grace_s=policy.grace_s,
            notice_s=policy.notice_s if do == "announce" else 0.0,
        )


def _hardware(ledger: Ledger) -> object:
    """What does not change while a driver stays loaded."""
    version = ledger.driver.driver_version if ledger.driver else None
    return version, tuple((gpu.index, gpu.uuid) for gpu in ledger.gpus)


def _of_parked(each: ParkedByPolicy) -> Subject:
    return Subject(
        key=f"parked {each.target.pid}@{each.target.started_at}",
        what=f"{size(sum(each.nbytes))} of parked pid {each.target.pid}",
        gpus=each.gpus,
        nbytes=sum(each.nbytes),
        by_gpu=each.nbytes,
    )


# ---- room for those who wait ----


class _Parkable(Struct, frozen=True):
    """An idle process, as seen from one GPU."""

    subject: Subject
    nbytes: int

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(each.pid for each in self.subject.holders)


def has_room(ledger: Ledger, waiter: Waiter) -> int | None:
    """The GPU on which *waiter* has its room, the one with most of it; None where there is none."""
    free = {
        gpu: nbytes
        for gpu, nbytes in available_bytes(ledger).items()
        if not waiter.gpus or gpu in waiter.gpus
    }
    best = max(free, key=lambda gpu: (free[gpu], -gpu), default=None)
    return best if best is not None and free[best] >= waiter.nbytes else None


def to_park(idle: Sequence[Subject], ledger: Ledger, waiters: Sequence[Waiter]) -> tuple[Subject, ...]:
    """Those of *idle* that must be parked so that the first who waits in vain has room; none where that
    would not be enough."""
    free = available_bytes(ledger)
    for waiter in waiters:
        if waiter.is_served or has_room(ledger, waiter) is not None:
            continue
        gpus = [gpu for gpu in free if not waiter.gpus or gpu in waiter.gpus]
        plans = [plan for gpu in gpus if (plan := _enough(idle, gpu, waiter.nbytes - free[gpu]))]
        if plans:
            return min(plans, key=lambda plan: (sum(each.nbytes for each in plan), len(plan)))
    return ()


def _enough(idle: Sequence[Subject], gpu: int, missing: int) -> tuple[Subject, ...]:
    options = [
        _Parkable(subject, subject.by_gpu[subject.gpus.index(gpu)]) for subject in idle if gpu in subject.gpus
    ]
    chosen = fewest(options, missing, harm=lambda each: 0)
    return tuple(each.subject for each in chosen) if sum(each.nbytes for each in chosen) >= missing else ()


def may_return(parked: ParkedByPolicy, ledger: Ledger) -> bool:
    """Whether there is room for it on all its GPUs."""
    free = available_bytes(ledger)
    needs = zip(parked.gpus, parked.nbytes, strict=True)
    return all(free.get(gpu, 0) >= nbytes + ROOM_MARGIN for gpu, nbytes in needs)


def is_waited_for(gpus: Sequence[int], waiters: Sequence[Waiter]) -> bool:
    """Whether a request waits for room on one of *gpus*, or still uses what was made for them."""
    return any(not waiter.gpus or set(waiter.gpus) & set(gpus) for waiter in waiters)
