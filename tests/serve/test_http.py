"""The HTTP server alone: whatever comes through a connection, others are answered and nothing grows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import PATIENCE_S, until_async
from vram.errors import CannotListen
from vram.serve.config import Address
from vram.serve.web.clients import MAX_OF_ONE_CLIENT
from vram.serve.web.http import (
    MAX_HEAD_BYTES,
    Answer,
    BadRequest,
    HttpRequest,
    HttpResponse,
    HttpServer,
    parse_head,
)

HERE = Address("127.0.0.1", 0)
LARGE = 4 << 20


async def answer(request: HttpRequest) -> HttpResponse:
    if request.path == "/large":
        return HttpResponse(body=b"x" * LARGE)
    return HttpResponse(body=request.path.encode())


def serving(
    play: Callable[[HttpServer, int], Awaitable[None]], answer: Answer = answer, **options: float
) -> None:
    """Run *play* beside a server."""

    async def run() -> None:
        server = HttpServer(answer, ("gpu.example",), **options)
        await server.listen([HERE])
        try:
            await asyncio.wait_for(play(server, server.addresses[0].port), PATIENCE_S)
        finally:
            await server.close()

    asyncio.run(run())


async def exchange(port: int, words: bytes) -> bytes:
    """Send *words*; everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(words)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def ask(port: int, path: str = "/ok", host: str = "localhost") -> bytes:
    return await exchange(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost : evil\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: yes\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?a=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?a=1&a=2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?" + b"a&" * 50 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 405),
        (b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(words: bytes, status: int) -> None:
    async def play(server: HttpServer, port: int) -> None:
        head, _, body = (await exchange(port, words)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"Connection: close" in head
        assert b'"error"' in body
        assert b"200 OK" in await ask(port)

    serving(play)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9", "[::1]:80", "gpu.example"]
)
def test_names_that_are_ours(host: str) -> None:
    async def play(server: HttpServer, port: int) -> None:
        assert b"200 OK" in await ask(port, host=host)

    serving(play)


def test_open_paths_are_answered_for_any_host_and_no_other() -> None:
    async def play(server: HttpServer, port: int) -> None:
        server.open_paths = frozenset(("/metrics",))
        assert b"200 OK" in await ask(port, "/metrics", host="node1.cluster.example")
        assert b"200 OK" in await ask(port, "/metrics?x=1", host="node1.cluster.example")
        assert b" 421 " in await ask(port, "/metrics/", host="node1.cluster.example")
        assert b" 421 " in await ask(port, "/ok", host="node1.cluster.example")

    serving(play)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_fail_otherwise(head: bytes) -> None:
    for words in (head + b"\r\n\r\n", b"GET /" + head + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with suppress(BadRequest):
            assert parse_head(words, ()).method in ("GET", "HEAD")


def test_every_answer_has_the_headers_that_keep_pages_apart() -> None:
    async def play(server: HttpServer, port: int) -> None:
        head = (await ask(port)).partition(b"\r\n\r\n")[0].decode()
        for line in ("default-src 'self'", "nosniff", "no-referrer", "X-Frame-Options: DENY", "no-store"):
            assert line in head
        assert "Access-Control" not in head

    serving(play)


def test_a_request_of_a_megabyte_is_refused_before_it_is_read() -> None:
    async def play(server: HttpServer, port: int) -> None:
        heard = await exchange(port, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # The connection may be reset while the rest is still being sent.
        assert not heard or heard.startswith(b"HTTP/1.1 431 ")
        assert b"200 OK" in await ask(port)

    serving(play)


def test_a_slow_request_loses_its_connection() -> None:
    async def play(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HT")
        assert await reader.read() == b""
        writer.close()

    serving(play, request_s=0.3)


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def play(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()

    serving(play, idle_s=0.3)


def test_somebody_who_does_not_read_the_answer_costs_a_little_and_is_left() -> None:
    async def play(server: HttpServer, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until_async(lambda: server.connections)
        (connection,) = server._open
        sizes = []

        def is_left() -> bool:
            sizes.append(connection.writer.transport.get_write_buffer_size())
            return not server.connections

        await until_async(is_left)
        assert max(sizes) < 1 << 20
        writer.transport.abort()

    serving(play, request_s=0.5)


@pytest.mark.usefixtures("thousands_of_files")
def test_a_thousand_connections_do_not_keep_a_request_out() -> None:
    async def play(server: HttpServer, port: int) -> None:
        crowd = []
        for number in range(1000):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            if number % 2:
                writer.write(b"GET / HTTP/1.1\r\nHost:")  # a request that never ends
            crowd.append(writer)
            if number % 200 == 0:
                assert b"200 OK" in await ask(port)
        assert b"200 OK" in await ask(port)
        assert server.connections <= MAX_OF_ONE_CLIENT
        for writer in crowd:
            writer.transport.abort()

    serving(play)


def test_requests_that_come_at_once_are_answered_by_turns() -> None:
    """Eight clients that send hundreds of questions without waiting: a scrape waits for a few of them."""
    answered: list[str] = []

    async def slow(request: HttpRequest) -> HttpResponse:
        answered.append(request.path)
        if request.path != "/metrics":
            sum(range(100_000))  # as a question to the history does: nothing else runs meanwhile
        return HttpResponse(body=b"ok")

    async def play(server: HttpServer, port: int) -> None:
        server.quick_paths = frozenset(("/metrics",))
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        for _, writer in crowd:
            writer.write(b"GET /question HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300)
        await until_async(lambda: len(answered) > 20)
        for _ in range(10):
            before = len(answered)
            assert b"200 OK" in await ask(port, "/metrics")
            assert len(answered) - before < 15
        assert len(answered) < 8 * 300, "all were answered before anybody else"
        for _, writer in crowd:
            writer.transport.abort()

    serving(play, answer=slow)


def test_a_connection_stays_open_for_the_next_request() -> None:
    async def play(server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path in (b"/one", b"/two"):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: 4" in head
            assert await reader.readexactly(4) == path
        writer.write(b"HEAD /three HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 6" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

    serving(play)


def test_an_address_that_is_taken_leaves_the_others_as_they_were() -> None:
    async def play(server: HttpServer, port: int) -> None:
        other = HttpServer(answer)
        await other.listen([HERE])
        with pytest.raises(CannotListen, match="address already in use"):
            await server.listen([HERE, other.addresses[0]])
        assert server.addresses[0].port == port
        assert b"200 OK" in await ask(port)
        await other.close()

    serving(play)
