"""A thread that answers ``vram trim`` on a private socket, started by the program itself.

It runs nothing that comes over the socket. A request may name one of a few payloads, which are shipped with
vram. The socket is in a folder of this user alone, and a client must be of this user too.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from vram.folders import open_private, state_path
from vram.payloads import delivery
from vram.payloads.procfs import started_at

MAX_REQUEST_LENGTH = 4096
PATIENCE_S = 5.0
ANSWERING_S = 60.0

_lock = threading.Lock()
_serving: dict[str, Any] = {}
_payloads: dict[str, delivery.Answer] = {}


def _load_payloads() -> dict[str, delivery.Answer]:
    """What may be asked for. Loaded when the agent starts: clients that only search for sockets need none."""
    from vram.payloads import inside, trim
    from vram.payloads.tracer import control

    return {"trim": trim.answer, "inside": inside.answer, "tracer.control": control.answer}


def folders() -> list[str]:
    """Folders of agents' sockets, best first: the same list for agents and clients."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    standard = f"/run/user/{os.geteuid()}"
    bases = [runtime] if os.path.isabs(runtime) else []
    bases += [standard] if os.path.isdir(standard) and standard not in bases else []
    return [*(os.path.join(base, "vram") for base in bases), os.path.join(state_path(), "vram", "run")]


def open_folder(path: str, *, make: bool) -> int:
    """A descriptor of *path*; raises OSError unless this user alone can change it and the path to it."""
    return open_private(path, make=make)


def socket_name(pid: int, started_at: int) -> str:
    """With the start time: the next process with this pid has another name."""
    return f"agent-{pid}-{started_at}.sock"


def address(folder: int, name: str) -> str:
    """A path that fits: socket addresses end at 108 bytes, and folders of users may be deep."""
    return f"/proc/self/fd/{folder}/{name}"


def peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the uid at the other end, as the kernel reports them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def start() -> str:
    """Let ``vram trim`` reach this process from now on; return the path of its socket.

    Called again, it does nothing more. Raises OSError where the private folder is missing,
    or is another user's: there is no other place to fall back to.
    """
    with _lock:
        if _serving.get("pid") != os.getpid():
            _payloads.update(_load_payloads())
            _serve(folders()[0])
        return str(_serving["path"])


def _serve(path: str) -> None:
    folder = open_folder(path, make=True)
    name = socket_name(os.getpid(), started_at(os.getpid()) or 0)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    # Linux gives the socket's file this mode; a umask would be changed for every thread.
    os.fchmod(listener.fileno(), 0o600)
    listener.bind(address(folder, name))
    listener.listen(8)
    first = not _serving
    _serving.update(
        pid=os.getpid(), path=os.path.join(path, name), listener=listener, folder=folder, name=name
    )
    if first:
        atexit.register(_leave)
        # A forked child has the socket, but no thread that answers on it.
        os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_loop, args=(listener,), name="vram-agent", daemon=True).start()


def _leave() -> None:
    if _serving.get("pid") == os.getpid():
        with suppress(OSError):
            os.unlink(_serving["name"], dir_fd=_serving["folder"])


def _forget() -> None:
    with suppress(OSError, KeyError):
        _serving["listener"].close()
        os.close(_serving["folder"])
    _serving["pid"] = None


def _loop(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(1.0)  # the program is out of descriptors; it may have some again later
            continue
        with suppress(Exception), connection:
            _answer(connection)


def _answer(connection: socket.socket) -> None:
    if peer(connection)[1] != os.geteuid():
        return
    connection.settimeout(PATIENCE_S)
    request = _read(connection)
    payload = _payloads.get(str(request.get("payload")))
    wanted = request.get("request")
    if payload is None or not isinstance(wanted, dict) or _hung_up(connection):
        return
    wanted.update(pid=os.getpid(), until=float("inf"))
    answer = delivery.answered(payload, wanted)
    until = time.monotonic() + ANSWERING_S
    for portion in delivery.portions(delivery.encode(answer)):
        delivery.send(connection, portion, until)


def _read(connection: socket.socket) -> dict[str, Any]:
    raw = b""
    while not raw.endswith(b"\n") and len(raw) < MAX_REQUEST_LENGTH:
        part = connection.recv(MAX_REQUEST_LENGTH)
        if not part:
            return {}
        raw += part
    request = json.loads(raw)
    return request if isinstance(request, dict) else {}


def _hung_up(connection: socket.socket) -> bool:
    """Whether the client has given up meanwhile: this thread may have waited long for its turn."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
