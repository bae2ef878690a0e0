"""Ends what a job left on its GPUs, within a deadline, and reads the GPUs again until that is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from vram.diagnosis.engine import diagnose
from vram.errors import NoSuchProcess, Refused, TimedOut, VramError, WorldChanged
from vram.host.ports import Host
from vram.ledger.build import build_ledger
from vram.model.ledger import Ledger
from vram.model.plan import Outcome, Plan, PlanRequest, Step
from vram.model.slurm import EndedProcess, JobHolder, SlurmJob, Whose
from vram.probes.survey import survey
from vram.reclaim import executor
from vram.reclaim.actions import TIMEOUT_S
from vram.reclaim.device_state import used_in
from vram.reclaim.identity import identify
from vram.reclaim.plan_file import with_digest
from vram.reclaim.planner import plan
from vram.slurm.inventory import Inventory, Judged, is_of, take
from vram.slurm.ownership import Node

READ_S = 5.0
MOST_ROUNDS = 6
# The driver may free memory a moment after its process has ended.
SETTLE_S = 2.0
_PAUSE_S = 0.1
# To read the GPUs once more, and to say so.
_RESERVE_S = 2.0
# It ended, executed another program, or began a moment ago: the next reading tells.
_PASSING = (NoSuchProcess, WorldChanged, TimedOut)


class Deadline:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def read_s(self) -> float:
        """How long one reading may take."""
        return max(0.5, min(READ_S, self.left_s() / 2))


ProcessKey = tuple[int, int | None]
"""A pid and the start time of its process."""


class Ending(Struct):
    """Who was ended so far, why others were not, and the bytes that were measured to be free again.

    ``given_up`` are not tried again; others may have changed in the very moment of acting.
    """

    ended: list[EndedProcess]
    why_not: dict[ProcessKey, str]
    given_up: set[ProcessKey]
    freed_bytes: int | None = 0


NewNode = Callable[[], Node]
"""Reads anew which jobs run here."""


class Ender:
    """Ends the processes on some GPUs that belong to one owner: the job, or jobs that ended before."""

    def __init__(
        self,
        host: Host,
        job: SlurmJob | None,
        whose: Whose,
        node: NewNode,
        *,
        grace_s: float,
        deadline: Deadline,
        on_ended: Callable[[EndedProcess], None] = lambda ended: None,
    ) -> None:
        self._host, self._job, self._whose, self._node = host, job, whose, node
        self._grace_s, self._deadline, self._on_ended = grace_s, deadline, on_ended
        self.result = Ending([], {}, set())
        self._at_first: frozenset[ProcessKey] | None = None

    def run(self, ledger: Ledger, gpus: tuple[int, ...]) -> Inventory:
        """End them, round after round while new ones appear; return what is held after the last reading."""
        inventory = self._take(ledger, gpus)
        for _ in range(MOST_ROUNDS):
            targets = [each for each in inventory.processes.values() if self._is_target(each, inventory)]
            if not targets or self._deadline.left_s() < _RESERVE_S:
                break
            if self._at_first is None:
                self._at_first = frozenset(map(_key, targets))
            self._end(ledger, gpus, targets)
            ledger, inventory = self._settled(gpus)
        return inventory

    def annotate(self, piece: JobHolder, inventory: Inventory) -> str:
        """Why a piece of memory is still held, as far as it was found out."""
        judged = inventory.processes.get(piece.pid or 0)
        said = self.result.why_not.get(_key(judged)) if judged else None
        return said or piece.note

    def _take(self, ledger: Ledger, gpus: tuple[int, ...]) -> Inventory:
        return take(self._host, ledger, gpus, self._job, self._node())

    def _is_target(self, each: Judged, inventory: Inventory) -> bool:
        if each.whose != self._whose or _key(each) in self.result.given_up:
            return False
        if not (each.memory.charged or each.memory.retained):
            return (
                False  # it only has the GPU's files open; if it holds more without the others, that is read
            )
        if beside := inventory.mps_client_beside(each):
            why = f"it is an MPS client, and so is pid {beside} of somebody else, which could fail with it"
            self._refused(each, why)
            return False
        return True

    def _end(self, ledger: Ledger, gpus: tuple[int, ...], targets: list[Judged]) -> None:
        made = self._planned(ledger, gpus, {each.memory.pid: each for each in targets})
        if made is None:
            return
        made = self._with_starters(made, targets)
        by_pid = {each.memory.pid: each for each in targets}
        grace_s = max(0.0, min(self._grace_s, self._deadline.left_s() / 3))
        try:
            receipt = executor.execute(
                self._host,
                made,
                timeout_s={**TIMEOUT_S, "kill": grace_s},
                on_outcome=lambda outcome: self._note(outcome, by_pid),
                used_now=used_in(ledger, made.gpus),
                together=True,
            )
        except VramError as error:  # nothing was touched: the audit log cannot be written, say
            for each in targets:
                self._refused(each, str(error))
            return
        returned = receipt.returned_bytes
        if returned is None or self.result.freed_bytes is None:
            self.result.freed_bytes = None
        else:
            self.result.freed_bytes += max(0, returned)

    def _planned(self, ledger: Ledger, gpus: tuple[int, ...], targets: dict[int, Judged]) -> Plan | None:
        """The plan that ends all *targets* that may be ended; None where none is left.

        A plan holds what each process was when it was made. Whose it is, is judged again after that: if
        it is another program by then, acting notices.
        """
        findings = diagnose(ledger)
        while targets:
            request = PlanRequest(gpus=gpus, pids=tuple(targets), only="kill", alone=True)
            try:
                draft = plan(self._host, ledger, findings, request)
            except Refused:
                if not self._drop_refused(targets):
                    # Somebody changed in this very moment: the next round reads it all again.
                    return None
                continue
            node = self._node()
            planned = [step.target.process.pid for step in draft.plan.steps if step.target]
            changed = [pid for pid in planned if not self._is_still(pid, node)]
            if not changed:
                return draft.plan
            for pid in changed:
                self._refused(targets.pop(pid), "it is no longer what it was", for_good=False)
        return None

    def _drop_refused(self, targets: dict[int, Judged]) -> bool:
        """Take out of *targets* who must not be touched, or is gone; return whether there was any."""
        dropped = False
        for pid in tuple(targets):
            try:
                identify(self._host, pid)
            except VramError as error:
                self._refused(targets.pop(pid), str(error), for_good=not isinstance(error, _PASSING))
                dropped = True
        return dropped

    def _with_starters(self, made: Plan, targets: list[Judged]) -> Plan:
        """*made* and, before it, the job's processes that start new ones on the GPU as often as they end.

        They are judged as the others are; that they hold no memory themselves helps nobody.
        """
        if self._at_first is None or all(_key(each) in self._at_first for each in targets):
            return made
        found: dict[int, Step] = {}
        for each in targets:
            if _key(each) not in self._at_first:
                found |= {_pid(step): step for step in self._starters(each, made.gpus, self._node())}
        steps = (*found.values(), *(step for step in made.steps if _pid(step) not in found))
        return with_digest(made.made_at, made.boot_id, None, made.gpus, steps) if found else made

    def _starters(self, child: Judged, gpus: tuple[int, ...], node: Node) -> list[Step]:
        """The ancestors of *child* that are the job's own, up to one that is root's; none below a login."""
        found: list[Step] = []
        parent = child.memory.holder.parent
        while parent is not None:
            try:
                target = identify(self._host, parent)
            except VramError:
                target = None
            facts = is_of(self._host, parent, self._whose, self._job, node)
            if target is None or facts is None:
                above = self._host.proc.facts(parent)
                # A shell of the user has its own reasons to start things, whatever its environment says.
                return found if above is not None and above[1].uid == 0 else []
            reason = f"it has started pid {child.memory.pid} on the GPU since the job ended"
            found.append(
                Step(
                    kind="kill",
                    target=target,
                    gpus=gpus,
                    predicted_bytes=0,
                    loses="all unsaved work",
                    reversible=False,
                    reason=reason,
                )
            )
            parent = facts.parent
        return []

    def _is_still(self, pid: int, node: Node) -> bool:
        return is_of(self._host, pid, self._whose, self._job, node) is not None

    def _refused(self, judged: Judged, why: str, *, for_good: bool = True) -> None:
        self.result.why_not[_key(judged)] = why
        if for_good:
            self.result.given_up.add(_key(judged))

    def _note(self, outcome: Outcome, by_pid: dict[int, Judged]) -> None:
        target = outcome.step.target
        if target is None:
            return
        judged = by_pid.get(target.process.pid)
        message = outcome.message or ""
        if judged is not None and outcome.status not in ("done", "not-needed"):
            self._refused(judged, message, for_good=outcome.status != "refused")
        claimed = judged.claim if judged else next(iter(by_pid.values())).claim
        ended = EndedProcess(
            pid=target.process.pid,
            user=target.user,
            command=target.command,
            left_by=claimed.job or "",
            by=claimed.by or "environment",
            status=outcome.status,
            message=message,
        )
        self.result.ended.append(ended)
        self._on_ended(ended)

    def _settled(self, gpus: tuple[int, ...]) -> tuple[Ledger, Inventory]:
        """Read again; where memory is still without a holder, once more in a moment."""
        deadline = time.monotonic() + min(SETTLE_S, self._deadline.left_s() / 2)
        while True:
            ledger = read(self._host, self._deadline)
            inventory = self._take(ledger, gpus)
            left = inventory.of(self._whose, "unknown")
            if not any(_is_passing(each, inventory) for each in left) or time.monotonic() > deadline:
                return ledger, inventory
            time.sleep(_PAUSE_S)


def read(host: Host, deadline: Deadline) -> Ledger:
    """Read the GPUs and everybody's files."""
    return build_ledger(survey(host, deadline_s=deadline.read_s()))


def _is_passing(piece: JobHolder, inventory: Inventory) -> bool:
    """Whether it may be gone in a moment: nobody holds it any more, or its holder is exiting."""
    judged = inventory.processes.get(piece.pid or 0)
    return judged is None or judged.memory.holder.exiting


def _pid(step: Step) -> int:
    return step.target.process.pid if step.target else 0


def _key(judged: Judged) -> ProcessKey:
    return judged.memory.pid, judged.memory.holder.started_at
