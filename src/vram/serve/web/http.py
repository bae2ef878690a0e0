"""A small HTTP/1.1 server for one event loop: GET and HEAD, everything bounded, nothing trusted.

No framework: those that are kept well bring 10 to 30 MiB and a thread pool, and what is needed here is less
than what would have to be switched off (docs/decisions/26-the-service.md). A request that is too long, too
slow, has a body or asks for a host that is not ours gets a sentence and loses its connection. Who does not
read the answer loses it too. Requests that come at once are answered one by one, by turns with other clients.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from socket import gethostname
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from vram.errors import CannotListen
from vram.python_310 import timeout
from vram.report.json import encode
from vram.serve.config import Address
from vram.serve.web.clients import OpenConnection, OpenConnections, Turns, client_at

MAX_HEAD_BYTES = 16 << 10
MAX_HEADERS = 100
MAX_FIELDS = 20
REQUEST_S = 10.0
IDLE_S = 60.0
STALL_S = 3.0
"""Who takes no part of an answer for so long is not waited for."""
_PORTION = 64 << 10
_BACKLOG = 256
JSON_TYPE = "application/json; charset=utf-8"
_SECURITY = (
    "Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; object-src 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
)
_HINTS = {
    errno.EADDRINUSE: "another program uses it, or another vram serve; choose one with --listen HOST:PORT",
    errno.EACCES: "ports below 1024 are root's; choose another with --listen HOST:PORT",
    errno.EADDRNOTAVAIL: "it is no address of this machine; choose another with --listen HOST:PORT",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpRequest(Struct, frozen=True, kw_only=True):
    """What was asked: ``path`` as it was sent, ``query`` decoded, header names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    keeps_open: bool = True


class HttpResponse(Struct, frozen=True, kw_only=True):
    """What is answered. ``headers`` are more than the usual ones."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """The request is refused with *status*; the sentence and the hint are the answer's body."""

    def __init__(self, status: int, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.status, self.hint = status, hint


class _Sentence(Struct, frozen=True):
    error: str
    hint: str = ""


def refusal(
    status: int, sentence: str, hint: str = "", headers: tuple[tuple[str, str], ...] = ()
) -> HttpResponse:
    """An answer that says why there is none."""
    return HttpResponse(status=status, body=encode(_Sentence(sentence, hint)), headers=headers)


def json_response(report: msgspec.Struct, status: int = 200) -> HttpResponse:
    """*report* as JSON; foreign text in it is inert."""
    return HttpResponse(status=status, body=encode(report, compact=True))


Answer = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Listens on some addresses and asks *answer* for each request."""

    def __init__(
        self,
        answer: Answer,
        hosts: Collection[str] = (),
        *,
        request_s: float = REQUEST_S,
        idle_s: float = IDLE_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._answer = answer
        self._request_s, self._idle_s, self._stall_s = request_s, idle_s, stall_s
        self._servers: list[asyncio.Server] = []
        self._open = OpenConnections()
        self._turns = Turns()
        self.hosts = frozenset(each.lower() for each in hosts)
        self.open_paths: frozenset[str] = frozenset()
        """Answered for any host: they name no user and no process."""
        self.quick_paths: frozenset[str] = frozenset()
        """Answered without waiting for a turn: what watches the service is not held up by who uses it."""
        self.answered: Counter[int] = Counter()

    async def listen(self, addresses: Sequence[Address]) -> None:
        """Listen there from now on and nowhere else; raises CannotListen with everything as before."""
        servers: list[asyncio.Server] = []
        kept = dict(zip(self.addresses, self._servers, strict=True))
        try:
            for address in addresses:
                servers.append(kept.pop(address) if address in kept else await self._bind(address))
        except CannotListen:
            for server in servers:
                if server not in self._servers:
                    server.close()
            raise
        for server in kept.values():
            server.close()
        self._servers = servers

    async def _bind(self, address: Address) -> asyncio.Server:
        try:
            return await asyncio.start_server(
                self._serve, address.host, address.port, limit=MAX_HEAD_BYTES, backlog=_BACKLOG
            )
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {address}: {_reason(error)}",
                hint=_HINTS.get(error.errno or 0, "choose another with --listen HOST:PORT"),
            ) from error

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where it listens, with the ports that the kernel chose."""
        return tuple(Address(*server.sockets[0].getsockname()[:2]) for server in self._servers)

    @property
    def connections(self) -> int:
        return len(self._open)

    @property
    def evicted(self) -> int:
        return self._open.evicted

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._open:
            connection.writer.transport.abort()
        self._servers = []

    # ---- one connection ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            client = client_at(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        except (TypeError, ValueError):  # it has gone already
            writer.transport.abort()
            return
        connection = OpenConnection(client, writer)
        self._open.add(connection)
        # What is sent is sent when drain() returns: no answer piles up for a client that does not read.
        writer.transport.set_write_buffer_limits(0)
        try:
            while await self._exchange(reader, connection):
                await asyncio.sleep(0)  # what was sent along with this request waits until others were served
        except (TimeoutError, OSError, EOFError):  # too slow, or gone
            writer.transport.abort()
        finally:
            self._open.remove(connection)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, connection: OpenConnection) -> bool:
        """Take one request and answer it; False where nothing may follow."""
        connection.is_waiting = True
        async with timeout(self._idle_s):
            first = await reader.read(1)
        connection.moved()
        if not first:
            return False
        async with timeout(self._request_s):
            try:
                request = parse_head(first + await _head(reader), self.hosts, self.open_paths)
            except BadRequest as error:
                headers = (("Allow", "GET, HEAD"),) if error.status == 405 else ()
                response = refusal(error.status, str(error), error.hint, headers)
                await self._send(connection, response, keeps_open=False)
                connection.writer.write_eof()
                await _drop(reader)
                return False
            connection.is_waiting = False
            response = await self._take_turn(connection, request)
            await self._send(connection, response, request.method == "GET", keeps_open=request.keeps_open)
        return request.keeps_open

    async def _take_turn(self, connection: OpenConnection, request: HttpRequest) -> HttpResponse:
        if request.path in self.quick_paths:
            return await self._answer(request)
        async with self._turns.turn(connection.client):
            return await self._answer(request)

    async def _send(
        self, connection: OpenConnection, response: HttpResponse, with_body: bool = True, *, keeps_open: bool
    ) -> None:
        self.answered[response.status] += 1
        writer = connection.writer
        writer.write(_head_of(response, keeps_open))
        body = memoryview(response.body if with_body else b"")
        for at in range(0, len(body), _PORTION):
            writer.write(body[at : at + _PORTION])
            await self._taken(connection)
        await self._taken(connection)

    async def _taken(self, connection: OpenConnection) -> None:
        async with timeout(self._stall_s):
            await connection.writer.drain()
        connection.moved()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        sentence = f"the request line and its headers are longer than {MAX_HEAD_BYTES >> 10} KiB"
        raise BadRequest(431, sentence) from error


async def _drop(reader: asyncio.StreamReader) -> None:
    """Read on for a moment: to close with words unread resets the connection, and the answer is lost."""
    with suppress(TimeoutError, OSError):
        async with timeout(0.5):
            for _ in range(64):
                if not await reader.read(_PORTION):
                    return


def _head_of(response: HttpResponse, keeps_open: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *(
            ()
            if any(name == "Cache-Control" for name, _ in response.headers)
            else ("Cache-Control: no-store",)
        ),
        *(f"{name}: {value}" for name, value in response.headers),
        f"Connection: {'keep-alive' if keeps_open else 'close'}",
    ]
    return ("\r\n".join(lines) + "\r\n" + _SECURITY + "\r\n").encode("latin-1")


def _reason(error: OSError) -> str:
    """The kernel's own words; asyncio puts a sentence of its own around them."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


# ---- the head of a request ----


def parse_head(head: bytes, hosts: Collection[str], open_paths: Collection[str] = ()) -> HttpRequest:
    """Read a request line and its headers, up to the empty line; raises BadRequest."""
    lines = head.decode("latin-1")[:-4].split("\r\n")
    method, target, version = _request_line(lines[0])
    headers = _headers(lines[1:])
    if method not in ("GET", "HEAD"):
        raise BadRequest(
            405, f"{method} is not answered here", "reading only: actions go over the Unix socket"
        )
    if headers.get("content-length", "0").strip() != "0" or "transfer-encoding" in headers:
        raise BadRequest(413, "a request here has no body")
    path, _, query = target.partition("?")
    if (version == "HTTP/1.1" or "host" in headers) and path not in open_paths:
        _require_host(headers.get("host", ""), hosts)
    connection = headers.get("connection", "").lower()
    keeps_open = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
    return HttpRequest(method=method, path=path, query=_query(query), headers=headers, keeps_open=keeps_open)


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(400, "this is not a request of HTTP/1.1")
    if not words[1].startswith("/") or not words[1].isascii() or not words[1].isprintable():
        raise BadRequest(400, "the path of the request is not one", "it begins with / and is ASCII")
    return words[0], words[1], words[2]


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise BadRequest(431, f"the request has more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\r" in value or "\0" in value:
            raise BadRequest(400, "malformed header")
        if name in headers and name in ("host", "content-length", "transfer-encoding"):
            raise BadRequest(400, f"the request has two headers {name}")
        headers[name] = value.strip(" \t")
    return headers


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise BadRequest(400, "the query of the request cannot be read", "write it as ?name=value") from error
    query = dict(pairs)
    if len(query) < len(pairs):
        raise BadRequest(400, "the query of the request has a name twice")
    return query


def _require_host(host: str, hosts: Collection[str]) -> None:
    """Refuse names that are not ours: a page elsewhere could point its own name at this address."""
    name = (host.rpartition(":")[0] if re.search(r":[0-9]*\Z", host) else host).lower().rstrip(".")
    if name in ("localhost", gethostname().lower()) or name in hosts or _is_address(name):
        return
    hint = "ask for its address, or add the name to http.hosts in serve.toml"
    raise BadRequest(421, "this service does not answer for the host that was asked for", hint)


def _is_address(name: str) -> bool:
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        ip_address(bare)
    except ValueError:
        return False
    return True
