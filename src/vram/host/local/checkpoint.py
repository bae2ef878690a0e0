"""The driver's checkpoint calls, made by a process of ours that outlives us to undo what is unfinished."""

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
from vram.host.local.signals import LocalPidHandle
from vram.host.ports import ClaimFile, PidHandle, Watch
from vram.model.parking import CheckpointAnswer, CheckpointState, GpuShare
from vram.payloads.procfs import read_stat

_LONGEST = 1 << 16
_MOST_ITEMS = 4096
_STATES: tuple[CheckpointState, ...] = ("running", "locked", "parked", "failed")
# cuInit alone takes 0.1 to 2 s, more where a GPU without persistence mode has to wake up.
_START_S = 30.0
_PROMPT_S = 10.0
_DIED = CheckpointAnswer(status="died", message="the process that talks to the driver was killed")


class _Packet(Struct):
    """One message of the worker. It passes on what the driver said, so nothing is taken for granted."""

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
    """Opens checkpoint workers; *started* is one that is running already."""

    def __init__(self, started: Started | None = None) -> None:
        self._started = started

    def open(self) -> LocalCheckpointWorker:
        started, self._started = self._started, None
        try:
            return LocalCheckpointWorker(*(started or start_worker()))
        except OSError as error:
            raise DeviceError(
                f"the process that talks to the driver cannot be started: {error.strerror}",
                hint="check `ulimit -u` and `ulimit -n`",
            ) from error


class LocalCheckpointWorker:
    """Our end of the socket."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._child = Child(pid, -1)
        self._socket = connection
        self._ready: CheckpointAnswer | None = None
        self._order = 0
        self._hung_up = False

    def state(self, pid: int, deadline_s: float = _PROMPT_S) -> CheckpointAnswer:
        return self._ask({"do": "state", "pid": pid}, (), deadline_s)

    def park(
        self,
        handle: PidHandle,
        claim: ClaimFile,
        shares: Sequence[GpuShare],
        *,
        lock_timeout_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        order = {
            "do": "park",
            "pid": handle.pid,
            "room": _room(shares),
            "lock_ms": int(lock_timeout_s * 1000),
        }
        return self._ask(order, (_pidfd(handle), claim.fileno()), deadline_s, watch)

    def unpark(
        self,
        handle: PidHandle,
        claim: ClaimFile,
        shares: Sequence[GpuShare],
        *,
        room_patience_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        order = {"do": "unpark", "pid": handle.pid, "room": _room(shares), "patience_s": room_patience_s}
        return self._ask(order, (_pidfd(handle), claim.fileno()), deadline_s, watch)

    def keep_parked(self, pid: int) -> CheckpointAnswer:
        """Let what is parked stay parked when we are gone."""
        return self._ask({"do": "keep", "pid": pid}, (), _PROMPT_S)

    def until(self, handle: PidHandle) -> CheckpointAnswer:
        """Should we die, let nothing be brought back before this process has ended."""
        return self._ask({"do": "until"}, (_pidfd(handle),), _PROMPT_S)

    def hang_up(self, wait_s: float) -> bool:
        """Close the socket; whether the worker has brought back everything and ended within *wait_s*."""
        if not self._hung_up:
            self._hung_up = True
            self._socket.close()
        return self._child.wait(wait_s)

    def _ask(
        self,
        order: dict[str, Any],
        descriptors: tuple[int, ...],
        deadline_s: float,
        watch: Watch | None = None,
    ) -> CheckpointAnswer:
        if self._ready is None:
            self._ready = self._receive(time.monotonic() + _START_S, None, "cuInit has not returned")
        if self._ready.status != "ok":
            return self._ready
        try:
            self._order += 1
            packet = json.dumps({**order, "order": self._order, "watch": watch is not None}).encode()
            socket.send_fds(self._socket, [packet], descriptors)
        except OSError:
            return _DIED
        return self._receive(time.monotonic() + deadline_s, watch, "the driver has not answered")

    def _receive(self, deadline: float, watch: Watch | None, silence: str) -> CheckpointAnswer:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            try:
                packet = self._socket.recv(_LONGEST)
            except OSError:
                return _DIED
            if not packet:
                return _DIED
            try:
                reply = untrusted.decode(packet, _Packet, most_items=_MOST_ITEMS)
            except untrusted.Rejected as error:
                message = f"the process that talks to the driver sent an unreadable answer: {error}"
                return CheckpointAnswer(status="died", message=message)
            if reply.order != self._order:
                continue  # the answer to an order that was given up
            if reply.used is None:
                return _answer(reply)
            if watch is not None:
                watch(reply.used)
        return CheckpointAnswer(status="timeout", message=f"{silence} in time{self._stuck()}")

    def _stuck(self) -> str:
        """Why the worker cannot end, where nobody can change that."""
        stat = read_stat(self._child.pid)
        stuck = f"; pid {self._child.pid} waits for it in the kernel (state D) and cannot be killed"
        return stuck if stat and stat.state == "D" else ""


def _answer(reply: _Packet) -> CheckpointAnswer:
    if reply.unavailable is not None:
        return CheckpointAnswer(status="unavailable", message=reply.unavailable, code=reply.code)
    if reply.ended:
        return CheckpointAnswer(status="ended", message="the process has exited")
    if reply.short is not None:
        return CheckpointAnswer(status="short", state="parked", short=reply.short)
    if reply.state is not None and reply.state not in range(len(_STATES)):
        message = f"the driver reports a state unknown to this version ({reply.state})"
        return CheckpointAnswer(
            status="unknown", message=message, code=reply.code, call=reply.call, took_s=reply.took_s
        )
    return CheckpointAnswer(
        status="refused" if reply.code else "ok",
        code=reply.code or 0,
        call=reply.call,
        state=None if reply.state is None else _STATES[reply.state],
        took_s=reply.took_s,
    )


def _room(shares: Sequence[GpuShare]) -> list[tuple[str, int]]:
    return [(share.uuid, share.nbytes) for share in shares]


def _pidfd(handle: PidHandle) -> int:
    assert isinstance(handle, LocalPidHandle), "a process of this machine is held by pidfd"
    return handle.pidfd
