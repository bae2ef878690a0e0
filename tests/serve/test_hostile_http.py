"""Another user against HTTP: clients that never read, and clients that ask without waiting for answers."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException

import pytest

from tests.patience import must_end
from tests.serve.running import RunningService
from tests.serve.users import USERS, needs_root
from vram.serve.web.clients import MAX_OF_ONE_CLIENT, client_at

pytestmark = needs_root
ALICE = USERS["alice"]
HISTORY = b"GET /api/v1/history/waste HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


Attack = Callable[[int, Callable[[], None]], None]
"""Called with the port, and with what it calls as soon as it has begun."""


@contextmanager
def as_alice(attack: Attack, port: int) -> Iterator[None]:
    """A process of alice's that attacks *port*; it has begun when the block is entered, and ends with it."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(ALICE, ALICE, ALICE)
            os.setresuid(ALICE, ALICE, ALICE)
            attack(port, lambda: os.write(tell, b"."))
        finally:
            os._exit(0)
    os.close(tell)
    pidfd = os.pidfd_open(pid)
    try:
        assert os.read(told, 1) == b"."
        yield
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pidfd)
        os.close(told)


def scraped(service: RunningService, count: int) -> int:
    """How many of so many scrapes are answered."""
    found = 0
    for _ in range(count):
        with suppress(OSError, HTTPException):
            found += service.request("/metrics")[0] == 200
    return found


def never_read(port: int, begun: Callable[[], None]) -> None:
    """Ninety clients ask for much and read nothing; who loses its connection comes again."""
    poll = select.poll()
    clients: dict[int, socket.socket] = {}

    def come() -> None:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # or the server's buffer has megabytes
        made.connect(("127.0.0.1", port))
        made.setblocking(False)
        with suppress(OSError):
            made.send(METRICS * 200)
        clients[made.fileno()] = made
        poll.register(made, 0)  # only its end is reported

    for _ in range(90):
        come()
    begun()
    while True:
        for number, _ in poll.poll():
            poll.unregister(number)
            clients.pop(number).close()
            come()


def test_clients_that_never_read_keep_no_scrape_out(service: RunningService):
    with must_end(), as_alice(never_read, service.port):
        assert scraped(service, 160) == 160
        assert service.metrics()["vram_http_connections",] <= MAX_OF_ONE_CLIENT + 2


def pipeline(port: int, begun: Callable[[], None]) -> None:
    """Eight clients send questions to the history without end, and read what comes."""
    clients = [socket.socket() for _ in range(8)]
    for made in clients:
        made.connect(("127.0.0.1", port))
        made.setblocking(False)
        made.send(HISTORY * 500)
    begun()
    while True:
        readable, writable, _ = select.select(clients, clients, ())
        for made in readable:
            with suppress(BlockingIOError):
                made.recv(1 << 20)
        for made in writable:
            with suppress(BlockingIOError):
                made.send(HISTORY * 500)


def test_clients_that_do_not_wait_for_answers_hold_no_scrape_up(service: RunningService):
    """How many of their questions a scrape waits for is counted in test_http.py."""
    with must_end(), as_alice(pipeline, service.port):
        assert scraped(service, 20) == 20


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_client_on_this_machine_is_the_user_whose_socket_it_is(family: int, address: str):
    with socket.socket(family) as listening:
        listening.bind((address, 0))
        listening.listen()

        def connect(port: int, begun: Callable[[], None]) -> None:
            made = socket.socket(family)
            made.connect((address, port))
            begun()
            made.recv(1)

        with as_alice(connect, listening.getsockname()[1]), listening.accept()[0] as accepted:
            assert client_at(accepted.getpeername(), accepted.getsockname()) == ALICE


def test_a_client_elsewhere_is_its_address():
    assert client_at(("192.0.2.1", 5), ("192.0.2.2", 6)) == "192.0.2.1"
    assert client_at(("127.0.0.1", 1), ("127.0.0.1", 2)) == "127.0.0.1"
