"""Asks this user's waker, and starts it where none runs."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from vram import folders, untrusted
from vram.children import driver_environment, interpreter, spawn
from vram.errors import BadInput, NotPermitted, TimedOut
from vram.host.local import LocalHost
from vram.model.sleeping import Sleeper, SleepOptions
from vram.reclaim import state
from vram.sleeping import records
from vram.sleeping.protocol import MAX_LINE, PROTOCOL, Verb, WakerAnswer, WakerRefusal, WakerRequest
from vram.sleeping.waker import socket_name

START_S = 20.0
# A move takes seconds to minutes; the waker itself gives up earlier, and says why.
ANSWER_S = 900.0
_PAUSE_S = 0.02


def ask(
    do: Verb,
    targets: Sequence[tuple[int, int]] = (),
    options: SleepOptions | None = None,
    *,
    anyway: bool = False,
) -> tuple[Sleeper, ...]:
    """The waker's answer; one is started where none runs. Raises its refusals, and TimedOut."""
    host = LocalHost()
    request = WakerRequest(do=do, targets=tuple(targets), options=options or SleepOptions(), anyway=anyway)
    with _connected(host) as connection:
        return _exchange(connection, request)


def listed() -> tuple[Sleeper, ...]:
    """All programs that sleep and wake here; none where there is no waker and no record of one."""
    host = LocalHost()
    connection = _connect(host)
    if connection is None and not records.read(host):
        return ()
    with connection or _connected(host) as connection:
        return _exchange(connection, WakerRequest(do="list"))


def _exchange(connection: socket.socket, request: WakerRequest) -> tuple[Sleeper, ...]:
    connection.settimeout(ANSWER_S)
    try:
        connection.sendall(msgspec.json.encode(request) + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline(MAX_LINE)
    except TimeoutError as error:
        raise TimedOut("the waker did not answer in time", hint="`vram sleep` lists what sleeps") from error
    except OSError:
        line = b""
    if not line:
        raise TimedOut(
            "the waker was killed before it answered", hint="`vram sleep` lists what sleeps; try again"
        )
    answer = untrusted.decode(line, WakerAnswer)
    if answer.protocol != PROTOCOL:
        raise BadInput(
            "the waker that runs is of another version of vram", hint="`vram wake --all`, then try again"
        )
    if answer.error is not None:
        raise WakerRefusal(answer.error)
    return answer.sleepers


def _connected(host: LocalHost) -> socket.socket:
    """A connection to the waker, which is started where there is none."""
    deadline = time.monotonic() + START_S
    child = None
    while (connection := _connect(host)) is None:
        if time.monotonic() > deadline:
            raise TimedOut("the process that wakes programs does not start", hint="see `vram doctor`")
        if child is None or child.wait(0.0):
            child = spawn(
                interpreter("vram.sleeping.waker"), driver_environment(), apart="session", link="stream"
            )
        time.sleep(_PAUSE_S)
    return connection


def _connect(host: LocalHost) -> socket.socket | None:
    """None where no waker runs."""
    if not os.path.isdir(state.folder_path()):
        return None
    folder = state.open_folder()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The path may be longer than a socket's address can be.
        made.connect(f"/proc/self/fd/{folder}/{socket_name(host)}")
    except OSError:
        made.close()
        return None
    finally:
        os.close(folder)
    raw = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if not folders.is_trusted_owner(struct.unpack("3I", raw)[1]):
        made.close()
        raise NotPermitted(
            "the waker's socket is another user's", hint="set XDG_STATE_HOME to a folder of yours"
        )
    return made


def identify(pids: Sequence[int]) -> list[tuple[int, int]]:
    """*pids* with their start times. Raises where one must not be touched: judged here, since the waker is no
    child of ours, and would not know our ancestors."""
    from vram.reclaim.identity import identify as identify_one

    host = LocalHost()
    found = [identify_one(host, pid).process for pid in pids]
    return [(each.pid, each.started_at or 0) for each in found]


def is_asleep(pid: int) -> bool:
    """Whether a waker has put *pid* to sleep."""
    with suppress(TimedOut):
        return any(pid in each.pids and each.state != "awake" for each in listed())
    return False
