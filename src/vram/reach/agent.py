"""Ask the agent that the process started itself (vram.agent()): the safest injector, and the fastest."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import msgspec

from vram import untrusted
from vram.errors import NotReachable, TimedOut
from vram.model.inside import Via
from vram.payloads import agent
from vram.reach.payload import MAX_ANSWER_LENGTH, PayloadRequest, RawAnswer
from vram.reach.target_process import TargetProcess

NAME: Via = "agent"


def unavailable_reason(process: TargetProcess) -> str | None:
    """Why the agent cannot be asked; None where it can."""
    if not process.is_ours:
        return "an agent answers only its own user"
    return None if _find(process) else "it has not called vram.agent()"


def run(process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    found = _find(process)
    if found is None:
        raise NotReachable(f"pid {process.pid} runs no vram agent", hint="have it call vram.agent()")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    until = time.monotonic() + deadline_s
    connection.settimeout(deadline_s)
    with connection:
        _connect(connection, process, *found)
        wanted = {"payload": request.payload, "request": request.fields}
        try:
            connection.sendall(msgspec.json.encode(wanted) + b"\n")
        except TimeoutError:
            raise _no_answer(process) from None
        except OSError as error:
            raise _hung_up(process) from error
        return RawAnswer(_answer(connection, process, until))


def _find(process: TargetProcess) -> tuple[str, str] | None:
    """The private folder in which the target's socket lies, and its name there."""
    name = agent.socket_name(process.pid_inside, process.target.process.started_at or 0)
    for path in agent.folders():
        with suppress(OSError):
            folder = agent.open_folder(path, make=False)
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
            if about.st_uid == os.geteuid():
                return path, name
    return None


def _connect(connection: socket.socket, process: TargetProcess, path: str, name: str) -> None:
    try:
        folder = agent.open_folder(path, make=False)
        try:
            connection.connect(agent.address(folder, name))
        finally:
            os.close(folder)
    except OSError as error:
        raise NotReachable(
            f"the agent of pid {process.pid} does not answer: {error.strerror or error}"
        ) from error
    pid, uid = agent.peer(connection)
    if uid != os.geteuid() or pid != process.pid:
        raise NotReachable(
            f"another process (pid {pid}, uid {uid}) answers on the socket of pid {process.pid}",
            hint=f"check who created {os.path.join(path, name)}",
        )


def _answer(connection: socket.socket, process: TargetProcess, until: float) -> bytes:
    try:
        return untrusted.receive(connection, nbytes=MAX_ANSWER_LENGTH, until=until)
    except untrusted.Rejected as error:
        if error.code == "late":
            raise _no_answer(process) from error
        if error.code == "too-large":
            raise NotReachable(f"the agent of pid {process.pid} sends an endless answer") from error
        raise _hung_up(process) from error


def _no_answer(process: TargetProcess) -> TimedOut:
    return TimedOut(
        f"the agent of pid {process.pid} did not answer in time",
        hint="the process is busy in a long call; wait longer with --deadline",
    )


def _hung_up(process: TargetProcess) -> NotReachable:
    return NotReachable(f"the agent of pid {process.pid} closed the connection without an answer")
