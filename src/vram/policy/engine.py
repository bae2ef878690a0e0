"""From readings to decisions: delays, settling times, caps, backoff, one action at a time. It only decides.

A condition must be met in every reading, over so many of them and for so long by the clock that neither jumps
nor stops. Whatever leaves a doubt about that starts the delay again: a failed reading, a pause between two, a
wall clock that was set, another driver, a restart of the service.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from vram.model.ledger import Ledger
from vram.policy.config import MAX_PER_HOUR, Policy
from vram.policy.decision import (
    DecidedAction,
    Decision,
    DecisionStatus,
    Identity,
    MomentLike,
    ParkedByPolicy,
    PolicyMemory,
    RememberedAct,
    Verdict,
    Waiter,
    rfc3339,
)
from vram.policy.room import is_waited_for, may_return, to_park
from vram.policy.subjects import GhostNames, Subject, subjects
from vram.units import duration, size

HOUR_S = 3600.0
# Who asks for room and does not use it keeps nobody parked for longer.
UNUSED_S = 600.0
# A wall clock is slewed by less than this between two readings; more is a jump.
_CLOCK_SLACK_S = 5.0
_REMIND_S = 86400.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 60.0, 3600.0
_MAX_REMEMBERED = 4096

_DO: dict[str, DecidedAction] = {
    "end-leftovers": "end",
    "park-idle": "park",
    "warn-owner": "warn",
    "alert-unexplained": "alert",
}
_MESSAGES = ("warn", "alert")


class PolicyReading(Struct, frozen=True, kw_only=True):
    """What decisions are made from. ``good``: the ledger was read just now, and nothing failed.

    ``longest_pause_s`` is how long two readings may lie apart to count as one after the other.
    """

    ledger: Ledger
    moment: MomentLike
    good: bool = True
    longest_pause_s: float = 60.0
    waiters: tuple[Waiter, ...] = ()
    allowed: frozenset[Identity] = frozenset()


class _Tracker:
    """Since when, and in how many readings, one policy's condition is met for one subject."""

    def __init__(self, boot: float) -> None:
        self.since = boot
        self.readings = 0
        self.decided: dict[Verdict, float] = {}
        """When each verdict was last decided: the same is not repeated in every reading."""


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
        self._trackers: dict[tuple[str, str], _Tracker] = {}
        self._backoffs: dict[tuple[str, str], _Backoff] = {}
        self._last: tuple[MomentLike, object] | None = None
        self._seen: tuple[Ledger, frozenset[Identity], dict[Policy, tuple[Subject, ...]]] | None = None
        """What was found in the last ledger: it is the same object while nothing changes."""
        self._names = GhostNames()
        self._unwaited: dict[Identity, float] = {}
        """Since when nobody waits for the room of a process that a policy parked."""
        self._unused: dict[Identity, float] = {}
        """Since when that room is there, and nobody uses it."""

    def use(self, policies: tuple[Policy, ...], most_per_hour: int = MAX_PER_HOUR) -> None:
        """Take other policies. The delays of those that are unchanged go on; all others begin anew."""
        same = {policy.name for policy in policies if policy in self.policies}
        self._trackers = {key: each for key, each in self._trackers.items() if key[0] in same}
        self.policies, self.most_per_hour = policies, most_per_hour

    def decide(self, reading: PolicyReading) -> tuple[Decision, ...]:
        """What follows from *reading*: at most one decision that has consequences, none while one is busy."""
        if not self._follows(reading):
            self._trackers.clear()
            self._names.forget()
            self._unwaited.clear()
            self._unused.clear()
        if not reading.good:
            return ()
        self._forget_old(reading.moment)
        decided = [each for policy in self.policies for each in self._of_policy(policy, reading)]
        return tuple(self._one_at_a_time([*self._unparks(reading), *decided]))

    # ---- what the caller reports ----

    def begun(self, decision: Decision, moment: MomentLike) -> None:
        """*decision* is about to be carried out; from now on it counts."""
        self.busy = decision
        if decision.do != "unpark":
            self.memory.acts.append(
                RememberedAct(
                    decision.policy,
                    decision.subject,
                    decision.do in _MESSAGES,
                    moment.wall,
                    moment.boot,
                    moment.boot_id,
                )
            )
            del self.memory.acts[:-_MAX_REMEMBERED]

    def finished(self, decision: Decision, status: DecisionStatus, moment: MomentLike) -> None:
        """What came of it. One that failed is tried again later and later; an unkillable one never."""
        if self.busy is not None and self.busy.number == decision.number:
            self.busy = None
        key = (decision.policy, decision.subject)
        if status == "unkillable":
            self.memory.unkillable.append(decision.subject)
            del self.memory.unkillable[:-_MAX_REMEMBERED]
        if status in ("done", "not-needed"):
            self._backoffs.pop(key, None)
            return
        last = self._backoffs.get(key)
        delay_s = _FIRST_BACKOFF_S if last is None else min(_MAX_BACKOFF_S, 2 * last.delay_s)
        self._backoffs[key] = _Backoff(moment.boot + delay_s, delay_s)

    def parked(
        self, decision: Decision, uid: int, shares: dict[int, int], moment: MomentLike, by_pid: int = 0
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
        boot = reading.moment.boot
        present: dict[str, Subject] = {}
        for subject in self._subjects(policy, reading):
            present[subject.key] = subject
            self._trackers.setdefault((policy.name, subject.key), _Tracker(boot)).readings += 1
        mine = {key: each for (name, key), each in self._trackers.items() if name == policy.name}
        for key in mine.keys() - present.keys():
            del self._trackers[policy.name, key]
        due = sorted(
            (tracker.since, key)
            for key, tracker in mine.items()
            if key in present
            and boot - tracker.since >= policy.after_s
            and tracker.readings >= policy.readings
        )
        ready = [present[key] for _, key in due if not self._is_put_off(policy.name, key, reading.moment)]
        if policy.do == "park-idle":
            ready = list(to_park(ready, reading.ledger, reading.waiters))
        for subject in ready:
            yield from self._of_subject(policy, subject, mine[subject.key], reading.moment)

    def _subjects(self, policy: Policy, reading: PolicyReading) -> tuple[Subject, ...]:
        seen = self._seen
        if seen is None or seen[0] is not reading.ledger or seen[1] != reading.allowed:
            seen = self._seen = (reading.ledger, reading.allowed, {})
        if policy not in seen[2]:
            seen[2][policy] = tuple(subjects(policy, reading.ledger, reading.allowed, self._names))
        return seen[2][policy]

    def _is_put_off(self, policy: str, key: str, moment: MomentLike) -> bool:
        backoff = self._backoffs.get((policy, key))
        return key in self.memory.unkillable or (backoff is not None and moment.boot < backoff.until)

    def _of_subject(
        self, policy: Policy, subject: Subject, tracker: _Tracker, moment: MomentLike
    ) -> Iterator[Decision]:
        do = _DO[policy.do]
        if do in _MESSAGES and self._was_told(policy, subject, moment):
            return
        verdict: Verdict = "act" if policy.mode == "act" else "dry-run"
        held_s = moment.boot - tracker.since
        reason = f"{subject.what}, for {duration(held_s)}"
        if verdict == "act" and (cap := self._cap(policy, do in _MESSAGES, moment)):
            verdict, reason = "capped", f"{reason}; {cap}"
        pause_s = HOUR_S if verdict == "capped" else _REMIND_S
        if verdict != "act" and moment.boot - tracker.decided.get(verdict, -pause_s) < pause_s:
            return
        tracker.decided[verdict] = moment.boot
        made = self._decision(policy, do, subject, moment, reason)
        yield replace(made, verdict=verdict, held_s=round(held_s, 3), readings=tracker.readings)

    # ---- caps ----

    def _cap(self, policy: Policy, is_message: bool, moment: MomentLike) -> str:
        """Why *policy* may not act now; nothing where it may. Messages and actions are counted apart."""
        recent = [
            act for act in self.memory.acts if act.is_message == is_message and age_s(act, moment) < HOUR_S
        ]
        if sum(act.policy == policy.name for act in recent) >= policy.most_per_hour:
            return f"the policy's cap of {policy.most_per_hour} in an hour is reached"
        if len(recent) >= self.most_per_hour:
            return f"the cap of {self.most_per_hour} in an hour for all policies is reached"
        return ""

    def _was_told(self, policy: Policy, subject: Subject, moment: MomentLike) -> bool:
        return any(
            (act.policy, act.subject) == (policy.name, subject.key)
            and age_s(act, moment) < policy.again_after_s
            for act in self.memory.acts
        )

    def _forget_old(self, moment: MomentLike) -> None:
        kept_s = max((HOUR_S, *(policy.again_after_s for policy in self.policies)))
        self.memory.acts = [act for act in self.memory.acts if age_s(act, moment) < kept_s]
        # A pid and its start time mean nothing after another boot.
        self.memory.parked = [each for each in self.memory.parked if each.boot_id == moment.boot_id]
        self.memory.allowed = [each for each in self.memory.allowed if each.boot_id == moment.boot_id]

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
                acting = Policy(name=each.policy, do="park-idle", mode="act")
                reason = f"{subject.what}: nobody uses its room any more, and there is room for it"
                made = self._decision(acting, "unpark", subject, moment, reason)
                yield replace(made, targets=(each.target,))

    def _may_come_back(self, each: ParkedByPolicy, reading: PolicyReading) -> bool:
        """Nobody waits for its room, or somebody who does not use it has had it for long enough."""
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
        self, policy: Policy, do: DecidedAction, subject: Subject, moment: MomentLike, reason: str
    ) -> Decision:
        self._number += 1
        return Decision(
            number=self._number,
            at=rfc3339(moment.wall),
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
            grace_s=policy.grace_s,
        )


def age_s(act: RememberedAct, moment: MomentLike) -> float:
    """How long ago *act* was. Across a boot only the wall clock tells; one that went back makes it recent."""
    if act.boot_id == moment.boot_id:
        return max(0.0, moment.boot - act.boot)
    return max(0.0, moment.wall - act.wall)


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
