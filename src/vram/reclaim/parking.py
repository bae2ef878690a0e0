"""Moves processes between GPU and host memory: logged first, undone where it fails.

The state of a process is always asked from the driver; the journal only says whom to ask about, and a
process that is not in it is found by asking the driver too.

A parked process is stopped, because a program that runs while its memory is away may die of an ordinary call.
Several are parked as one: all of them, or none.

There is one way of cleaning up. Whether a move is interrupted by Ctrl-C, an error or our death,
the socket to the checkpoint worker is closed, and the worker brings back what was not to be kept parked.
What it cannot finish, because it was killed too, is found in the journal by the next vram.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from vram.errors import AuditUnavailable, CannotPark, NoSuchProcess, TimedOut, VramError
from vram.host.ports import CheckpointWorker, Host, OnRestored, ParkTarget, Watch
from vram.interrupts import raise_if_interrupted
from vram.model.parking import CheckpointAnswer, CheckpointState, GpuShare, Parked, Purpose, Unrecorded
from vram.model.plan import Target
from vram.reach.target_process import died
from vram.reclaim import audit, identity
from vram.reclaim.checkpoint_errors import NOT_KNOWN_TO_DRIVER, explain, not_parked
from vram.reclaim.journal import Journal, ProcessClaim
from vram.reclaim.preflight import read_driver, room_at_most
from vram.units import MIB

LOCK_TIMEOUT_S = 10.0
# One message to the worker carries 253 descriptors at most: two for each process.
MAX_TOGETHER = 126
PROMPT_S = 10.0
# For reading every process of the user's, and for asking the driver about those that use CUDA.
SEARCH_S = 5.0
# Of that, for one process: the driver answers in less than a millisecond, or hardly ever.
SILENCE_S = 1.0
# A checkpoint worker with no process to bring back ends at once, and frees its 3 MiB on the GPU.
LEAVE_S = 1.0
# What a context takes beside the bytes that the driver lists for it: 8.8 MiB on an H200.
ROOM_MARGIN = 64 * MIB
# Measured on an H200: 1.9 GiB/s there, 4.8 GiB/s back. A tenth of that is a driver in trouble.
_SLOWEST_BYTES_PER_S = 192 * MIB

Done = Literal["parked", "brought back", "unlocked", "running", "failed", "busy", "no room", "unknown"]


class Moved(NamedTuple):
    """A process that was moved, and how long that took; ``driver_s`` of it in the driver's calls."""

    entry: Parked
    took_s: float
    driver_s: float


class _Member(NamedTuple):
    """One of the processes that are parked together."""

    entry: Parked
    process: identity.VerifiedProcess
    claim: ProcessClaim

    def order(self) -> ParkTarget:
        return ParkTarget(self.process.handle, self.claim, _with_margin(self.entry.shares))


class Recovered(NamedTuple):
    """A process that a dead vram left locked or parked, and what was done about it."""

    entry: Parked
    done: Done
    detail: str | None = None
    """What the driver said, where that is more than *done* says."""


class Unjournaled(NamedTuple):
    """Processes that the driver reports as parked or locked, and that have no journal entry."""

    processes: tuple[Unrecorded, ...]
    complete: bool
    """Whether there was time to ask about all of them."""
    silent: tuple[int, ...] = ()
    """Pids about which the driver did not answer."""
    unknown_state: str | None = None
    """What the driver said of a process in a state that this version does not know."""


class Parking:
    """Parks and unparks processes. Use it with ``with``: leaving it brings back whatever was parked for
    a borrow and is not yet back."""

    def __init__(self, host: Host, watch: Watch | None = None) -> None:
        self._host = host
        self._watch = watch
        self._worker: CheckpointWorker | None = None
        self._loans: dict[int, tuple[Parked, ProcessClaim]] = {}
        self.journal = Journal(host)

    def __enter__(self) -> Parking:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def worker(self) -> CheckpointWorker:
        if self._worker is None:
            self._worker = self._host.checkpoint.open()
        return self._worker

    def park(
        self,
        target: Target,
        shares: Sequence[GpuShare],
        *,
        purpose: Purpose = "park",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        deadline_s: float | None = None,
    ) -> Moved:
        """As :meth:`park_together`, for one process."""
        (moved,) = self.park_together(
            [(target, shares)], purpose=purpose, lock_timeout_s=lock_timeout_s, deadline_s=deadline_s
        )
        return moved

    def park_together(
        self,
        wanted: Sequence[tuple[Target, Sequence[GpuShare]]],
        *,
        purpose: Purpose = "park",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        deadline_s: float | None = None,
    ) -> list[Moved]:
        """Move the GPU memory of all these processes into their host memory, and stop them.

        For a borrow, until this object is closed. Raises why one of them stays on the GPU; then all continue
        to run, unless the message says more.
        """
        if len(wanted) > MAX_TOGETHER:
            raise CannotPark(f"at most {MAX_TOGETHER} processes can be parked at once", hint="park fewer")
        raise_if_interrupted()
        began = self._host.clock.monotonic()
        with ExitStack() as opened:
            members = [self._member(opened, target, shares, purpose) for target, shares in wanted]
            with self._all_audited(members) as outcomes:
                answers = self._move_to_host(members, lock_timeout_s, deadline_s)
                for outcome, answer in zip(outcomes, answers, strict=True):
                    outcome.update(_log_fields(answer))
                self._require_parked(members, answers)
            self._keep_parked(members)
        took_s = self._host.clock.monotonic() - began
        return [
            Moved(each.entry, took_s, answer.took_s) for each, answer in zip(members, answers, strict=True)
        ]

    def _member(
        self, opened: ExitStack, target: Target, shares: Sequence[GpuShare], purpose: Purpose
    ) -> _Member:
        entry = self._entry(target, shares, purpose)
        process = opened.enter_context(identity.open_verified(self._host, target))
        claim = self._claim_running(entry)
        opened.callback(lambda: None if entry.target.process.pid in self._loans else claim.close())
        return _Member(entry, process, claim)

    def _claim_running(self, entry: Parked) -> ProcessClaim:
        """Take the claim, and ask the driver first: another program may have locked or parked it."""
        pid = entry.target.process.pid
        claim = self.journal.claim(pid)
        try:
            answer = self._ask_state(pid)
            if answer.status != "ok" or answer.state != "running":
                raise explain(answer, entry, "park")
        except BaseException:
            claim.close()
            raise
        return claim

    def _ask_state(self, pid: int) -> CheckpointAnswer:
        answer = self.worker.state(pid, PROMPT_S)
        if answer.status == "timeout":
            raise TimedOut(f"pid {pid} was not touched: {answer.message}", hint="see `vram why`")
        return answer

    def require_not_parked(self, pid: int) -> None:
        """Raise where the driver says that *pid* is parked already; a journal entry does not count."""
        with self.journal.claim(pid):
            answer = self._ask_state(pid)
            if answer.state == "parked":
                raise CannotPark(f"pid {pid} is already parked", hint=f"resume it with `vram unpark {pid}`")
            entry = self.journal.find(pid)
            if answer.state == "running" and entry is not None:
                self.journal.remove(entry)

    def _move_to_host(
        self, members: Sequence[_Member], lock_timeout_s: float, deadline_s: float | None
    ) -> tuple[CheckpointAnswer, ...]:
        nbytes = sum(each.entry.nbytes for each in members)
        try:
            for each in members:
                self.journal.write(each.entry)
            for each in members:
                each.process.recheck()
            return self.worker.park(
                [each.order() for each in members],
                lock_timeout_s=lock_timeout_s,
                deadline_s=(deadline_s or patience_s(nbytes)) + lock_timeout_s,
                watch=self._watch,
            )
        except BaseException:  # above all Ctrl-C
            self._undo(members)
            raise

    def _require_parked(self, members: Sequence[_Member], answers: Sequence[CheckpointAnswer]) -> None:
        """Raise why they are not parked; one of which it is not certain that it runs is brought back."""
        pairs = list(zip(members, answers, strict=True))
        refused = next(((each, answer) for each, answer in pairs if answer.status != "ok"), None)
        if refused is None:
            return
        if refused[1].status == "timeout":
            self._hang_up(0.0)  # the worker waits for the driver and then undoes it, without us
        else:
            unsure = [each for each, answer in pairs if not _runs(answer)]
            for each, answer in pairs:
                if _runs(answer):
                    self.journal.remove(each.entry)
            if unsure:
                self._undo(unsure)
        if refused[1].status == "ended":
            raise died(refused[0].entry.target.process.pid)
        error = explain(refused[1], refused[0].entry, "park", self._host.limits.profiler)
        if len(members) == 1:
            raise error
        raise type(error)(f"{error}; none of the {len(members)} processes was parked", hint=error.hint)

    def _undo(self, members: Sequence[_Member]) -> None:
        """Close the socket: the worker brings them back. A second Ctrl-C ends only the wait."""
        self._hang_up(patience_s(sum(each.entry.nbytes for each in members)))
        for each in members:
            with suppress(VramError):
                self._undo_leftover(replace(each.entry, purpose="borrow"), each.claim)

    def _keep_parked(self, members: Sequence[_Member]) -> None:
        pids = [each.entry.target.process.pid for each in members]
        if members[0].entry.purpose == "borrow":
            self._loans |= {pid: (each.entry, each.claim) for pid, each in zip(pids, members, strict=True)}
        else:
            self.worker.keep_parked(pids)

    def unpark(
        self,
        entry: Parked,
        *,
        room_patience_s: float = 0.0,
        deadline_s: float | None = None,
        pairs: tuple[tuple[str, str], ...] = (),
        on_restored: OnRestored | None = None,
    ) -> Moved:
        """Bring a process back to its GPU, or, by *pairs*, to another. Raises why it stays parked.

        A GPU that is full is waited for up to *room_patience_s*.
        """
        pid = entry.target.process.pid
        began = self._host.clock.monotonic()
        _, claim = self._loans.pop(pid, (entry, None))
        with claim or self._claim_parked(entry) as claim:
            answer = self._bring_back("unpark", entry, claim, room_patience_s, deadline_s, pairs, on_restored)
        if answer.status != "ok":
            raise explain(answer, entry, "unpark")
        took_s = self._host.clock.monotonic() - began
        return Moved(self._measure(entry) if isinstance(entry, Unrecorded) else entry, took_s, answer.took_s)

    def _claim_parked(self, entry: Parked) -> ProcessClaim:
        """Take the claim. The vram that had it before may have brought the process back."""
        pid = entry.target.process.pid
        claim = self.journal.claim(pid)
        try:
            answer = self._ask_state(pid)
            if answer.state == "running":
                self.journal.remove(entry)
                raise not_parked(answer, pid)
        except BaseException:
            claim.close()
            raise
        return claim

    def _measure(self, entry: Unrecorded) -> Unrecorded:
        """*entry* with what the process has on its GPUs now that it is back."""
        shares: tuple[GpuShare, ...] = ()
        with suppress(VramError):
            shares = read_driver(self._host).shares(entry.target.process.pid)
        return replace(entry, shares=shares)

    def entry_of(self, pid: int, *, anyway: bool = False) -> Parked:
        """What is needed to bring *pid* back: from the journal, or from the driver where there is no entry.

        Raises where the process is not parked. *anyway* leaves it to the driver whether there
        is room for one whose need is unknown.
        """
        entry = self.journal.find(pid)
        if entry is not None:
            return entry
        target = identity.identify(self._host, pid)
        answer = self._ask_state(pid)
        if answer.state is None or answer.state == "running":
            raise not_parked(answer, pid)
        shares = () if anyway or answer.state != "parked" else room_at_most(self._host, pid)
        return self._unrecorded(target, answer.state, shares)

    def entries_of(self, pids: Sequence[int], *, anyway: bool = False) -> list[Parked]:
        """As :meth:`entry_of`, for each of *pids*. Raises where one of them was parked where its number
        means it, and that is not here."""
        elsewhere = {entry.target.process.pid for entry in self.journal.other_namespaces()}
        for pid in pids:
            if pid in elsewhere and self.journal.find(pid) is None:
                raise CannotPark(
                    f"pid {pid} was parked in another PID namespace, where this number is valid",
                    hint=f"run `vram unpark {pid}` there",
                )
        return [self.entry_of(pid, anyway=anyway) for pid in pids]

    def find_unjournaled(self, known: Collection[int], deadline_s: float = SEARCH_S) -> Unjournaled:
        """Ask the driver about every process that uses CUDA, except *known*: a deleted or damaged entry must
        not hide a process that is paused."""
        deadline = self._host.clock.monotonic() + deadline_s
        seen = self._host.limits.cuda_processes(deadline_s)
        found: list[Unrecorded] = []
        silent: list[int] = []
        unknown_state: str | None = None
        for pid in sorted(set(seen.pids).difference(known, self._host.signals.self_and_ancestors())):
            if self._host.limits.read(pid).given_up:
                continue  # the driver answers by a thread in it, and vram does not park such a process
            left_s = deadline - self._host.clock.monotonic()
            if left_s <= 0:
                return Unjournaled(tuple(found), False, tuple(silent), unknown_state)
            answer = self.worker.state(pid, min(SILENCE_S, left_s))
            if answer.status in ("timeout", "died", "unavailable", "not-held"):
                silent.append(pid)
            if answer.status == "timeout":
                self._hang_up(0.0)  # a new worker asks about the others
            if answer.status == "unknown":
                unknown_state = f"pid {pid}: {answer.message}"
            if answer.state in (None, "running") or self.journal.find(pid):
                continue
            with suppress(VramError):  # it has ended meanwhile, or must not be touched
                found.append(self._unrecorded(identity.identify(self._host, pid), answer.state, ()))
        return Unjournaled(tuple(found), seen.complete, tuple(silent), unknown_state)

    def _bring_back(
        self,
        action: str,
        entry: Parked,
        claim: ProcessClaim,
        room_patience_s: float = 0.0,
        deadline_s: float | None = None,
        pairs: tuple[tuple[str, str], ...] = (),
        on_restored: OnRestored | None = None,
    ) -> CheckpointAnswer:
        with self._open_parked(entry) as process, self._audited(action, entry, claim, pairs) as outcome:
            deadline_s = (deadline_s or patience_s(entry.nbytes)) + room_patience_s
            for _ in range(2):
                answer = self.worker.unpark(
                    ParkTarget(process.handle, claim, _with_margin(entry.shares), pairs),
                    room_patience_s=room_patience_s,
                    deadline_s=deadline_s,
                    watch=self._watch,
                    on_restored=on_restored,
                )
                if answer.status != "died":
                    break
                self._hang_up(0.0)  # the worker was killed, not the process: a new one continues
            outcome.update(_log_fields(answer))
            if answer.status in ("ok", "ended"):
                self.journal.remove(entry)
        return answer

    def recover(self) -> tuple[Recovered, ...]:
        """Undo what a vram that died left behind: none stays locked, and what was parked for a borrow
        is brought back."""
        return tuple(self._recover_one(entry) for entry in self.journal.entries())

    def _recover_one(self, entry: Parked) -> Recovered:
        claim = self.journal.try_claim(entry.target.process.pid)
        if claim is None:
            return Recovered(entry, "busy")
        with claim:
            found = self._undo_leftover(entry, claim)
        if found.done == "unknown":
            self._hang_up(0.0)  # the driver may hang on this one: a new worker asks about the others
        return found

    def _undo_leftover(self, entry: Parked, claim: ProcessClaim) -> Recovered:
        answer = self.worker.state(entry.target.process.pid, PROMPT_S)
        if answer.state == "running" or (answer.status == "refused" and answer.code in NOT_KNOWN_TO_DRIVER):
            self.journal.remove(entry)
            return Recovered(entry, "running")
        if answer.state == "parked" and entry.purpose != "borrow":
            return Recovered(entry, "parked")
        if answer.state in ("locked", "parked"):
            done: Done = "unlocked" if answer.state == "locked" else "brought back"
            return Recovered(entry, self._return(entry, claim, done))
        return Recovered(entry, "failed" if answer.state == "failed" else "unknown", answer.message)

    def _return(self, entry: Parked, claim: ProcessClaim, done: Done) -> Done:
        answer = self._bring_back("recover", entry, claim)
        results: dict[str, Done] = {"ok": done, "short": "no room", "ended": "running"}
        return results.get(answer.status, "unknown")

    def end_worker(self) -> None:
        """End a worker that was started early and is not needed: it would take GPU memory."""
        assert not self._loans, "they would not be brought back"
        self.worker.hang_up(LEAVE_S)
        self._worker = None

    def close(self) -> None:
        """Close the socket, and wait for the worker to bring back who was parked for a borrow."""
        loans, self._loans = self._loans, {}
        owed = sum(entry.nbytes for entry, _ in loans.values())
        self._hang_up(patience_s(owed) if loans else LEAVE_S)
        for entry, claim in loans.values():
            with claim, suppress(VramError):
                self._undo_leftover(entry, claim)
        self._hang_up(LEAVE_S)

    def _hang_up(self, wait_s: float) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.hang_up(wait_s)

    def _open_parked(self, entry: Parked) -> identity.VerifiedProcess:
        """The parked process as it is now: its control group or program's file may have changed meanwhile."""
        pid = entry.target.process.pid
        now = identity.identify(self._host, pid)
        if now.process.started_at != entry.target.process.started_at:
            raise NoSuchProcess(f"the process that was parked as pid {pid} has exited")
        return identity.open_verified(self._host, now)

    @contextmanager
    def _all_audited(self, members: Sequence[_Member]) -> Iterator[list[dict[str, Any]]]:
        with ExitStack() as logs:
            yield [logs.enter_context(self._audited("park", each.entry, each.claim)) for each in members]

    @contextmanager
    def _audited(
        self, action: str, entry: Parked, claim: ProcessClaim, pairs: Sequence[tuple[str, str]] = ()
    ) -> Iterator[dict[str, Any]]:
        """Log what is intended and its outcome; an error also releases the claim."""
        record = {"action": action, "target": entry.target, "nbytes": entry.nbytes, "purpose": entry.purpose}
        if isinstance(entry, Unrecorded):
            record["found_by"] = "asking the driver"
        if pairs:
            record["gpus"] = pairs
        more: dict[str, Any] = {}
        try:
            token = audit.log_intent(record)
            yield more
        except BaseException as error:
            claim.close()
            if not isinstance(error, AuditUnavailable):
                message = str(error) or type(error).__name__
                audit.log_outcome(token, {"status": "failed", "message": message, **more})
            raise
        audit.log_outcome(token, {"status": "done", **more})

    def _entry(self, target: Target, shares: Sequence[GpuShare], purpose: Purpose) -> Parked:
        return Parked(**self._about(target, shares), purpose=purpose)

    def _unrecorded(self, target: Target, state: CheckpointState, shares: Sequence[GpuShare]) -> Unrecorded:
        return Unrecorded(**self._about(target, shares), purpose="park", state=state)

    def _about(self, target: Target, shares: Sequence[GpuShare]) -> dict[str, Any]:
        return {
            "host": self.journal.host_name,
            "boot_id": self.journal.boot_id,
            "pid_namespace": self.journal.pid_namespace,
            "target": target,
            "shares": tuple(shares),
            "since": self._host.clock.now(),
            "by_user": self._host.facts().user,
            "by_pid": os.getpid(),
        }


def patience_s(nbytes: int) -> float:
    """How long the driver may take for so many bytes before we stop waiting for it."""
    return 30.0 + nbytes / _SLOWEST_BYTES_PER_S


def _with_margin(shares: Sequence[GpuShare]) -> tuple[GpuShare, ...]:
    return tuple(replace(share, nbytes=share.nbytes + ROOM_MARGIN) for share in shares)


def _runs(answer: CheckpointAnswer) -> bool:
    return answer.state == "running" or answer.status in ("ended", "unavailable")


def _log_fields(answer: CheckpointAnswer) -> dict[str, Any]:
    return {
        "driver": answer.status,
        "call": answer.call,
        "code": answer.code,
        "driver_s": round(answer.took_s, 6),
    }
