"""Ends what a job left on its GPUs, within a deadline, and reads the GPUs again until that is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from vram.diagnosis.engine import diagnose
from vram.errors import NoSuchProcess, Refused, TimedOut, VramError, WorldChanged
from vram.host.ports import Host
from vram.model.ledger import Ledger
from vram.model.plan import Outcome, Plan, PlanRequest, Step, Target
from vram.model.slurm import EndedProcess, JobClaim, JobHolder, SlurmJob, Whose
from vram.reading import read_ledger
from vram.reclaim import executor
from vram.reclaim.actions import TIMEOUT_S
from vram.reclaim.device_state import used_in
from vram.reclaim.identity import identify
from vram.reclaim.plan_file import with_digest
from vram.reclaim.planner import plan
from vram.slurm.ownership import Inventory, Judged, LeftProcesses, Node, is_of, take

READ_S = 5.0
MAX_ROUNDS = 6
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

    def read(self, host: Host) -> Ledger:
        """Read the GPUs and the open files of all processes."""
        return read_ledger(host, self.read_s())


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


Others = dict[int, tuple[Step, JobClaim]]
"""Processes that are ended although no memory is known to be theirs, by pid."""

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
        on_ended: Callable[[EndedProcess], None],
    ) -> None:
        self._host, self._job, self._whose, self._node = host, job, whose, node
        self._grace_s, self._deadline, self._on_ended = grace_s, deadline, on_ended
        self.result = Ending([], {}, set())
        self._at_first: frozenset[ProcessKey] | None = None
        self._respawns = False
        self._rounds_of_all = 0

    def run(self, ledger: Ledger, gpus: tuple[int, ...]) -> Inventory:
        """End them, round after round while new ones appear; return what is held after the last reading.

        At first those that hold memory and, where memory has no visible holder, those that have the GPUs'
        files open. Where others hold it after that, all processes that are surely of the same owner.
        """
        inventory = self._take(ledger, gpus)
        for _ in range(MAX_ROUNDS):
            targets = [each for each in inventory.processes.values() if self._is_target(each, inventory)]
            if self._at_first is None:
                self._at_first = frozenset(map(_key, targets))
            elif not self._at_first.issuperset(map(_key, targets)):
                self._respawns = True
            others = self._others(ledger, inventory)
            if not (targets or others) or self._deadline.left_s() < _RESERVE_S:
                break
            self._end(ledger, gpus, targets, others)
            ledger, inventory = self._read_until_settled(gpus)
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
            return False  # it only has the GPU's files open; if it holds more later, that is read
        if beside := inventory.mps_client_beside(each):
            why = f"it is an MPS client, and so is pid {beside} of another user, which could fail with it"
            self._note_refusal(each, why)
            return False
        return True

    def _end(self, ledger: Ledger, gpus: tuple[int, ...], targets: list[Judged], others: Others) -> None:
        by_pid = {each.memory.pid: each for each in targets}
        made = self._plan(ledger, gpus, dict(by_pid))
        others = {pid: found for pid, found in others.items() if pid not in by_pid}
        steps = (*(step for step, _ in others.values()), *(made.steps if made else ()))
        if not steps:
            return
        # Who starts holders comes before them.
        made = with_digest(ledger.taken_at, self._host.limits.boot_id(), None, gpus, steps)
        claims = {pid: claimed for pid, (_, claimed) in others.items()}
        claims |= {pid: each.claim for pid, each in by_pid.items()}
        grace_s = max(0.0, min(self._grace_s, self._deadline.left_s() / 3))
        try:
            receipt = executor.execute(
                self._host,
                made,
                timeout_s={**TIMEOUT_S, "kill": grace_s},
                on_outcome=lambda outcome: self._note(outcome, by_pid, claims),
                used_now=used_in(ledger, made.gpus),
                together=True,
                stop_first=self._rounds_of_all > 1,
            )
        except VramError as error:  # nothing was touched: the audit log cannot be written, say
            for each in targets:
                self._note_refusal(each, str(error))
            self.result.given_up.update(_target_key(step.target) for step in steps if step.target)
            return
        returned = receipt.returned_bytes
        if returned is None or self.result.freed_bytes is None:
            self.result.freed_bytes = None
        else:
            self.result.freed_bytes += max(0, returned)

    def _plan(self, ledger: Ledger, gpus: tuple[int, ...], targets: dict[int, Judged]) -> Plan | None:
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
                    # A process changed in this very moment: the next round reads it all again.
                    return None
                continue
            node = self._node()
            planned = [step.target.process.pid for step in draft.plan.steps if step.target]
            changed = [pid for pid in planned if not is_of(self._host, pid, self._whose, self._job, node)]
            if not changed:
                return draft.plan
            for pid in changed:
                self._note_refusal(targets.pop(pid), "it is no longer what it was", for_good=False)
        return None

    def _drop_refused(self, targets: dict[int, Judged]) -> bool:
        """Take out of *targets* who must not be touched, or is gone; return whether there was any."""
        dropped = False
        for pid in tuple(targets):
            try:
                identify(self._host, pid)
            except VramError as error:
                self._note_refusal(targets.pop(pid), str(error), for_good=not isinstance(error, _PASSING))
                dropped = True
        return dropped

    def _others(self, ledger: Ledger, inventory: Inventory) -> Others:
        """Who is ended although the ledger names nothing that it holds."""
        if self._respawns:
            self._rounds_of_all += 1
            return self._left_running(inventory.gpus)
        if any(piece.pid is None for piece in inventory.held):
            return self._with_files_open(ledger, inventory.gpus)
        return {}

    def _with_files_open(self, ledger: Ledger, gpus: tuple[int, ...]) -> Others:
        """Who has the GPUs' device files open: where memory has no known holder, one of these may hold it.

        A process that executed another program, or was handed a descriptor, keeps a dead process's memory
        without having it mapped.
        """
        minors = {gpu.facts.minor if gpu.facts else None for gpu in ledger.gpus if gpu.index in gpus}
        found = self._host.files.scan(self._deadline.read_s()).holders
        pids = [
            each.process.pid
            for each in found
            if any(None in minors or file.kind != "gpu" or file.minor in minors for file in each.files)
        ]
        why = "it has the GPU's device files open, and memory is held there by no visible process"
        return self._surely_left(gpus, pids, why)

    def _left_running(self, gpus: tuple[int, ...]) -> Others:
        """All processes surely of the same owner: where new holders came after the first round, one of these
        starts them, whether they are its children or not."""
        why = "new processes of the same job have appeared on the GPU since the job ended"
        return self._surely_left(gpus, self._host.proc.descendants(0), why)

    def _surely_left(self, gpus: tuple[int, ...], pids: Iterable[int], reason: str) -> Others:
        found: Others = {}
        left = LeftProcesses(self._host, self._whose, self._job, self._node())
        for pid in pids:
            if left.claim(pid) is None:
                continue
            try:
                target = identify(self._host, pid)
            except VramError:  # it is gone, or a part of the system
                continue
            # Judged again now that it is known who it is: were it another program by then, acting notices.
            claimed = LeftProcesses(self._host, self._whose, self._job, left.node).claim(pid)
            if claimed is not None and _target_key(target) not in self.result.given_up:
                found[pid] = _step(target, gpus, reason), claimed
        return found

    def _note_refusal(self, judged: Judged, why: str, *, for_good: bool = True) -> None:
        self.result.why_not[_key(judged)] = why
        if for_good:
            self.result.given_up.add(_key(judged))

    def _note(self, outcome: Outcome, by_pid: dict[int, Judged], claims: dict[int, JobClaim]) -> None:
        target = outcome.step.target
        if target is None:
            return
        judged = by_pid.get(target.process.pid)
        message = outcome.message or ""
        if outcome.status not in ("done", "not-needed"):
            if judged is not None:
                self._note_refusal(judged, message, for_good=outcome.status != "refused")
            elif outcome.status != "refused":
                self.result.given_up.add(_target_key(target))
        claimed = claims[target.process.pid]
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

    def _read_until_settled(self, gpus: tuple[int, ...]) -> tuple[Ledger, Inventory]:
        """Read again, and for a moment again and again: while memory is without a holder, or while none
        is held and a process of the same owner lives on, which may be about to start a new holder."""
        deadline = time.monotonic() + min(SETTLE_S, self._deadline.left_s() / 2)
        may_start = bool(self._left_running(gpus))
        while True:
            ledger = self._deadline.read(self._host)
            inventory = self._take(ledger, gpus)
            left = inventory.of(self._whose, "unknown")
            passing = any(_is_passing(each, inventory) for each in left)
            if not (passing or (may_start and not left)) or time.monotonic() > deadline:
                return ledger, inventory
            time.sleep(_PAUSE_S)


def _is_passing(piece: JobHolder, inventory: Inventory) -> bool:
    """Whether it may be gone in a moment: it has no holder any more, or its holder is exiting."""
    judged = inventory.processes.get(piece.pid or 0)
    return judged is None or judged.memory.holder.exiting


def _step(target: Target, gpus: tuple[int, ...], reason: str) -> Step:
    return Step(
        kind="kill",
        target=target,
        gpus=gpus,
        predicted_bytes=0,
        loses="all unsaved work",
        reversible=False,
        reason=reason,
    )


def _target_key(target: Target) -> ProcessKey:
    return target.process.pid, target.process.started_at


def _key(judged: Judged) -> ProcessKey:
    return judged.memory.pid, judged.memory.holder.started_at
