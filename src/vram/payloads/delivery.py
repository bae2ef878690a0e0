"""What every payload shares inside another process: whether it may still run, and how its answer is sent.

Runs inside other people's programs, in a thread of its own: standard library only, nothing printed,
nothing raised. It connects to vram's socket and waits there for "go". A vram that has given up, or has died,
has closed the socket, and then nothing is done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .pace import Pace

if TYPE_CHECKING:
    from typing import TypeAlias  # since Python 3.10

Answer: TypeAlias = "Callable[[dict[str, Any], Pace], dict[str, Any]]"

GO = b"go\n"
PORTION_NBYTES = 1 << 18
MAX_NOTE_LENGTH = 300
MSG_NOSIGNAL = 0x4000


def answered(answer: Answer, request: dict[str, Any], pace: Pace | None = None) -> dict[str, Any]:
    """What the payload answers; where it must not run, or fails, an answer that says why.

    *pace* measures already where the payload's own modules had to be loaded first. Every answer says for how
    long another thread of the program waited at most ("waited_s").
    """
    reason = why_cancelled(request)
    if reason:
        return {"status": "cancelled", "notes": [reason]}
    pace = Pace().begin() if pace is None else pace
    try:
        told = answer(request, pace)
    except Exception as error:
        told = {"status": "failed", "notes": [f"{type(error).__name__}: {error}"[:MAX_NOTE_LENGTH]]}
    finally:
        pace.end()
    return {**told, "waited_s": pace.waited_s}


def why_cancelled(request: dict[str, Any]) -> str | None:
    """Why this must not run any more. A forked child has its parent's memory, and with it the request."""
    if os.getpid() != request["pid"]:
        return "this is not the process that was meant"
    if time.monotonic() > request["until"]:
        return "it came too late"
    return None


def deliver(answer: Answer, request: dict[str, Any], pace: Pace | None = None) -> None:
    """Ask for permission on the socket in the folder that *request* names, and answer there.

    Or over the "connection" that brought this payload: then the contents of the "files" in the request come
    first, and lie in files in memory while it is answered.
    """
    made: list[int] = []
    connection = request.pop("connection", None)
    if why_cancelled(request):
        return
    if connection is None:
        connection = connect(request["folder"], request["until"])
    try:
        if pace is not None:
            pace.mark()
        for name, nbytes in request.pop("files", ()):
            content = receive(connection, nbytes)
            if len(content) < nbytes:
                return
            made.append(memory_file(os.path.basename(request[name]), content))
            # No program spells it so: the loader takes a library whose path it knows for that one.
            request[name] = f"/proc/self/fd/./{made[-1]}"
        if receive(connection, len(GO)) != GO:
            return
        if pace is not None:
            pace.resume()
        for portion in portions(encode(answered(answer, request, pace))):
            send(connection, portion, request["until"])
    finally:
        for file in made:
            os.close(file)
        connection.close()
        forget_this_thread()


def memory_file(name: str, content: bytes) -> int:
    """A file without a place in any file system, for a program that sees none of vram's."""
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    return file


def connect(path: str, until: float) -> Any:
    import _socket  # socket would import three more modules into the program

    close_on_exec = 0o2000000
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | close_on_exec)
    connection.settimeout(max(0.001, until - time.monotonic()))
    # Addresses of sockets end at 108 bytes; folders of users may be deeper.
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/answers")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def receive(connection: Any, nbytes: int) -> bytes:
    """So many bytes, or fewer where the other side closes the connection."""
    heard = b""
    while len(heard) < nbytes:
        part = connection.recv(nbytes - len(heard))
        if not part:
            break
        heard += part
    return heard


def send(connection: Any, portion: bytes, until: float) -> None:
    rest = memoryview(portion)
    while rest:
        connection.settimeout(max(0.001, until - time.monotonic()))
        # vram may die while it is sent: a program with the default action for SIGPIPE must not die of that.
        rest = rest[connection.send(rest, MSG_NOSIGNAL) :]


def encode(answer: dict[str, Any]) -> Iterator[str]:
    """JSON in pieces: one call for everything would keep other threads from running meanwhile."""
    separator = "{"
    for key, value in answer.items():
        yield f"{separator}{json.dumps(key)}:"
        separator = ","
        if isinstance(value, (list, tuple)) and value:
            for number, each in enumerate(value):
                yield ("," if number else "[") + json.dumps(each)
            yield "]"
        else:
            yield json.dumps(value)
    yield "}\n" if answer else "{}\n"


def portions(pieces: Iterator[str]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    nbytes = 0
    for piece in pieces:
        gathered.append(piece.encode())
        nbytes += len(gathered[-1])
        if nbytes >= PORTION_NBYTES:
            yield b"".join(gathered)
            gathered, nbytes = [], 0
    yield b"".join(gathered)


def forget_this_thread() -> None:
    """Remove the entry that ``threading`` makes, and keeps, for a thread that it did not start."""
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return
    number = threading.get_ident()
    with threading._active_limbo_lock:
        if isinstance(threading._active.get(number), threading._DummyThread):
            del threading._active[number]
