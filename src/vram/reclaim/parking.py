"""Moves processes between GPU and host memory: written down first, undone where it fails.

The journal is a help, the driver is the truth: how a process stands is asked from the driver, and
one that the journal does not know is found by asking too.

There is one way of cleaning up. Whether a move is interrupted by Ctrl-C, an error or our death,
the line to the checkpoint worker breaks, and the worker brings back what was not settled. What it
cannot finish, because it was killed too, is found in the journal by the next vram.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from vram.errors import AuditUnavailable, CannotPark, NoSuchProcess, TimedOut, VramError
from vram.host.ports import CheckpointWorker, Host, Watch
from vram.model.parking import CheckpointAnswer, CheckpointState, Parked, Purpose, Share, Unrecorded
from vram.model.plan import Target
from vram.reclaim import audit, identity
from vram.reclaim.claims import Claim
from vram.reclaim.journal import Journal
from vram.reclaim.preflight import look, room_at_most
from vram.reclaim.refusals import KNOWS_NOTHING, explain, not_parked
from vram.units import MIB

LOCK_TIMEOUT_S = 10.0
PROMPT_S = 10.0
# For looking at every process of the user's, and for asking the driver about those that use CUDA.
SEARCH_S = 5.0
# Of that, for one process: the driver answers in less than a millisecond, or hardly ever.
SILENCE_S = 1.0
# A checkpoint worker without loans ends at once, and with it the 3 MiB that it has on the GPU.
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


class Found(NamedTuple):
    """What a dead vram left behind, and what became of it."""

    entry: Parked
    done: Done
    detail: str | None = None
    """What the driver said, where that is more than *done* tells."""


class Beside(NamedTuple):
    """Whom the driver says is parked or locked, though no journal entry tells of it."""

    processes: tuple[Unrecorded, ...]
    complete: bool
    """Whether there was time to ask about everybody."""
    silent: tuple[int, ...] = ()
    """About whom the driver did not answer."""
    strange: str | None = None
    """What the driver said of a process in a state that this version does not know."""


class Parking:
    """One conversation with the driver about parking. Use it with ``with``: leaving it brings
    back whatever was parked on loan and not yet returned."""

    def __init__(self, host: Host, watch: Watch | None = None) -> None:
        self._host = host
        self._watch = watch
        self._worker: CheckpointWorker | None = None
        self._loans: dict[int, tuple[Parked, Claim]] = {}
        self.journal = Journal(host)

    def __enter__(self) -> Parking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def worker(self) -> CheckpointWorker:
        if self._worker is None:
            self._worker = self._host.checkpoint.open()
        return self._worker

    def park(
        self,
        target: Target,
        shares: Sequence[Share],
        *,
        purpose: Purpose = "park",
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        deadline_s: float | None = None,
    ) -> Moved:
        """Move a process's GPU memory into its host memory; for a borrow, on loan.

        Raises what kept it on the GPU; the process runs on then, unless the message says more.
        """
        entry = self._entry(target, shares, purpose)
        began = self._host.clock.monotonic()
        with identity.hold(self._host, target) as held:
            claim = self._claim_running(entry)
            with self._audited("park", entry, claim) as outcome:
                answer = self._move_away(held, claim, entry, lock_timeout_s, deadline_s)
                outcome.update(_told(answer))
                if answer.status != "ok":
                    self._give_up(entry, claim, answer)
                    raise explain(answer, entry, "park")
            self._parked(entry, claim)
        return Moved(entry, self._host.clock.monotonic() - began, answer.took_s)

    def _claim_running(self, entry: Parked) -> Claim:
        """Ask before touching anything: somebody else may have locked or parked the process."""
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
        answer = self._state(pid, PROMPT_S)
        if answer.status == "timeout":
            raise TimedOut(f"pid {pid} was not touched: {answer.message}", hint="see `vram why`")
        return answer

    def _state(self, pid: int, deadline_s: float) -> CheckpointAnswer:
        return self._stopped(pid) or self.worker.state(pid, deadline_s)

    def _stopped(self, pid: int) -> CheckpointAnswer | None:
        """The driver's calls about a stopped process hang until it goes on (H200, driver 580.159.04)."""
        seen = self._host.proc.facts(pid)
        if seen is None or seen[1].state not in ("T", "t"):
            return None
        return CheckpointAnswer(status="stopped", message="it is stopped, and the driver says nothing of it")

    def require_not_parked(self, pid: int) -> None:
        """Raise where *pid* is parked already, by the driver's word; an entry that says so does not count."""
        with self.journal.claim(pid):
            answer = self._ask_state(pid)
            if answer.state == "parked":
                raise CannotPark(f"pid {pid} is parked already", hint=f"`vram unpark {pid}` brings it back")
            entry = self.journal.find(pid)
            if answer.state == "running" and entry is not None:
                self.journal.remove(entry)

    def _move_away(
        self,
        held: identity.Held,
        claim: Claim,
        entry: Parked,
        lock_timeout_s: float,
        deadline_s: float | None,
    ) -> CheckpointAnswer:
        try:
            self.journal.write(entry)
            held.recheck()
            return self.worker.park(
                held.grip,
                claim,
                _with_margin(entry.shares),
                lock_timeout_s=lock_timeout_s,
                deadline_s=(deadline_s or patience_s(entry.nbytes)) + lock_timeout_s,
                watch=self._watch,
            )
        except BaseException:  # above all Ctrl-C
            self._undo(entry, claim)
            raise

    def _give_up(self, entry: Parked, claim: Claim, answer: CheckpointAnswer) -> None:
        """Nothing was moved; where that is not certain, a new worker looks after the process."""
        if answer.state == "running" or answer.status in ("ended", "unavailable"):
            self.journal.remove(entry)
        elif answer.status == "timeout":
            self._hang_up(0.0)  # the worker waits for the driver and then undoes it, without us
        else:
            self._undo(entry, claim)

    def _undo(self, entry: Parked, claim: Claim) -> None:
        """Hang up, so that the worker brings the process back; a second Ctrl-C ends only the waiting."""
        self._hang_up(patience_s(entry.nbytes))
        with suppress(VramError):
            self._put_right(replace(entry, purpose="borrow"), claim)

    def _parked(self, entry: Parked, claim: Claim) -> None:
        if entry.purpose == "borrow":
            self._loans[entry.target.process.pid] = (entry, claim)
        else:
            self.worker.settle(entry.target.process.pid)
            claim.close()

    def unpark(
        self, entry: Parked, *, room_patience_s: float = 0.0, deadline_s: float | None = None
    ) -> Moved:
        """Bring a process back to its GPU. Raises what keeps it away; it stays parked then.

        A GPU that is full is waited for up to *room_patience_s*.
        """
        pid = entry.target.process.pid
        began = self._host.clock.monotonic()
        _, claim = self._loans.pop(pid, (entry, None))
        with claim or self._claim_parked(entry) as claim:
            answer = self._bring_back("unpark", entry, claim, room_patience_s, deadline_s)
        if answer.status != "ok":
            raise explain(answer, entry, "unpark")
        took_s = self._host.clock.monotonic() - began
        return Moved(self._measured(entry) if isinstance(entry, Unrecorded) else entry, took_s, answer.took_s)

    def _claim_parked(self, entry: Parked) -> Claim:
        """Whoever had the claim before may have brought the process back: nothing is done twice."""
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

    def _measured(self, entry: Unrecorded) -> Unrecorded:
        """*entry* with what the process has on its GPUs now that it is back."""
        shares: tuple[Share, ...] = ()
        with suppress(VramError):
            shares = look(self._host).shares(entry.target.process.pid)
        return replace(entry, shares=shares)

    def entry_of(self, pid: int, *, despite_room: bool = False) -> Parked:
        """How *pid* is to be brought back: as the journal says, or as the driver does where it is silent.

        Raises where the process is not parked. *despite_room* leaves it to the driver whether there
        is room for one of which nobody knows how much it needs.
        """
        entry = self.journal.find(pid)
        if entry is not None:
            return entry
        target = identity.capture(self._host, pid)
        answer = self._ask_state(pid)
        if answer.state is None or answer.state == "running":
            raise not_parked(answer, pid)
        shares = () if despite_room or answer.state != "parked" else room_at_most(self._host, pid)
        return self._unrecorded(target, answer.state, shares)

    def beside_the_journal(self, known: Collection[int], deadline_s: float = SEARCH_S) -> Beside:
        """Ask the driver about everybody who uses CUDA, but for *known*: a deleted or damaged entry must
        not hide a process that stands still."""
        deadline = self._host.clock.monotonic() + deadline_s
        seen = self._host.limits.cuda_processes(deadline_s)
        found: list[Unrecorded] = []
        silent: list[int] = []
        strange: str | None = None
        for pid in sorted(set(seen.pids).difference(known, self._host.signals.ourselves())):
            left_s = deadline - self._host.clock.monotonic()
            if left_s <= 0:
                return Beside(tuple(found), False, tuple(silent), strange)
            answer = self._state(pid, min(SILENCE_S, left_s))
            if answer.status in ("timeout", "died", "unavailable", "stopped"):
                silent.append(pid)
            if answer.status == "timeout":
                self._hang_up(0.0)  # a new worker asks about the others
            if answer.status == "unknown":
                strange = f"pid {pid}: {answer.message}"
            if answer.state in (None, "running") or self.journal.find(pid):
                continue
            with suppress(VramError):  # it has ended meanwhile, or is nobody's to touch
                found.append(self._unrecorded(identity.capture(self._host, pid), answer.state, ()))
        return Beside(tuple(found), seen.complete, tuple(silent), strange)

    def _bring_back(
        self,
        action: str,
        entry: Parked,
        claim: Claim,
        room_patience_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> CheckpointAnswer:
        with self._held(entry) as held, self._audited(action, entry, claim) as outcome:
            deadline_s = (deadline_s or patience_s(entry.nbytes)) + room_patience_s
            for _ in range(2):
                answer = self._stopped(entry.target.process.pid) or self.worker.unpark(
                    held.grip,
                    claim,
                    _with_margin(entry.shares),
                    room_patience_s=room_patience_s,
                    deadline_s=deadline_s,
                    watch=self._watch,
                )
                if answer.status != "died":
                    break
                self._hang_up(0.0)  # whoever killed the worker did not mean the process: a new one goes on
            outcome.update(_told(answer))
            if answer.status in ("ok", "ended"):
                self.journal.remove(entry)
        return answer

    def recover(self) -> tuple[Found, ...]:
        """Put right what a vram that died left behind: nobody stays locked, loans are returned."""
        return tuple(self._look_after(entry) for entry in self.journal.entries())

    def _look_after(self, entry: Parked) -> Found:
        claim = self.journal.try_claim(entry.target.process.pid)
        if claim is None:
            return Found(entry, "busy")
        with claim:
            found = self._put_right(entry, claim)
        if found.done == "unknown":
            self._hang_up(0.0)  # the driver may hang over this one: a new worker asks about the others
        return found

    def _put_right(self, entry: Parked, claim: Claim) -> Found:
        answer = self._state(entry.target.process.pid, PROMPT_S)
        if answer.state == "running" or (answer.status == "refused" and answer.code in KNOWS_NOTHING):
            self.journal.remove(entry)
            return Found(entry, "running")
        if answer.state == "parked" and entry.purpose == "park":
            return Found(entry, "parked")
        if answer.state in ("locked", "parked"):
            done: Done = "unlocked" if answer.state == "locked" else "brought back"
            return Found(entry, self._return(entry, claim, done))
        return Found(entry, "failed" if answer.state == "failed" else "unknown", answer.message)

    def _return(self, entry: Parked, claim: Claim, done: Done) -> Done:
        answer = self._bring_back("recover", entry, claim)
        results: dict[str, Done] = {"ok": done, "short": "no room", "ended": "running"}
        return results.get(answer.status, "unknown")

    def dismiss(self) -> None:
        """Let a worker go that was started ahead and is not needed: it would take GPU memory."""
        assert not self._loans, "somebody has to bring them back"
        self.worker.hang_up(LEAVE_S)
        self._worker = None

    def close(self) -> None:
        """Hang up; the worker returns what is on loan, and is waited for."""
        loans, self._loans = self._loans, {}
        owed = sum(entry.nbytes for entry, _ in loans.values())
        self._hang_up(patience_s(owed) if loans else LEAVE_S)
        for entry, claim in loans.values():
            with claim, suppress(VramError):
                self._put_right(entry, claim)
        self._hang_up(LEAVE_S)

    def _hang_up(self, wait_s: float) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.hang_up(wait_s)

    def _held(self, entry: Parked) -> identity.Held:
        """The parked process as it is now: its group or program's file may have changed meanwhile."""
        pid = entry.target.process.pid
        now = identity.capture(self._host, pid)
        if now.process.started_at != entry.target.process.started_at:
            raise NoSuchProcess(f"the process that was parked as pid {pid} has ended")
        return identity.hold(self._host, now)

    @contextmanager
    def _audited(self, action: str, entry: Parked, claim: Claim) -> Iterator[dict[str, Any]]:
        """Write down what is intended and what came of it; an error also gives the claim up."""
        record = {"action": action, "target": entry.target, "nbytes": entry.nbytes, "purpose": entry.purpose}
        if isinstance(entry, Unrecorded):
            record["found_by"] = "asking the driver"
        told: dict[str, Any] = {}
        try:
            token = audit.intend(record)
            yield told
        except BaseException as error:
            claim.close()
            if not isinstance(error, AuditUnavailable):
                message = str(error) or type(error).__name__
                audit.outcome(token, {"status": "failed", "message": message, **told})
            raise
        audit.outcome(token, {"status": "done", **told})

    def _entry(self, target: Target, shares: Sequence[Share], purpose: Purpose) -> Parked:
        return Parked(**self._about(target, shares), purpose=purpose)

    def _unrecorded(self, target: Target, state: CheckpointState, shares: Sequence[Share]) -> Unrecorded:
        return Unrecorded(**self._about(target, shares), purpose="park", state=state)

    def _about(self, target: Target, shares: Sequence[Share]) -> dict[str, Any]:
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
    """How long the driver may take over so many bytes before we give up waiting for it."""
    return 30.0 + nbytes / _SLOWEST_BYTES_PER_S


def _with_margin(shares: Sequence[Share]) -> list[Share]:
    return [replace(share, nbytes=share.nbytes + ROOM_MARGIN) for share in shares]


def _told(answer: CheckpointAnswer) -> dict[str, Any]:
    return {
        "driver": answer.status,
        "call": answer.call,
        "code": answer.code,
        "driver_s": round(answer.took_s, 6),
    }
