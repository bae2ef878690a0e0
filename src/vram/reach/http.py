"""One HTTP request to a server of this machine, over a connection that was made for it.

The answer is another program's: it has a limit in bytes and an absolute deadline, a redirect is an answer as
any other, and no proxy is asked (``http.client`` reads no environment).
"""

from __future__ import annotations

import http.client
import io
import json
import select
import socket
import time
from typing import Any, Literal, cast

from msgspec import Struct

from vram import untrusted
from vram.errors import VramError

MAX_ANSWER_NBYTES = 4 << 20
MAX_ITEMS = 200_000

Method = Literal["GET", "POST"]
Fault = Literal["late", "too-large", "closed", "not-http"]

_WORDS: dict[Fault, str] = {
    "late": "it did not answer in time",
    "too-large": f"its answer is longer than {MAX_ANSWER_NBYTES >> 20} MiB",
    "closed": "it closed the connection without an answer",
    "not-http": "it does not speak HTTP",
}


class ServerRequest(Struct, frozen=True, kw_only=True):
    """A request; ``body`` is sent as JSON where it is not None. ``model`` is the model that it is about."""

    method: Method
    path: str
    body: dict[str, Any] | None = None
    model: str | None = None

    @property
    def words(self) -> str:
        """As a person would write it."""
        return f"{self.method} {self.path}" + (
            f" {json.dumps(self.body, ensure_ascii=False)}" if self.body else ""
        )


class ServerAnswer(Struct, frozen=True):
    """What a server answered: nothing of it is trusted."""

    status: int
    body: bytes

    def decode(self, kind: Any) -> Any:
        """The body as *kind*; None where it is no JSON of that shape, or the status is not 200."""
        if self.status != http.client.OK:
            return None
        try:
            return untrusted.decode(self.body, kind, most_items=MAX_ITEMS)
        except untrusted.Rejected:
            return None


class NoAnswer(VramError):
    """The request was sent, at least in part, and no usable answer came."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(_WORDS[fault])
        self.fault: Fault = fault


def ask(connection: socket.socket, host: str, request: ServerRequest, until: float) -> ServerAnswer:
    """Send *request* and return the answer. Raises NoAnswer."""
    body = b"" if request.body is None else json.dumps(request.body).encode()
    head = [f"{request.method} {request.path} HTTP/1.1", f"Host: {host}", "Accept: */*", "Connection: close"]
    if request.body is not None:
        head.append("Content-Type: application/json")
    if request.method == "POST":
        head.append(f"Content-Length: {len(body)}")
    reader = _Reader(connection, until)
    try:
        connection.settimeout(max(0.001, until - time.monotonic()))
        connection.sendall("\r\n".join((*head, "", "")).encode("ascii") + body)
        response = http.client.HTTPResponse(cast("socket.socket", reader), method=request.method)
        response.begin()
        # Never without a limit: it would take the memory that a header promises.
        found = response.read(MAX_ANSWER_NBYTES + 1)
        if response.length:
            raise NoAnswer("closed")
        return ServerAnswer(response.status, found)
    except TimeoutError as error:
        raise NoAnswer("late") from error
    except http.client.RemoteDisconnected as error:
        raise NoAnswer("closed") from error
    except http.client.IncompleteRead as error:
        raise NoAnswer("closed") from error
    except (http.client.HTTPException, ValueError) as error:
        raise NoAnswer("not-http") from error
    except OSError as error:
        raise NoAnswer("closed") from error


class _Reader(io.RawIOBase):
    """The answer as ``http.client`` reads it, within the limits."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until, self._left = connection, until, MAX_ANSWER_NBYTES
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until - time.monotonic()
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise NoAnswer("late")
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise NoAnswer("too-large")
        return count
