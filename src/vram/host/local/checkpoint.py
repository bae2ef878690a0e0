"""The driver's checkpoint calls, made by a process of ours that outlives us to undo what is unfinished."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from vram import children, untrusted
from vram.errors import DeviceError
from vram.host.local import start_checkpoint_worker
from vram.host.ports import OnRestored, ParkTarget, PidHandle, Watch
from vram.model.parking import CheckpointAnswer, CheckpointState, GpuShare
from vram.payloads.procfs import read_stat

_MAX_LENGTH = 1 << 16
_MAX_ITEMS = 4096
_STATES: tuple[CheckpointState, ...] = ("running", "locked", "parked", "failed")
# cuInit alone takes 0.1 to 2 s, more where a GPU without persistence mode has to wake up.
_START_S = 30.0
_PROMPT_S = 10.0
_DIED = CheckpointAnswer(status="died", message="the process that talks to the driver was killed")
_ENDED = CheckpointAnswer(status="ended", message="the process has exited")
_UNTOUCHED = CheckpointAnswer(status="ok", state="running")


class _Answer(Struct):
    """What the driver said of one process, or why it was not asked."""

    pid: int = 0
    code: int | None = None
    call: str | None = None
    state: int | None = None
    not_held: str | None = None
    took_s: float = 0.0


class _Packet(_Answer):
    """One message of the worker. It passes on what the driver said, so nothing is taken for granted."""

    order: int = 0
    used: dict[str, int] | None = None
    unavailable: str | None = None
    ended: bool = False
    short: dict[str, int] | None = None
    moved: list[_Answer] | None = None
    restored: bool = False


class LocalCheckpoint:
    """Opens checkpoint workers; *started* is one that is running already."""

    def __init__(self, started: children.Child | None = None) -> None:
        self._started = started

    def open(self) -> LocalCheckpointWorker:
        started, self._started = self._started, None
        try:
            return LocalCheckpointWorker(started or start_checkpoint_worker())
        except OSError as error:
            raise DeviceError(
                f"the process that talks to the driver cannot be started: {error.strerror}",
                hint="check `ulimit -u` and `ulimit -n`",
            ) from error


class LocalCheckpointWorker:
    """Our end of the socket."""

    def __init__(self, child: children.Child) -> None:
        self._child = child
        self._socket = socket.socket(fileno=child.pipe)
        self._ready: CheckpointAnswer | None = None
        self._order = 0
        self._hung_up = False

    def state(self, pid: int, deadline_s: float = _PROMPT_S) -> CheckpointAnswer:
        return _of_one(self._ask({"do": "state", "pid": pid}, (), deadline_s))

    def park(
        self,
        targets: Sequence[ParkTarget],
        *,
        lock_timeout_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> tuple[CheckpointAnswer, ...]:
        order = {
            "do": "park",
            "processes": [{"pid": each.handle.pid, "room": _room(each.shares)} for each in targets],
            "lock_ms": int(lock_timeout_s * 1000),
        }
        descriptors = [number for each in targets for number in (_pidfd(each.handle), each.claim.fileno())]
        answered = self._ask(order, descriptors, deadline_s, watch)
        if isinstance(answered, CheckpointAnswer):
            return (answered,) * len(targets)
        by_pid = {each.pid: _answer(each) for each in answered.moved or ()}
        if answered.ended:
            return tuple(_ENDED if each.handle.pid == answered.pid else _UNTOUCHED for each in targets)
        return tuple(by_pid.get(each.handle.pid, _DIED) for each in targets)

    def unpark(
        self,
        target: ParkTarget,
        *,
        room_patience_s: float,
        deadline_s: float,
        watch: Watch | None = None,
        on_restored: OnRestored | None = None,
    ) -> CheckpointAnswer:
        order = {
            "do": "unpark",
            "pid": target.handle.pid,
            "room": _room(target.shares),
            "patience_s": room_patience_s,
            "pairs": target.pairs,
            "tell_restored": on_restored is not None,
        }
        descriptors = (_pidfd(target.handle), target.claim.fileno())
        return _of_one(self._ask(order, descriptors, deadline_s, watch, on_restored))

    def keep_parked(self, pids: Sequence[int]) -> CheckpointAnswer:
        """Let what is parked stay parked when we are gone."""
        return _of_one(self._ask({"do": "keep", "pids": list(pids)}, (), _PROMPT_S))

    def until(self, handle: PidHandle) -> CheckpointAnswer:
        """Should we die, let nothing be brought back before this process has ended."""
        return _of_one(self._ask({"do": "until"}, (_pidfd(handle),), _PROMPT_S))

    def hang_up(self, wait_s: float) -> bool:
        """Close the socket; whether the worker has brought back everything and ended within *wait_s*."""
        if not self._hung_up:
            self._hung_up = True
            self._socket.close()
        return self._child.wait(wait_s)

    def _ask(
        self,
        order: dict[str, Any],
        descriptors: Sequence[int],
        deadline_s: float,
        watch: Watch | None = None,
        on_restored: OnRestored | None = None,
    ) -> _Packet | CheckpointAnswer:
        """The worker's reply, or why there is none."""
        if self._ready is None:
            ready = self._receive(time.monotonic() + _START_S, None, "cuInit has not returned")
            self._ready = _of_one(ready)
        if self._ready.status != "ok":
            return self._ready
        try:
            self._order += 1
            packet = json.dumps({**order, "order": self._order, "watch": watch is not None}).encode()
            socket.send_fds(self._socket, [packet], descriptors)
        except OSError:
            return _DIED
        silence = "the driver has not answered"
        return self._receive(time.monotonic() + deadline_s, watch, silence, on_restored)

    def _receive(
        self, deadline: float, watch: Watch | None, silence: str, on_restored: OnRestored | None = None
    ) -> _Packet | CheckpointAnswer:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            try:
                packet = self._socket.recv(_MAX_LENGTH)
            except OSError:
                return _DIED
            if not packet:
                return _DIED
            try:
                reply = untrusted.decode(packet, _Packet, most_items=_MAX_ITEMS)
            except untrusted.Rejected as error:
                message = f"the process that talks to the driver sent an unreadable answer: {error}"
                return CheckpointAnswer(status="died", message=message)
            if reply.order != self._order:
                continue  # the answer to an order that was given up
            if reply.restored:
                if on_restored is not None:
                    on_restored()
                continue
            if reply.used is None:
                return reply
            if watch is not None:
                watch(reply.used)
        return CheckpointAnswer(status="timeout", message=f"{silence} in time{self._stuck()}")

    def _stuck(self) -> str:
        """Why the worker cannot end, where no signal can change that."""
        stat = read_stat(self._child.pid)
        stuck = f"; pid {self._child.pid} waits for it in the kernel (state D) and cannot be killed"
        return stuck if stat and stat.state == "D" else ""


def _of_one(reply: _Packet | CheckpointAnswer) -> CheckpointAnswer:
    """What a reply says of the one process that was asked for."""
    if isinstance(reply, CheckpointAnswer):
        return reply
    if reply.unavailable is not None:
        return CheckpointAnswer(status="unavailable", message=reply.unavailable, code=reply.code)
    if reply.ended:
        return _ENDED
    if reply.short is not None:
        return CheckpointAnswer(status="short", state="parked", short=reply.short)
    return _answer(reply.moved[0] if reply.moved else reply)


def _answer(reply: _Answer) -> CheckpointAnswer:
    if reply.state is not None and reply.state not in range(len(_STATES)):
        message = f"the driver reports a state unknown to this version ({reply.state})"
        return CheckpointAnswer(
            status="unknown", message=message, code=reply.code, call=reply.call, took_s=reply.took_s
        )
    status: Literal["ok", "refused", "not-held"] = "refused" if reply.code else "ok"
    return CheckpointAnswer(
        status="not-held" if reply.not_held is not None else status,
        code=reply.code or 0,
        call=reply.call,
        state=None if reply.state is None else _STATES[reply.state],
        message=reply.not_held,
        took_s=reply.took_s,
    )


def _room(shares: Sequence[GpuShare]) -> list[tuple[str, int]]:
    return [(share.uuid, share.nbytes) for share in shares]


def _pidfd(handle: PidHandle) -> int:
    assert isinstance(handle, children.LocalPidHandle), "a process of this machine is held by pidfd"
    return handle.pidfd
