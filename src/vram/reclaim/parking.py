"""Moves processes between GPU and host memory: written down first, undone where it fails.

There is one way of cleaning up. Whether a move is interrupted by Ctrl-C, an error or our
death, the line to the keeper breaks, and the keeper brings back what was not settled. What
it cannot finish, because it was killed too, is found in the journal by the next vram.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from vram.errors import AuditUnavailable, CannotPark, NoSuchProcess, TimedOut, VramError
from vram.host.ports import Host, Keeper, Watch
from vram.model.parking import CheckpointAnswer, Parked, Purpose, Share
from vram.model.plan import Target
from vram.reclaim import audit, identity
from vram.reclaim.journal import Claim, Journal
from vram.reclaim.refusals import explain
from vram.units import MIB

LOCK_TIMEOUT_S = 10.0
PROMPT_S = 10.0
# A keeper without loans ends at once, and with it the 3 MiB that it has on the GPU.
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


class Parking:
    """One conversation with the driver about parking. Use it with ``with``: leaving it brings
    back whatever was parked on loan and not yet returned."""

    def __init__(self, host: Host, watch: Watch | None = None) -> None:
        self._host = host
        self._watch = watch
        self._keeper: Keeper | None = None
        self._loans: dict[int, tuple[Parked, Claim]] = {}
        self.journal = Journal(host)

    def __enter__(self) -> Parking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def keeper(self) -> Keeper:
        if self._keeper is None:
            self._keeper = self._host.checkpoint.open()
        return self._keeper

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
        self._require_running(entry)
        began = self._host.clock.monotonic()
        with identity.hold(self._host, target) as held:
            claim = self._claim(target.process.pid)
            with self._audited("park", entry, claim) as outcome:
                answer = self._move_away(held, claim, entry, lock_timeout_s, deadline_s)
                outcome.update(_told(answer))
                if answer.status != "ok":
                    self._give_up(entry, claim, answer)
                    raise explain(answer, entry, "park")
            self._parked(entry, claim)
        return Moved(entry, self._host.clock.monotonic() - began, answer.took_s)

    def _require_running(self, entry: Parked) -> None:
        """Ask before touching anything: somebody else may have locked or parked the process."""
        pid = entry.target.process.pid
        answer = self.keeper.state(pid, PROMPT_S)
        if answer.status == "timeout":
            raise TimedOut(f"the driver does not answer about pid {pid}", hint="see `vram why`")
        if answer.status != "ok" or answer.state != "running":
            raise explain(answer, entry, "park")

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
            return self.keeper.park(
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
        """Nothing was moved; where that is not certain, a new keeper looks after the process."""
        if answer.state == "running" or answer.status in ("ended", "unavailable"):
            self.journal.remove(entry)
        elif answer.status == "timeout":
            self._hang_up(0.0)  # the keeper waits for the driver and then undoes it, without us
        else:
            self._undo(entry, claim)

    def _undo(self, entry: Parked, claim: Claim) -> None:
        """Hang up, so that the keeper brings the process back; a second Ctrl-C ends only the waiting."""
        self._hang_up(patience_s(entry.nbytes))
        with suppress(VramError):
            self._put_right(replace(entry, purpose="borrow"), claim)

    def _parked(self, entry: Parked, claim: Claim) -> None:
        if entry.purpose == "borrow":
            self._loans[entry.target.process.pid] = (entry, claim)
        else:
            self.keeper.settle(entry.target.process.pid)
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
        with claim or self._claim(pid) as claim:
            answer = self._bring_back("unpark", entry, claim, room_patience_s, deadline_s)
        if answer.status != "ok":
            raise explain(answer, entry, "unpark")
        return Moved(entry, self._host.clock.monotonic() - began, answer.took_s)

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
                answer = self.keeper.unpark(
                    held.grip,
                    claim,
                    _with_margin(entry.shares),
                    room_patience_s=room_patience_s,
                    deadline_s=deadline_s,
                    watch=self._watch,
                )
                if answer.status != "died":
                    break
                self._hang_up(0.0)  # whoever killed the keeper did not mean the process: a new one goes on
            outcome.update(_told(answer))
            if answer.status in ("ok", "ended"):
                self.journal.remove(entry)
        return answer

    def recover(self) -> tuple[Found, ...]:
        """Put right what a vram that died left behind: nobody stays locked, loans are returned."""
        return tuple(self._look_after(entry) for entry in self.journal.entries())

    def _look_after(self, entry: Parked) -> Found:
        claim = self.journal.claim(entry.target.process.pid)
        if claim is None:
            return Found(entry, "busy")
        with claim:
            return Found(entry, self._put_right(entry, claim))

    def _put_right(self, entry: Parked, claim: Claim) -> Done:
        answer = self.keeper.state(entry.target.process.pid, PROMPT_S)
        if answer.state == "running" or (answer.status == "refused" and answer.code == 1):
            self.journal.remove(entry)
            return "running"
        if answer.state == "parked" and entry.purpose == "park":
            return "parked"
        if answer.state in ("locked", "parked"):
            return self._return(entry, claim, "unlocked" if answer.state == "locked" else "brought back")
        return "failed" if answer.state == "failed" else "unknown"

    def _return(self, entry: Parked, claim: Claim, done: Done) -> Done:
        answer = self._bring_back("recover", entry, claim)
        results: dict[str, Done] = {"ok": done, "short": "no room", "ended": "running"}
        return results.get(answer.status, "unknown")

    def dismiss(self) -> None:
        """Let a keeper go that was started ahead and is not needed: it would take GPU memory."""
        assert not self._loans, "somebody has to bring them back"
        self.keeper.hang_up(LEAVE_S)
        self._keeper = None

    def close(self) -> None:
        """Hang up; the keeper returns what is on loan, and is waited for."""
        loans, self._loans = self._loans, {}
        owed = sum(entry.nbytes for entry, _ in loans.values())
        self._hang_up(patience_s(owed) if loans else LEAVE_S)
        for entry, claim in loans.values():
            with claim, suppress(VramError):
                self._put_right(entry, claim)
        self._hang_up(LEAVE_S)

    def _hang_up(self, wait_s: float) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.hang_up(wait_s)

    def _claim(self, pid: int) -> Claim:
        claim = self.journal.claim(pid)
        if claim is None:
            raise CannotPark(
                f"another vram is moving pid {pid} right now", hint="wait until it is done; see `vram parked`"
            )
        return claim

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
        return Parked(
            host=self.journal.host_name,
            boot_id=self.journal.boot_id,
            pid_namespace=self.journal.pid_namespace,
            target=target,
            shares=tuple(shares),
            since=self._host.clock.now(),
            by_user=self._host.facts().user,
            by_pid=os.getpid(),
            purpose=purpose,
        )


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
