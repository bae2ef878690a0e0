"""Runs exactly the plan: revalidated as a whole, then every step logged, done, and the bytes read again."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from typing import Any

import msgspec

from vram.diagnosis.leftover import CODES
from vram.errors import (
    AuditUnavailable,
    NoSuchProcess,
    Refused,
    TargetDied,
    UsageError,
    VramError,
    WorldChanged,
)
from vram.host.ports import Host
from vram.interrupts import raise_if_interrupted
from vram.ledger.holds import find_holds
from vram.ledger.jobs import find_held_jobs, starters
from vram.ledger.processes import processes
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.plan import Outcome, OutcomeStatus, Plan, Receipt, Step, StepKind
from vram.reclaim import audit
from vram.reclaim.actions import GENTLE, TIMEOUT_S, Unkillable, action
from vram.reclaim.actions.reset import blockers
from vram.reclaim.candidates import ORPHAN, leftovers
from vram.reclaim.device_state import settled_bytes, used_bytes
from vram.reclaim.identity import open_verified

OnOutcome = Callable[[Outcome], None]
AT_ONCE = 32
"""So many are trimmed at the same time."""
_HINT = "make a new plan"
_WHOLE = "make a new plan, for all GPUs: a job is ended as a whole"
_STOPPED = "not tried: an earlier step did not go as planned"


def revalidate(
    plan: Plan, ledger: Ledger, findings: tuple[Finding, ...], parked: Collection[int] = ()
) -> None:
    """Raise WorldChanged where a target has released its memory, or holds no leftover any more.

    What the plan was made for must be true of *ledger*, read just now. Who is *parked* holds nothing on
    a GPU, and is still meant.
    """
    known = processes(ledger)
    start_again = {pid for held in find_held_jobs(ledger) for pid in starters(held)}
    named = {(code, pid) for each in leftovers(ledger, known) for pid in each.pids for code in CODES}
    named |= {(each.code, pid) for each in findings if each.code not in CODES for pid in each.pids}
    for step in plan.steps:
        if step.target is None:
            _require_unused(ledger, step)
            continue
        process = step.target.process
        holding = known.get(process.pid)
        # What starts a job's processes was planned without memory; who had some and has none is not meant.
        starts = process.pid in start_again and not step.predicted_bytes and step.finding in (None, ORPHAN)
        if holding is None and (process.pid in parked or starts):
            continue
        if holding is None or holding.holder.started_at != process.started_at:
            raise WorldChanged(f"pid {process.pid} no longer holds anything here", hint=_HINT)
        if step.finding is not None and (step.finding, process.pid) not in named:
            raise WorldChanged(f"{step.finding} no longer names pid {process.pid}", hint=_HINT)
    _require_whole_jobs(plan, findings)


def _require_whole_jobs(plan: Plan, findings: tuple[Finding, ...]) -> None:
    """An orphaned job is ended as one: who joined it since the plan was made would be left alone with it."""
    ended = {step.target.process.pid for step in plan.steps if step.target and step.finding == ORPHAN}
    for finding in findings:
        joined = set(finding.pids) - ended
        if finding.code == ORPHAN and joined and not ended.isdisjoint(finding.pids):
            raise WorldChanged(f"pid {min(joined)} belongs to the job, too", hint=_WHOLE)


def _require_unused(ledger: Ledger, step: Step) -> None:
    """Where a whole GPU is the target, no process may be on it."""
    for gpu in ledger.gpus:
        if gpu.index in step.gpus and blockers(ledger, gpu):
            raise WorldChanged(f"GPU {gpu.index} is in use again", hint=f"see `vram reset {gpu.index}`")


def check(host: Host, plan: Plan) -> None:
    """Refuse the whole plan, untouched, where one of its steps could not be begun now.

    The second and last check of a step; the first was made with the plan. Acting itself compares the
    target once more, through its pidfd.
    """
    for at, step in enumerate(plan.steps):
        try:
            if step.target is not None:
                open_verified(host, step.target).close()
            action(step.kind).check(host, step, plan.steps[:at])
        except NoSuchProcess as error:
            raise WorldChanged(f"the plan is out of date: {error}", hint=_HINT) from error


def execute(
    host: Host,
    plan: Plan,
    *,
    timeout_s: Mapping[StepKind, float] = TIMEOUT_S,
    on_outcome: OnOutcome | None = None,
    used_now: int | None = None,
    goal_now: int | None = None,
    together: bool = False,
    stop_first: bool = False,
    whole: bool = False,
) -> Receipt:
    """Do the steps in order until the goal is met; return asked, promised and returned.

    Trims that follow one another run at once, each within its time: one that does not answer delays no other.
    *used_now* is what the plan's GPUs had in use a moment ago, where that was read, and *goal_now* what was
    missing then, where a size was to be available: others come and go after a plan was made. *together* ends
    all processes of a plan that has only kills and no goal at once, each for itself: one that cannot be
    ended does not keep the others; *stop_first* is for those that start each other again, *whole* for those
    of which all are ended or none, see ``kill.end_together``. Raises only while nothing was touched: from
    then on, what goes wrong is an outcome.
    """
    if together and (plan.goal_bytes is not None or any(step.kind != "kill" for step in plan.steps)):
        raise UsageError("only processes can be ended together, and without a goal")
    raise_if_interrupted()
    if not together:
        check(host, plan)
    goal = plan.goal_bytes if goal_now is None else goal_now
    run = _Run(host, plan, timeout_s, used_now, goal)
    outcomes = []
    for outcome in run.outcomes_together(stop_first, whole) if together else run.outcomes():
        outcomes.append(outcome)
        if on_outcome:
            on_outcome(outcome)
    return Receipt(
        digest=plan.digest,
        goal_bytes=goal,
        available_bytes=plan.available_bytes,
        promised_bytes=promised(plan.steps),
        returned_bytes=run.returned(),
        outcomes=tuple(outcomes),
    )


def promised(steps: tuple[Step, ...]) -> int | None:
    """The sum of what is predicted; None where nothing is."""
    known = [step.predicted_bytes for step in steps if step.predicted_bytes is not None]
    return sum(known) if known or not steps else None


class _Run:
    """One run of a plan, and the bytes in use at its start and now."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
        timeout_s: Mapping[StepKind, float],
        used_now: int | None,
        goal: int | None,
    ) -> None:
        self._host = host
        self._plan = plan
        self._goal = goal
        self._timeout_s = timeout_s
        self._first = self._last = used_bytes(host, plan.gpus) if used_now is None else used_now
        self._stop: str | None = None
        self._touched = False
        self._promised_so_far = 0

    def returned(self) -> int | None:
        if self._first is None or self._last is None:
            return None
        return self._first - self._last

    def outcomes(self) -> Iterator[Outcome]:
        left = self._plan.steps
        while left:
            trims = tuple(takewhile(lambda step: step.kind == "trim", left))
            if skipped := self._skip_reason(left):
                done = [self._not_run(left[0], *skipped)]
            elif len(trims) > 1:
                done = self._trim_at_once(trims)
            else:
                done = [self._do(left[0])]
            yield from done
            left = left[len(done) :]

    def _trim_at_once(self, steps: tuple[Step, ...]) -> list[Outcome]:
        """What came back is measured for all of them together, and stands in the last that is done."""
        began, before = self._host.clock.monotonic(), self._last
        try:
            tokens = audit.log_intents([self._record(step, used_before=before) for step in steps])
        except AuditUnavailable as error:
            return [self._not_logged(step, error) for step in steps]
        with audit.failures_logged(*tokens):
            pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vram-trim")
            try:
                results = list(pool.map(self._trim, steps))
            finally:  # who has not been visited by then is not visited any more
                pool.shutdown(cancel_futures=True)
        self._touched = True
        done = [step for step, (status, _, _) in zip(steps, results, strict=True) if status == "done"]
        self._promised_so_far += sum(step.predicted_bytes or 0 for step in done)
        self._last = settled_bytes(
            self._host, self._plan.gpus, before, promised(tuple(done)) if done else None
        )
        whole = {"used_before": before, "used_after": self._last}
        outcomes = [
            Outcome(
                step=step,
                status=status,
                took_s=took_s - began,
                message=message,
                **(whole if done and step is done[-1] else {"used_before": None, "used_after": None}),
            )
            for step, (status, message, took_s) in zip(steps, results, strict=True)
        ]
        try:
            pairs = zip(tokens, outcomes, strict=True)
            audit.log_outcomes({token: _log_fields(outcome) for token, outcome in pairs})
        except AuditUnavailable as error:
            self._stop = f"not tried: {error}"
        return outcomes

    def _trim(self, step: Step) -> tuple[OutcomeStatus, str, float]:
        """How one of many went, and when it was over."""
        try:
            message = action("trim").apply(self._host, step, self._timeout_s["trim"])
        except VramError as error:
            status, message = self._judge(error)
        else:
            status, message = self._verify(step, message)
        return status, message, self._host.clock.monotonic()

    def outcomes_together(self, stop_first: bool, as_one: bool) -> Iterator[Outcome]:
        """All at once, every intent logged before the first signal is sent."""
        from vram.reclaim.actions.kill import end_together

        began, before = self._host.clock.monotonic(), self._last
        steps = self._plan.steps
        tokens = audit.log_intents([self._record(step, used_before=before) for step in steps])
        with audit.failures_logged(*tokens):
            ended = end_together(
                self._host, steps, self._timeout_s["kill"], stop_first=stop_first, whole=as_one
            )
        results = [self._judge(each) for each in ended]
        done = tuple(step for step, (status, _) in zip(steps, results, strict=True) if status == "done")
        self._last = settled_bytes(self._host, self._plan.gpus, before, promised(done) if done else None)
        took_s = self._host.clock.monotonic() - began
        # What came back is measured for all of them together, and stands in the last that is done.
        whole = done[-1] if done else None
        outcomes = [
            Outcome(
                step=step,
                status=status,
                used_before=before if step is whole else None,
                used_after=self._last if step is whole else None,
                took_s=took_s,
                message=message,
            )
            for step, (status, message) in zip(steps, results, strict=True)
        ]
        with suppress(AuditUnavailable):  # it is done, and nothing further is
            pairs = zip(tokens, outcomes, strict=True)
            audit.log_outcomes({token: _log_fields(outcome) for token, outcome in pairs})
        yield from outcomes

    def _judge(self, result: str | VramError) -> tuple[OutcomeStatus, str]:
        if isinstance(result, str):
            return "done", result
        if isinstance(result, NoSuchProcess):
            return "not-needed", str(result)
        if isinstance(result, Unkillable):
            return "unkillable", str(result)
        if isinstance(result, TargetDied):
            self._stop = _STOPPED
        return "refused" if isinstance(result, Refused) else "failed", str(result)

    def _skip_reason(self, left: tuple[Step, ...]) -> tuple[OutcomeStatus, str] | None:
        """Why the next step is not taken, if it is not."""
        if self._stop is not None:
            return "refused", self._stop
        goal, returned = self._goal, self.returned()
        if goal is None:
            return None
        if returned is None:
            # The device no longer answers: then what was promised and done must do.
            returned = self._promised_so_far
        if returned >= goal:
            return "not-needed", "the goal is met"
        known = [step.predicted_bytes for step in left if step.predicted_bytes is not None]
        if len(known) == len(left) and returned + sum(known) < goal and left[0].kind not in GENTLE:
            # Harm that cannot lead to what was asked for is not done.
            return "refused", "skipped: the rest of the plan could no longer reach the goal"
        return None

    def _not_run(self, step: Step, status: OutcomeStatus, message: str) -> Outcome:
        return self._outcome(step, status, self._last, 0.0, message)

    def _do(self, step: Step) -> Outcome:
        began, before = self._host.clock.monotonic(), self._last
        try:
            token = audit.log_intent(self._record(step, used_before=before))
        except AuditUnavailable as error:
            return self._not_logged(step, error)
        with audit.failures_logged(token):
            status, message = self._act(step)
        self._touched = self._touched or status in ("done", "failed", "unkillable")
        if status == "done":
            self._promised_so_far += step.predicted_bytes or 0
        self._last = settled_bytes(self._host, self._plan.gpus, before, self._expected_bytes(step, status))
        outcome = self._outcome(step, status, before, self._host.clock.monotonic() - began, message)
        self._write(token, outcome)
        return outcome

    def _not_logged(self, step: Step, error: AuditUnavailable) -> Outcome:
        if not self._touched:
            raise error
        self._stop = f"not tried: {error}"
        return self._not_run(step, "refused", str(error))

    def _act(self, step: Step) -> tuple[OutcomeStatus, str]:
        try:
            message = action(step.kind).apply(self._host, step, self._timeout_s[step.kind])
        except NoSuchProcess as error:
            return "not-needed", str(error)
        except Unkillable as error:
            self._stop = _STOPPED
            return "unkillable", str(error)
        except VramError as error:
            return self._not_done(step, error)
        return self._verify(step, message)

    def _verify(self, step: Step, message: str) -> tuple[OutcomeStatus, str]:
        """What came of a step that says that it was done."""
        try:
            is_as_promised = action(step.kind).verify(self._host, step)
        except NoSuchProcess:
            is_as_promised = True  # it has ended by itself since
        except TargetDied as error:
            return self._judge(error)
        except VramError:
            is_as_promised = False
        return ("done", message) if is_as_promised else self._unverified(message)

    def _not_done(self, step: Step, error: VramError) -> tuple[OutcomeStatus, str]:
        # A release, a trim or a park that failed leaves its target as it was, and the next one may succeed.
        # A kill is different: others may hold the same bytes, and would die for nothing.
        if isinstance(error, WorldChanged | TargetDied) or step.kind in ("kill", "reset"):
            if isinstance(error, Refused) and not self._touched:
                raise error
            self._stop = _STOPPED
        return "refused" if isinstance(error, Refused) else "failed", str(error)

    def _unverified(self, message: str) -> tuple[OutcomeStatus, str]:
        self._stop = _STOPPED
        return "failed", f"{message}; but afterwards the target is not as promised"

    def _expected_bytes(self, step: Step, status: OutcomeStatus) -> int | None:
        if status == "done" and step.kind == "kill" and step.predicted_bytes is None:
            return 1  # how much is not known: any byte is a sign that it was freed
        return step.predicted_bytes if status in ("done", "not-needed") else None

    def _write(self, token: str, outcome: Outcome) -> None:
        try:
            audit.log_outcome(token, _log_fields(outcome))
        except AuditUnavailable as error:
            self._stop = f"not tried: {error}"

    def _record(self, step: Step, **more: Any) -> dict[str, Any]:
        return {"digest": self._plan.digest, "step": msgspec.to_builtins(step), **more}

    def _outcome(
        self, step: Step, status: OutcomeStatus, before: int | None, took_s: float, message: str
    ) -> Outcome:
        return Outcome(
            step=step,
            status=status,
            used_before=before,
            used_after=self._last,
            took_s=took_s,
            message=message,
        )


def _log_fields(outcome: Outcome) -> dict[str, Any]:
    """What the audit log says of an outcome."""
    return {
        "status": outcome.status,
        "message": outcome.message,
        "used_before": outcome.used_before,
        "used_after": outcome.used_after,
        "took_s": round(outcome.took_s, 6),
    }


# ---- some leftovers are ended only when they are seen twice, seconds apart ----
#
# A daemon that is just making its context has the device's files open, no charge yet, and no parent: as a
# process has that was left behind. The driver's thread in it tells them apart (ledger/file_holders); where
# a driver starts none, time does. One that is of the dead owner's session, group or children is not taken
# for such.


SECOND_LOOK_S = 3.0
_CLOCKS_STEP_S = 1.0  # times are written in whole seconds


def second_look_s(plan: Plan, ledger: Ledger, now: str) -> float:
    """How long to wait before the machine is read once more; the reading for the plan was the first look."""
    ended = {step.target.process.pid for step in plan.steps if step.target and step.finding is not None}
    adopted = any(
        entry.proof == "adopted" and any(holder.pid in ended for holder in entry.holders)
        for hold in find_holds(ledger, empty=True)
        for entry in hold.entries
    )
    return min(SECOND_LOOK_S, max(0.0, SECOND_LOOK_S - _age_s(plan.made_at, now))) if adopted else 0.0


def _age_s(made_at: str, now: str) -> float:
    """How old the plan is at least; a time that cannot be read says nothing of that."""
    try:
        made, read = (calendar.timegm(time.strptime(each, "%Y-%m-%dT%H:%M:%SZ")) for each in (made_at, now))
    except ValueError:
        return 0.0
    return read - made - _CLOCKS_STEP_S
