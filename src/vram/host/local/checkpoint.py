"""The driver's checkpoint calls, made by a process of ours that outlives us to put things right."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from vram import untrusted
from vram.errors import DeviceError
from vram.host.local.checkpoint_start import Started, start_worker
from vram.host.local.child import Child
from vram.host.local.signals import LocalGrip
from vram.host.ports import Claim, Grip, Watch
from vram.model.parking import CheckpointAnswer, CheckpointState, Share
from vram.payloads.procfs import read_stat

_LONGEST = 1 << 16
_MOST_ITEMS = 4096
_STATES: tuple[CheckpointState, ...] = ("running", "locked", "parked", "failed")
# cuInit alone takes 0.1 to 2 s, more where a GPU without persistence mode has to wake up.
_START_S = 30.0
_PROMPT_S = 10.0
_DIED = CheckpointAnswer(status="died", message="the process that talks to the driver was killed")


class _Packet(Struct):
    """One message of the worker. What it passes on is the driver's, so nothing is taken for granted."""

    order: int = 0
    used: dict[str, int] | None = None
    unavailable: str | None = None
    ended: bool = False
    short: dict[str, int] | None = None
    code: int | None = None
    call: str | None = None
    state: int | None = None
    took_s: float = 0.0


class LocalCheckpoint:
    """Opens checkpoint workers; *started* is one that has been started ahead."""

    def __init__(self, started: Started | None = None) -> None:
        self._started = started

    def open(self) -> LocalCheckpointWorker:
        started, self._started = self._started, None
        try:
            return LocalCheckpointWorker(*(started or start_worker()))
        except OSError as error:
            raise DeviceError(
                f"the process that talks to the driver cannot be started: {error.strerror}",
                hint="see `ulimit -u` and `ulimit -n`",
            ) from error


class LocalCheckpointWorker:
    """Our end of the line."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self._child = Child(pid, -1)
        self._line = line
        self._ready: CheckpointAnswer | None = None
        self._order = 0
        self._hung_up = False

    def state(self, pid: int, deadline_s: float = _PROMPT_S) -> CheckpointAnswer:
        return self._ask({"do": "state", "pid": pid}, (), deadline_s)

    def park(
        self,
        grip: Grip,
        claim: Claim,
        shares: Sequence[Share],
        *,
        lock_timeout_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        order = {"do": "park", "pid": grip.pid, "room": _room(shares), "lock_ms": int(lock_timeout_s * 1000)}
        return self._ask(order, (_pidfd(grip), claim.fileno()), deadline_s, watch)

    def unpark(
        self,
        grip: Grip,
        claim: Claim,
        shares: Sequence[Share],
        *,
        room_patience_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        order = {"do": "unpark", "pid": grip.pid, "room": _room(shares), "patience_s": room_patience_s}
        return self._ask(order, (_pidfd(grip), claim.fileno()), deadline_s, watch)

    def settle(self, pid: int) -> CheckpointAnswer:
        """Let what is parked stay so when we are gone."""
        return self._ask({"do": "settle", "pid": pid}, (), _PROMPT_S)

    def until(self, grip: Grip) -> CheckpointAnswer:
        """Should we die, let nothing be brought back before this process has ended."""
        return self._ask({"do": "until"}, (_pidfd(grip),), _PROMPT_S)

    def hang_up(self, wait_s: float) -> bool:
        """End the conversation; whether the worker has brought back what it owed within *wait_s*."""
        if not self._hung_up:
            self._hung_up = True
            self._line.close()
        return self._child.wait(wait_s)

    def _ask(
        self,
        order: dict[str, Any],
        descriptors: tuple[int, ...],
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        if self._ready is None:
            self._ready = self._hear(time.monotonic() + _START_S, None, "cuInit has not returned")
        if self._ready.status != "ok":
            return self._ready
        try:
            self._order += 1
            packet = json.dumps({**order, "order": self._order, "watch": watch is not None}).encode()
            socket.send_fds(self._line, [packet], descriptors)
        except OSError:
            return _DIED
        return self._hear(time.monotonic() + deadline_s, watch, "the driver has not answered")

    def _hear(self, deadline: float, watch: Watch | None, silence: str) -> CheckpointAnswer:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            try:
                packet = self._line.recv(_LONGEST)
            except OSError:
                return _DIED
            if not packet:
                return _DIED
            try:
                told = untrusted.decode(packet, _Packet, most_items=_MOST_ITEMS)
            except untrusted.Rejected as error:
                message = f"the process that talks to the driver gave an answer that cannot be read: {error}"
                return CheckpointAnswer(status="died", message=message)
            if told.order != self._order:
                continue  # the answer to an order that was given up
            if told.used is None:
                return _answer(told)
            if watch is not None:
                watch(told.used)
        return CheckpointAnswer(status="timeout", message=f"{silence} in time{self._stuck()}")

    def _stuck(self) -> str:
        """What keeps the worker from ending, where that is out of anybody's hands."""
        stat = read_stat(self._child.pid)
        stuck = f"; pid {self._child.pid} waits for it in the kernel (state D) and cannot be ended"
        return stuck if stat and stat.state == "D" else ""


def _answer(told: _Packet) -> CheckpointAnswer:
    if told.unavailable is not None:
        return CheckpointAnswer(status="unavailable", message=told.unavailable, code=told.code)
    if told.ended:
        return CheckpointAnswer(status="ended", message="the process has ended")
    if told.short is not None:
        return CheckpointAnswer(status="short", state="parked", short=told.short)
    if told.state is not None and told.state not in range(len(_STATES)):
        message = f"the driver reports a state that this version does not know ({told.state})"
        return CheckpointAnswer(
            status="unknown", message=message, code=told.code, call=told.call, took_s=told.took_s
        )
    return CheckpointAnswer(
        status="refused" if told.code else "ok",
        code=told.code or 0,
        call=told.call,
        state=None if told.state is None else _STATES[told.state],
        took_s=told.took_s,
    )


def _room(shares: Sequence[Share]) -> list[tuple[str, int]]:
    return [(share.uuid, share.nbytes) for share in shares]


def _pidfd(grip: Grip) -> int:
    assert isinstance(grip, LocalGrip), "a process of this machine is held by pidfd"
    return grip.pidfd
