"""Parks and unparks processes on behalf of a vram, and puts everything right if that vram dies.

These driver calls can take a minute, or never return, and between two of them the target
stands still. So they are made here, in a process of its own session that answers on descriptor
3, a socket of one message per packet:

    {"do": "state", "pid"}                        the driver's state of a process
    {"do": "park", "pid", "room", ...} + pidfd, claim      lock, checkpoint; on failure unlock
    {"do": "unpark", "pid", "room"} + pidfd, claim         restore, unlock
    {"do": "settle", "pid"}                       the park is for good, whatever becomes of you
    {"do": "until"} + pidfd                       put nothing back before this process has ended

Until a park is settled it is a loan: when the line breaks, by a close or by a death, every
process that was lent is brought back. Each comes with a claim, a locked file; the lock
lasts as long as this process, so whoever gets it knows that nobody is at work any more.

While it owes nothing, this process ends as soon as the line breaks or a signal asks for it, even
from within a driver call that never returns. While it owes something, only SIGKILL ends it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from vram.payloads.checkpoint import CHECKPOINTED, CheckpointDriver, Transition, Unavailable
from vram.payloads.gauge import Gauge

LINE = 3
LONGEST = 1 << 16
REPORT_EVERY_S = 0.1
# Memory comes back a moment after its holder's end (110 ms on an H200), but others may want it too.
ROOM_PATIENCE_S = 60.0
ROOM_EVERY_S = 0.2
REPORTER_S = 1.0
HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class OwedProcess(NamedTuple):
    """A process to be brought back: the room that it needs, its pidfd, and the claim on it."""

    room: list[tuple[str, int]]
    pidfd: int
    claim: int

    def has_ended(self, wait_s: float = 0.0) -> bool:
        return ended(self.pidfd, wait_s)

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.claim)


class Obligations:
    """Counts what this process owes: moves that are being made, and processes to be brought back.

    Two threads wait for the line to break and for signals: the main one may be inside the driver.
    """

    def __init__(self) -> None:
        self._owed = 0
        self._changed = threading.Condition()

    def take(self) -> None:
        self._add(1)

    def settle(self) -> None:
        self._add(-1)

    def _add(self, number: int) -> None:
        with self._changed:
            self._owed += number
            self._changed.notify_all()

    @contextmanager
    def owing(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.settle()

    def watch(self, line: socket.socket) -> None:
        """Raises RuntimeError where this user may have no more threads."""
        # Blocked before there is a second thread, so in every one: none of the driver's calls is
        # interrupted, and the signals wait for who asks for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
        for job in (lambda: self._leave_with(line), self._leave_when_told):
            threading.Thread(target=job, daemon=True).start()

    def _leave_with(self, line: socket.socket) -> NoReturn:
        poll = select.poll()
        poll.register(line, select.POLLRDHUP)
        poll.poll()
        with self._changed:
            self._changed.wait_for(lambda: not self._owed)
            os._exit(0)

    def _leave_when_told(self) -> NoReturn:
        while True:
            signal.sigwait(HELD_SIGNALS)
            with self._changed:
                if not self._owed:
                    os._exit(0)


class CheckpointServer:
    """The driver, the line to who asked, and what was lent."""

    def __init__(self, line: socket.socket, driver: CheckpointDriver, obligations: Obligations) -> None:
        self._line = line
        self._driver = driver
        self._obligations = obligations
        self._gauge = Gauge()
        self._loans: dict[int, OwedProcess] = {}
        self._until = -1
        self._order = 0

    def serve(self) -> None:
        """Do as told until the line breaks."""
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._line, LONGEST, 2)
            except OSError:
                return
            if not packet:
                return
            self._obey(json.loads(packet), descriptors)

    def _tell(self, **fields: object) -> None:
        """Answer the latest order. Its number tells a late answer from the next one's."""
        tell(self._line, order=self._order, **fields)

    def _obey(self, order: dict[str, Any], descriptors: list[int]) -> None:
        self._order = order["order"]
        match order["do"]:
            case "state":
                code, state = self._driver.state(order["pid"])
                self._tell(code=code, state=state, call="cuCheckpointProcessGetState")
            case "park":
                self._park(order, OwedProcess(order["room"], *descriptors))
            case "unpark":
                self._unpark(order, OwedProcess(order["room"], *descriptors))
            case "settle":
                self._settle(order["pid"])
                self._tell()
            case "until":
                (self._until,) = descriptors
                self._tell()

    def _park(self, order: dict[str, Any], loan: OwedProcess) -> None:
        pid = order["pid"]
        if loan.has_ended():
            loan.close()
            return self._tell(ended=True)
        transition = Transition(self._driver, pid)
        self._obligations.take()
        with self._reporting(order):
            self._loans[pid] = loan
            if not transition.park(order["lock_ms"]):
                self._settle(pid)
        return self._answer(transition, pid)

    def _settle(self, pid: int) -> None:
        self._loans.pop(pid).close()
        self._obligations.settle()

    def _unpark(self, order: dict[str, Any], loan: OwedProcess) -> None:
        pid = order["pid"]
        try:
            short = self._wait_for_room(pid, loan, order["patience_s"], asked=True)
            if loan.has_ended():
                return self._tell(ended=True)
            if short:
                return self._tell(short=short)
            transition = Transition(self._driver, pid)
            with self._obligations.owing(), self._reporting(order):
                if transition.unpark() and pid in self._loans:
                    self._settle(pid)
            return self._answer(transition, pid)
        finally:
            loan.close()

    def _answer(self, transition: Transition, pid: int) -> None:
        state = self._driver.state(pid)[1]
        self._tell(code=transition.code, call=transition.call, took_s=transition.took_s, state=state)

    @contextmanager
    def _reporting(self, order: dict[str, Any]) -> Iterator[None]:
        """Tell the device's own figures while the driver is at work, where somebody watches."""
        uuids = [uuid for uuid, _ in order["room"]]
        done = threading.Event()
        thread = threading.Thread(target=self._report, args=(uuids, done), daemon=True)
        if order.get("watch"):
            with suppress(RuntimeError):  # no more threads for this user: then nothing is reported
                thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join(REPORTER_S)  # NVML may hang: what is reported late is passed over

    def _report(self, uuids: list[str], done: threading.Event) -> None:
        while not done.wait(REPORT_EVERY_S):
            self._tell(used=self._gauge.used(uuids))

    def put_back(self) -> None:
        """Bring back everybody who was lent, after the command that they made room for."""
        if self._loans and self._until >= 0:
            ended(self._until, None)
        for pid, loan in self._loans.items():
            if not self._wait_for_room(pid, loan, ROOM_PATIENCE_S, asked=False) and not loan.has_ended():
                Transition(self._driver, pid).unpark()

    def _shortage(self, pid: int, loan: OwedProcess) -> dict[str, int]:
        """What a restore would miss; one who is only locked has all its memory still."""
        parked = self._driver.state(pid)[1] == CHECKPOINTED
        return self._gauge.shortage(loan.room) if parked else {}

    def _wait_for_room(
        self, pid: int, loan: OwedProcess, patience_s: float, *, asked: bool
    ) -> dict[str, int]:
        """What is still missing in the end: a restore that finds too little leaves the process stuck.

        Who *asked* for it calls the wait off by hanging up; what is owed is waited for without anybody.
        """
        deadline = time.monotonic() + patience_s
        while (short := self._shortage(pid, loan)) and time.monotonic() < deadline:
            if loan.has_ended(ROOM_EVERY_S) or (asked and hung_up(self._line)):
                break
        return short


def ended(pidfd: int, wait_s: float | None) -> bool:
    """Whether a process has ended; wait for that at most *wait_s*, or for as long as it takes."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if wait_s is None else wait_s * 1000))


def hung_up(line: socket.socket) -> bool:
    """Whether nobody is at the other end any more."""
    poll = select.poll()
    poll.register(line, select.POLLRDHUP)
    return bool(poll.poll(0))


def tell(line: socket.socket, **fields: object) -> None:
    with suppress(OSError):  # nobody listens any more: then the next reading of the line ends it
        line.send(json.dumps(fields).encode())


def main() -> None:
    os.chdir("/")
    line = socket.socket(fileno=LINE)
    obligations = Obligations()
    try:
        obligations.watch(line)
        worker = CheckpointServer(line, CheckpointDriver(), obligations)
    except (Unavailable, RuntimeError) as error:
        tell(line, unavailable=str(error), code=getattr(error, "code", None))
        return
    tell(line, ready=True)
    try:
        worker.serve()
    finally:
        worker.put_back()
        os._exit(0)  # the driver's library, and threads that hang in it, are not asked
