"""Asks the service on this machine, over its socket: for `vram serve status`, and for each node of a fleet.

with ServeClient() as client:
    report = client.data("plan", words={"available_bytes": 20 << 30})
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UnsetType

from vram import folders, untrusted
from vram.errors import BadInput, NoService, NotPermitted, TimedOut, VramError
from vram.serve.socket.protocol import SCHEMA, SocketAnswer, WorkerError

SYSTEM_SOCKET = "/run/vram/vram.sock"
CONNECT_S = 5.0
ANSWER_S = 960.0
_MAX_LINE = 20 << 20


class ServiceRefusal(VramError):
    """The service's own error, with its exit code."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.name = error.name
        self.exit_code = error.exit_code  # type: ignore[assignment]


def socket_paths() -> tuple[str, ...]:
    """Where a service is looked for: the machine's, then one of this user's own."""
    from vram.serve.config import default_socket

    return tuple(dict.fromkeys((SYSTEM_SOCKET, default_socket())))


class ServeClient:
    """One request for each connection. Use it with ``with``. *path* None: where services usually are."""

    def __init__(self, path: str | None = None) -> None:
        self._paths = (path,) if path else socket_paths()
        self._socket: socket.socket | None = None

    def __enter__(self) -> ServeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def data(self, do: str, **fields: Any) -> bytes:
        """The last line's data. Raises ServiceRefusal where the service refused."""
        data = b""
        for answer in self.ask(do, **fields):
            if answer.is_last and not isinstance(answer.data, UnsetType):
                data = bytes(answer.data)
        return data

    def ask(self, do: str, *, timeout_s: float | None = ANSWER_S, **fields: Any) -> Iterator[SocketAnswer]:
        """Every line of the answer, as it comes; *timeout_s* is the longest wait for one, None: for ever."""
        self.close()
        self._socket = self._connect()
        request = msgspec.json.encode({"schema": SCHEMA, "do": do, **fields}) + b"\n"
        with suppress(OSError):  # it was turned away: the reason may be there to read
            self._socket.sendall(request)
        self._socket.settimeout(timeout_s)
        with self._socket.makefile("rb") as lines:
            while True:
                answer = untrusted.decode(_line(lines), SocketAnswer)
                if answer.error is not None:
                    raise ServiceRefusal(answer.error)
                yield answer
                if answer.is_last:
                    return

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def _connect(self) -> socket.socket:
        refused = ""
        for path in self._paths:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(CONNECT_S)
            try:
                made.connect(path)
                _require_trusted(made, path)
            except (OSError, VramError) as error:
                made.close()
                if isinstance(error, VramError):
                    raise
                if not isinstance(error, FileNotFoundError):
                    refused = f"{path}: {error.strerror or error}"
                continue
            return made
        where = refused or f"there is no socket at {' or '.join(self._paths)}"
        raise NoService(
            f"no vram service answers here: {where}",
            hint="start one with `vram serve`, or name it: --socket PATH",
        )


def _require_trusted(connection: socket.socket, path: str) -> None:
    """A service of another user could tell anything, and would learn what we ask for."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3I", raw)[1]
    if not folders.is_trusted_owner(uid):
        raise NotPermitted(
            f"at {path} answers {folders.owner_name(uid)}, who is neither root nor you",
            hint="name the right socket: --socket PATH",
        )


def _line(lines: Any) -> bytes:
    try:
        line: bytes = lines.readline(_MAX_LINE)
    except TimeoutError:
        raise TimedOut("the service does not answer", hint="`vram serve status` shows how it is") from None
    except OSError as error:
        raise BadInput(f"the service hung up: {error.strerror}", hint="see its log") from error
    if not line.endswith(b"\n"):
        raise BadInput("the service hung up before its answer was complete", hint="see its log")
    return line
