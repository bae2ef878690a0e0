"""Who is connected over TCP, and who makes room: no client keeps another out, whatever it opens and asks.

On this machine a client is a user, as the kernel says of the other end's socket; elsewhere it is an address.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

from vram.serve.socket.peers import account_of

MAX_CONNECTIONS, MAX_OF_ONE_CLIENT = 64, 16
MAX_PAUSE_S = 0.5
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_ANY = 0xFFFFFFFF
_UID_AT = 16 + 64

Client = int | str
"""A user's account on this machine, or an address."""


def client_at(peer: tuple[Any, ...], here: tuple[Any, ...]) -> Client:
    """Who has the other end of the connection from *peer* to *here*, the names of its two sockets."""
    address = ip_address(str(peer[0]).partition("%")[0])
    if not address.is_loopback:
        return str(address)
    try:
        return account_of(_uid_of(peer, here))
    except (OSError, struct.error):  # it has closed already, or this kernel does not say
        return str(address)


def _uid_of(peer: tuple[Any, ...], here: tuple[Any, ...]) -> int:
    """The uid of the socket from *peer* to *here*, by sock_diag(7), which looks up just this one."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    ends = b"".join(socket.inet_pton(family, each[0]).ljust(16, b"\0") for each in (peer, here))
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY)
    request += struct.pack(">HH", peer[1], here[1]) + ends + struct.pack("=III", 0, _ANY, _ANY)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _REQUEST, 1, 0) + request)
        answer = kernel.recv(4096)
    if struct.unpack_from("=IH", answer)[1] == _ERROR:
        raise OSError(-struct.unpack_from("=i", answer, 16)[0], "the kernel does not know this connection")
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid


class OpenConnection:
    """One connection, and the task that serves it. ``moved_at`` is when bytes were last read or sent."""

    def __init__(self, client: Client, writer: asyncio.StreamWriter) -> None:
        self.client = client
        self.writer = writer
        self.is_waiting = True
        self._task = asyncio.current_task()
        self.moved()

    def moved(self) -> None:
        self.moved_at = asyncio.get_running_loop().time()

    def abort(self) -> None:
        self.writer.transport.abort()
        if self._task is not None:
            self._task.cancel()


class OpenConnections:
    """All that are open. A new one is always let in: for it, one of the same client goes, or of the client
    that has most."""

    def __init__(self) -> None:
        self._open: dict[OpenConnection, None] = {}
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenConnection]:
        return iter(tuple(self._open))

    def add(self, connection: OpenConnection) -> None:
        counts = Counter(each.client for each in self._open)
        if counts[connection.client] >= MAX_OF_ONE_CLIENT:
            self._evict_of(connection.client)
        elif len(self._open) >= MAX_CONNECTIONS:
            self._evict_of(max(counts, key=lambda client: counts[client]))
        self._open[connection] = None

    def remove(self, connection: OpenConnection) -> None:
        self._open.pop(connection, None)

    def _evict_of(self, client: Client) -> None:
        """One that only waits for a request goes first, then the one that has not moved for longest."""
        its = [each for each in self._open if each.client == client]
        chosen = min(its, key=lambda each: (not each.is_waiting, each.moved_at))
        self.evicted += not chosen.is_waiting
        self.remove(chosen)
        chosen.abort()


class Turns:
    """Whose request is answered next: one of each client at a time, by turns.

    Answers are made in the event loop, which does nothing else meanwhile. So a pause follows that is as long
    as the answer took: half of the time is left for all else.
    """

    def __init__(self) -> None:
        self._of_client: dict[Client, tuple[asyncio.Lock, int]] = {}
        self._of_all = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, client: Client) -> AsyncIterator[None]:
        lock, users = self._of_client.get(client, (asyncio.Lock(), 0))
        self._of_client[client] = lock, users + 1
        try:
            async with lock:
                await self._of_all.acquire()
                loop = asyncio.get_running_loop()
                began = loop.time()
                try:
                    yield
                finally:
                    pause_s = min(loop.time() - began, MAX_PAUSE_S)
                    loop.call_later(pause_s, self._of_all.release)
        finally:
            lock, users = self._of_client.pop(client)
            if users > 1:
                self._of_client[client] = lock, users - 1
