"""Whom a request reaches, and what an answer may be: identity, sockets, and bytes that nobody promised."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, until_readable
from tests.release.conftest import PROGRAM, ServerWorld
from vram.errors import NoSuchProcess, NotReachable, WorldChanged
from vram.host.local import LocalHost
from vram.reach.http import NoAnswer, ServerAnswer, ServerRequest, ask
from vram.reach.sockets import NotConnected, listeners
from vram.reclaim.identity import identify
from vram.reclaim.server_search import ServerClient, relatives
from vram.reclaim.servers import servers as all_servers
from vram.reclaim.servers.server import Server, get, post

# Listens where it is told, executes itself at a line, and prints every byte that it was sent.
LISTENER = """
import os, select, socket, sys
if sys.argv[2:]:
    listening = socket.socket(fileno=int(sys.argv[2]))
else:
    where = sys.argv[1]
    listening = socket.socket(socket.AF_UNIX) if "/" in where else socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(where if "/" in where else ("127.0.0.1", int(where)))
    listening.listen()
print("ready", flush=True)
while True:
    for each in select.select([listening, sys.stdin], [], [])[0]:
        if each is sys.stdin:
            if not sys.stdin.readline():
                raise SystemExit
            listening.set_inheritable(True)
            again = [sys.executable, "-c", os.environ["PROGRAM"], sys.argv[1], str(listening.fileno())]
            os.execv(sys.executable, again)
        connection, _ = listening.accept()
        print(len(connection.recv(65536)), flush=True)
        connection.close()
"""


class Listening:
    def __init__(self, where: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, where],
            env={**os.environ, "PROGRAM": LISTENER},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def hear(self) -> str:
        assert self.process.stdout is not None
        until_readable(self.process.stdout)
        return self.process.stdout.readline().strip()

    def execute(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.hear() == "ready"

    def client(self) -> ServerClient:
        host = LocalHost()
        pid = self.process.pid
        (listener,) = listeners(pid)
        return ServerClient(host, identify(host, pid), listener, relatives(host, pid).pids)

    def end(self) -> str:
        """Ends it; what it was sent since, by the lengths."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return said


@pytest.fixture
def listening() -> Iterator[Callable[[str], Listening]]:
    made: list[Listening] = []

    def make(where: str = "0") -> Listening:
        made.append(Listening(where))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def later() -> float:
    return time.monotonic() + PATIENCE_S


@pytest.mark.fault(12)
def test_the_port_of_one_that_has_ended_is_not_asked(listening: Callable[..., Listening]) -> None:
    first = listening()
    client = first.client()
    first.process.kill()
    first.process.wait()
    second = listening(str(client.listener.port))
    with pytest.raises(NoSuchProcess):
        client.send(post("/sleep?level=1"), later())
    assert second.end() == ""


@pytest.mark.fault(13)
def test_a_process_that_executed_another_program_is_not_asked(listening: Callable[..., Listening]) -> None:
    """exec keeps the pid, the start time and the socket."""
    server = listening()
    client = server.client()
    server.execute()
    with pytest.raises(WorldChanged):
        client.send(post("/sleep?level=1"), later())
    assert server.end() == ""


def test_a_unix_socket_that_another_process_put_in_its_place(
    listening: Callable[..., Listening], tmp_path: Path
) -> None:
    path = tmp_path / "server.sock"
    server = listening(str(path))
    client = server.client()
    path.unlink()
    other = listening(str(path))
    with pytest.raises(NotConnected, match="another process's socket"):
        client.send(post("/sleep?level=1"), later())
    assert other.hear() == "0"  # the connection was closed, and no byte sent


def test_a_socket_that_was_closed_and_whose_port_another_has(listening: Callable[..., Listening]) -> None:
    server = listening()
    client = server.client()
    before = client.listener
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        moved = type(before)(before.pid, before.inode, before.family, before.address, other.getsockname()[1])
        stolen = ServerClient(LocalHost(), client.target, moved, (before.pid,))
        with pytest.raises(NotConnected, match="another process"):
            stolen.send(post("/sleep?level=1"), later())
        accepted, _ = other.accept()
        with accepted:
            assert accepted.recv(1) == b""


@needs("root", detail="only root may make a network namespace")
def test_a_server_in_another_network(servers: ServerWorld) -> None:
    """There the same address is another server's than here: who holds the memory is asked, nobody else."""
    up = (
        "import fcntl, os, socket, struct, sys\n"
        # As a container has it.
        "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14s', b'lo', 1, b''))\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    argv = ["unshare", "--net", sys.executable, "-c", up, str(PROGRAM), "vllm", "address=0.0.0.0"]
    process = servers.world.popen(argv)
    try:
        assert process.stdout is not None
        until_readable(process.stdout)
        line = process.stdout.readline()
        if not line:
            skip_without("namespaces", "unshare --net is not possible here")
        port = json.loads(line)["port"]
        with socket.create_server(("127.0.0.1", port)) as ours:
            ours.setblocking(False)
            done = servers.world.vram("release", process.pid, "--yes", "--json")
            assert done.returncode == 0, done.stderr
            with pytest.raises(BlockingIOError):
                ours.accept()
    finally:
        process.kill()
        process.communicate()


# ---- answers ----


@contextmanager
def answering(raw: bytes) -> Iterator[socket.socket]:
    """A connection whose other end reads the request, sends *raw* and closes."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with theirs, suppress(OSError):
            theirs.recv(65536)
            theirs.sendall(raw)

    thread = threading.Thread(target=answer)
    thread.start()
    with ours:
        yield ours
    thread.join(PATIENCE_S)


PIECES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chunked\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"\r\n",
        b"-1\r\n",
        b"ffffffffffffffff\r\n",
        b"99999999999999\r\n",
        b"{}",
    ]
)


@given(st.lists(PIECES | st.binary(max_size=20), max_size=12))
def test_any_bytes_are_an_answer_or_none(pieces: list[bytes]) -> None:
    with answering(b"".join(pieces)) as connection:
        try:
            found = ask(connection, "localhost", get("/"), later())
        except NoAnswer:
            return
    assert isinstance(found, ServerAnswer)


def test_an_answer_that_drips_ends_with_the_deadline() -> None:
    """Each byte comes in time, and the whole does not."""
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        with theirs, suppress(OSError):
            theirs.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.01):
                theirs.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with ours, pytest.raises(NoAnswer, match="in time"):
        ask(ours, "localhost", get("/"), time.monotonic() + 0.3)
    ended.set()
    thread.join(PATIENCE_S)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.text(max_size=8)
    | st.sampled_from(
        ["vllm", "sglang", "llamacpp", "triton", "model_repository", "loaded", "READY", "unload"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "owned_by",
                    "is_sleeping",
                    "version",
                    "models",
                    "model",
                    "size_vram",
                    "system",
                    "name",
                    "comfyui_version",
                    "extensions",
                    "state",
                    "id",
                    "status",
                    "value",
                    "success",
                    "error",
                    "loads",
                    "enable_memory_saver",
                    "num_running_reqs",
                    "num_waiting_reqs",
                    "done",
                    "done_reason",
                    "message",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("server", all_servers(), ids=lambda each: each.name)
@given(st.lists(VALUES, min_size=1, max_size=5), st.sampled_from([200, 200, 200, 400, 401, 404, 500]))
def test_no_answer_confuses_a_server_module(server: Server, values: list[Any], status: int) -> None:
    """Whatever is answered: it is that server or not, there is something to ask or a reason."""
    calls = 0

    def answer(request: ServerRequest) -> ServerAnswer:
        nonlocal calls
        calls += 1
        return ServerAnswer(status, json.dumps(values[calls % len(values)]).encode())

    assert isinstance(server.recognise(answer), str | None)
    for act in (
        lambda: server.release(answer, by_us=False),
        lambda: server.undo(answer, ("a/b",), by_us=True),
    ):
        try:
            found = act()
        except NotReachable:
            continue
        assert found.requests
        assert all(each.path.isascii() and " " not in each.path for each in found.requests)
        assert isinstance(server.complaint(found.requests[0], answer(found.requests[0])), str)


def test_names_are_data() -> None:
    """A model's name cannot leave its place in a path or a line."""
    triton = next(each for each in all_servers() if each.name == "Triton")
    index = [{"name": "../../x?y#z\r\nHost: evil", "state": "READY"}]
    found = triton.release(lambda request: ServerAnswer(200, json.dumps(index).encode()), by_us=False)
    (request,) = found.requests
    assert request.path == "/v2/repository/models/..%2F..%2Fx%3Fy%23z%0D%0AHost%3A%20evil/unload"
