"""The driver's checkpoint calls, made by a keeper: a process that outlives us to put things right."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from vram.host.local.child import Child
from vram.host.local.keeper_start import Started, start_keeper
from vram.host.local.signals import LocalGrip
from vram.host.ports import Claim, Grip, Watch
from vram.model.parking import CheckpointAnswer, CheckpointState, Share

_LONGEST = 1 << 16
_STATES: tuple[CheckpointState, ...] = ("running", "locked", "parked", "failed")
# cuInit alone takes 0.1 to 2 s, more where a GPU without persistence mode has to wake up.
_START_S = 30.0
_PROMPT_S = 10.0
_DIED = CheckpointAnswer(status="died", message="the process that talks to the driver was killed")


class LocalCheckpoint:
    """Opens keepers; *started* is one that has been started ahead."""

    def __init__(self, started: Started | None = None) -> None:
        self._started = started

    def open(self) -> LocalKeeper:
        started, self._started = self._started, None
        return LocalKeeper(*(started or start_keeper()))


class LocalKeeper:
    """Our end of the line."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self._child = Child(pid, -1)
        self._line = line
        self._ready: CheckpointAnswer | None = None
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
        """End the conversation; whether the keeper has brought back what it owed within *wait_s*."""
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
            self._ready = self._hear(time.monotonic() + _START_S, None)
        if self._ready.status != "ok":
            return self._ready
        try:
            packet = json.dumps({**order, "watch": watch is not None}).encode()
            socket.send_fds(self._line, [packet], descriptors)
        except OSError:
            return _DIED
        return self._hear(time.monotonic() + deadline_s, watch)

    def _hear(self, deadline: float, watch: Watch | None) -> CheckpointAnswer:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            try:
                packet = self._line.recv(_LONGEST)
            except OSError:
                return _DIED
            if not packet:
                return _DIED
            fields = json.loads(packet)
            if "used" not in fields:
                return _answer(fields)
            if watch is not None:
                watch(fields["used"])
        return CheckpointAnswer(status="timeout", message="the driver has not answered in time")


def _answer(fields: dict[str, Any]) -> CheckpointAnswer:
    if "unavailable" in fields:
        return CheckpointAnswer(status="unavailable", message=fields["unavailable"], code=fields["code"])
    if fields.get("ended"):
        return CheckpointAnswer(status="ended", message="the process has ended")
    if "short" in fields:
        return CheckpointAnswer(status="short", state="parked", short=fields["short"])
    code, state = fields.get("code", 0), fields.get("state")
    return CheckpointAnswer(
        status="refused" if code else "ok",
        code=code,
        call=fields.get("call"),
        state=None if state is None else _STATES[state],
        took_s=fields.get("took_s", 0.0),
    )


def _room(shares: Sequence[Share]) -> list[tuple[str, int]]:
    return [(share.uuid, share.nbytes) for share in shares]


def _pidfd(grip: Grip) -> int:
    assert isinstance(grip, LocalGrip), "a process of this machine is held by pidfd"
    return grip.pidfd
