"""Parks and unparks processes on behalf of a vram, and undoes what is unfinished if that vram dies.

These driver calls can take a minute, or never return, and between two of them the target is paused.
So they are made here, in a process with a session of its own that answers on descriptor 3, a socket of
one message per packet:

    {"do": "state", "pid"}                             the driver's state of a process
    {"do": "park", "processes": [{"pid", "room"}], ...}    + a pidfd and a claim of each: all of them, or none
    {"do": "unpark", "pid", "room", ...} + pidfd, claim    bring one back; "pairs": to other GPUs
    {"do": "keep", "pids"}                             keep them parked, also after this worker has ended
    {"do": "until"} + pidfd                            bring nothing back before this process has ended

A park is temporary until it is to be kept: when the socket is closed, on purpose or by a death, every
such process is brought back. Each comes with a claim, a locked file; the lock lasts as long as this
process, so another worker that gets it knows that this one does not move the process any more.

With nothing to bring back, this process ends as soon as the socket is closed or a signal asks for it,
even from within a driver call that never returns. Otherwise only SIGKILL ends it.

No context is ever made here, so almost no GPU memory is taken.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from vram.payloads.checkpoint_driver import (
    CHECKPOINTED,
    CheckpointDriver,
    Move,
    Unavailable,
    ask_state,
    park_together,
)
from vram.payloads.driver_threads import CannotHold
from vram.payloads.libnvml import MemoryInfo, Nvml

SOCKET_FD = 3
MAX_LENGTH = 1 << 16
REPORT_EVERY_S = 0.1
# Memory comes back a moment after its holder's end (110 ms on an H200), but others may want it too.
ROOM_PATIENCE_S = 60.0
ROOM_EVERY_S = 0.2
REPORTER_S = 1.0
ANSWER_S = 5.0
HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# The kernel passes so many descriptors with one message at most; each process has two.
MAX_DESCRIPTORS = 253


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
    """Counts why this process must not end yet: moves under way, and processes to be brought back.

    Two threads wait for the socket to be closed and for signals: the main one may be inside the driver.
    """

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self, number: int = 1) -> None:
        with self._changed:
            self._count += number
            self._changed.notify_all()

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.add()
        try:
            yield
        finally:
            self.add(-1)

    def watch(self, connection: socket.socket) -> None:
        """Start both threads. Raises RuntimeError where this user may have no more of them."""
        # Blocked before there is a second thread, so in every one: none of the driver's calls is
        # interrupted, and the signals wait for who asks for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
        for job in (lambda: self._exit_with(connection), self._exit_on_signal):
            threading.Thread(target=job, daemon=True).start()

    def _exit_with(self, connection: socket.socket) -> NoReturn:
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        with self._changed:
            self._changed.wait_for(lambda: not self._count)
            os._exit(0)

    def _exit_on_signal(self) -> NoReturn:
        while True:
            signal.sigwait(HELD_SIGNALS)
            with self._changed:
                if not self._count:
                    os._exit(0)


class Gauge:
    """How much of each GPU is used and free, by UUID; a GPU that does not answer is left out.

    NVML may never answer. It is called in threads that are waited for at most ``ANSWER_S``; while one of them
    hangs, no GPU answers. The library is loaded at once, and anew where its driver left meanwhile.
    """

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._latest = threading.Thread(target=self._open, daemon=True)
        self._latest.start()

    def _open(self) -> None:
        self._nvml = Nvml.start()

    def used(self, uuids: Iterable[str]) -> dict[str, int]:
        return {uuid: int(memory.used) for uuid, memory in self._read(uuids).items()}

    def shortage(self, room: Iterable[tuple[str, int]]) -> dict[str, int]:
        """How many bytes each GPU has too few for *room*; one that does not answer has none."""
        wanted: dict[str, int] = {}
        for uuid, nbytes in room:
            wanted[uuid] = wanted.get(uuid, 0) + nbytes
        read = self._read(wanted)
        free = {uuid: int(read[uuid].free) if uuid in read else 0 for uuid in wanted}
        return {uuid: wanted[uuid] - free[uuid] for uuid in wanted if free[uuid] < wanted[uuid]}

    def _read(self, uuids: Iterable[str]) -> dict[str, MemoryInfo]:
        self._latest.join(ANSWER_S)
        if self._latest.is_alive():
            return {}
        read: dict[str, MemoryInfo] = {}
        reading = threading.Thread(target=self._read_into, args=(read, list(uuids)), daemon=True)
        self._latest = reading
        reading.start()
        reading.join(ANSWER_S)
        return {} if reading.is_alive() else read

    def _read_into(self, read: dict[str, MemoryInfo], uuids: list[str]) -> None:
        if self._nvml is None:
            self._open()
        nvml = self._nvml
        if nvml is None:
            return
        for uuid in uuids:
            handle = nvml.handle(uuid)
            memory = nvml.memory(handle) if handle else None
            if memory is not None:
                read[uuid] = memory
            if nvml.gone:
                nvml.close()
                self._nvml = None
                return


class CheckpointServer:
    """The driver, the socket to the vram that asked, and the processes that are parked temporarily."""

    def __init__(self, connection: socket.socket, driver: CheckpointDriver, obligations: Obligations) -> None:
        self._socket = connection
        self._driver = driver
        self._obligations = obligations
        self._gauge = Gauge()
        self._owed_processes: dict[int, OwedProcess] = {}
        self._until = -1
        self._order = 0

    def serve(self) -> None:
        """Carry out orders until the socket is closed."""
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._socket, MAX_LENGTH, MAX_DESCRIPTORS)
            except OSError:
                return
            if not packet:
                return
            self._do(json.loads(packet), descriptors)

    def _reply(self, **fields: object) -> None:
        """Answer the latest order. Its number tells a late answer from the next one's."""
        send(self._socket, order=self._order, **fields)

    def _do(self, order: dict[str, Any], descriptors: list[int]) -> None:
        self._order = order["order"]
        match order["do"]:
            case "state":
                self._report_state(order["pid"])
            case "park":
                self._park(order, descriptors)
            case "unpark":
                self._unpark(order, OwedProcess(order["room"], *descriptors))
            case "keep":
                for pid in order["pids"]:
                    self._forget(pid)
                self._reply()
            case "until":
                (self._until,) = descriptors
                self._reply()

    def _report_state(self, pid: int) -> None:
        try:
            code, state = ask_state(self._driver, pid)
        except CannotHold as error:
            return self._reply(not_held=str(error))
        return self._reply(code=code, state=state, call="cuCheckpointProcessGetState")

    def _park(self, order: dict[str, Any], descriptors: list[int]) -> None:
        pairs = zip(order["processes"], descriptors[::2], descriptors[1::2])
        owed = {each["pid"]: OwedProcess(each["room"], pidfd, claim) for each, pidfd, claim in pairs}
        gone = [pid for pid, each in owed.items() if each.has_ended()]
        if gone:
            for each in owed.values():
                each.close()
            return self._reply(ended=True, pid=gone[0])
        moves = [Move(self._driver, pid, each.pidfd) for pid, each in owed.items()]
        for pid, each in owed.items():
            self._owed_processes[pid] = each
            self._obligations.add()
        with self._reporting(order, [uuid for each in owed.values() for uuid, _ in each.room]):
            if not park_together(moves, order["lock_ms"]):
                for pid in owed:
                    self._forget(pid)
        return self._answer(moves)

    def _forget(self, pid: int) -> None:
        self._owed_processes.pop(pid).close()
        self._obligations.add(-1)

    def _unpark(self, order: dict[str, Any], owed: OwedProcess) -> None:
        pid = order["pid"]
        try:
            short = self._wait_for_room(pid, owed, order["patience_s"], asked=True)
            if owed.has_ended():
                return self._reply(ended=True, pid=pid)
            if short:
                return self._reply(short=short)
            told = self._tell_restored if order["tell_restored"] else None
            move = Move(self._driver, pid, owed.pidfd, order["pairs"], told)
            with self._obligations.counted(), self._reporting(order, [uuid for uuid, _ in order["room"]]):
                if move.unpark() and pid in self._owed_processes:
                    self._forget(pid)
            return self._answer([move])
        finally:
            owed.close()

    def _tell_restored(self) -> None:
        self._reply(restored=True)

    def _answer(self, moves: list[Move]) -> None:
        fields = ("pid", "code", "call", "not_held", "took_s")
        told = [{**{name: getattr(each, name) for name in fields}, "state": each.state()} for each in moves]
        self._reply(moved=told)

    @contextmanager
    def _reporting(self, order: dict[str, Any], uuids: list[str]) -> Iterator[None]:
        """Send the devices' own figures while the driver works, where they are asked for."""
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
                thread.join(REPORTER_S)  # NVML may hang: what is reported late is ignored

    def _report(self, uuids: list[str], done: threading.Event) -> None:
        while not done.wait(REPORT_EVERY_S):
            self._reply(used=self._gauge.used(uuids))

    def bring_back(self) -> None:
        """Bring back every process that is parked temporarily, after the command that they made room for."""
        if self._owed_processes and self._until >= 0:
            ended(self._until, None)
        for pid, owed in self._owed_processes.items():
            if not self._wait_for_room(pid, owed, ROOM_PATIENCE_S, asked=False) and not owed.has_ended():
                Move(self._driver, pid, owed.pidfd).unpark()

    def _shortage(self, pid: int, owed: OwedProcess) -> dict[str, int]:
        """What a restore would miss; one who is only locked has all its memory still."""
        parked = Move(self._driver, pid, owed.pidfd).state() == CHECKPOINTED
        return self._gauge.shortage(owed.room) if parked else {}

    def _wait_for_room(
        self, pid: int, owed: OwedProcess, patience_s: float, *, asked: bool
    ) -> dict[str, int]:
        """What is still missing in the end: a restore that finds too little leaves the process stuck.

        Who *asked* for it ends the wait by closing the socket; otherwise that vram need not be there.
        """
        deadline = time.monotonic() + patience_s
        while (short := self._shortage(pid, owed)) and time.monotonic() < deadline:
            if owed.has_ended(ROOM_EVERY_S) or (asked and hung_up(self._socket)):
                break
        return short


def ended(pidfd: int, wait_s: float | None) -> bool:
    """Whether a process has ended; wait for that at most *wait_s*, or for as long as it takes."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if wait_s is None else wait_s * 1000))


def hung_up(connection: socket.socket) -> bool:
    """Whether the vram at the other end has closed it, or has died."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def send(connection: socket.socket, **fields: object) -> None:
    with suppress(OSError):  # the vram has gone: then the next read of the socket ends it
        connection.send(json.dumps(fields).encode())


def main() -> None:
    os.chdir("/")
    connection = socket.socket(fileno=SOCKET_FD)
    obligations = Obligations()
    try:
        obligations.watch(connection)
        worker = CheckpointServer(connection, CheckpointDriver(), obligations)
    except (Unavailable, RuntimeError) as error:
        send(connection, unavailable=str(error), code=getattr(error, "code", None))
        return
    send(connection, ready=True)
    try:
        worker.serve()
    finally:
        worker.bring_back()
        os._exit(0)  # the driver's library, and threads that hang in it, are not asked
