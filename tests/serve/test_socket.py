"""The socket under abuse: malformed, oversized, slow, countless requests; folders and sockets of others."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.serve.conftest import StartService
from tests.serve.running import RunningService
from vram.errors import AlreadyRunning, CannotListen, NoService, NotPermitted
from vram.serve.socket.client import ServeClient, ServiceRefusal
from vram.serve.socket.protocol import MAX_REQUEST, RequestedThing, SocketRequest
from vram.serve.socket.server import (
    MAX_OF_ONE_USER,
    REQUESTS_PER_MINUTE,
    Connection,
    RequestBudget,
    SocketServer,
)
from vram.serve.socket.socket_part import ListeningSocket

needs_root = needs("root", detail="only root can make files of other users")


def connected(service: RunningService) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(PATIENCE_S)
    made.connect(str(service.socket))
    return made


def exchanged(service: RunningService, raw: bytes) -> Any:
    """What is answered to *raw*; None where the service hung up."""
    with connected(service) as made:
        with suppress(BrokenPipeError, ConnectionResetError):
            made.sendall(raw)
            made.shutdown(socket.SHUT_WR)
        try:
            line = made.makefile("rb").readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None


def everything(service: RunningService) -> bytes:
    """A request for a whole GPU, of which the driver keeps a part: it waits for ever."""
    total = service.get("/api/v1/why")["gpus"][0]["total_bytes"]
    return b'{"schema": 1, "do": "wait", "nbytes": %d}\n' % total


GOOD = b'{"schema": 1, "do": "status"}\n'
BAD = [
    b"\n",
    b"{}\n",
    b"null\n",
    b"[]\n",
    b'{"schema": 1}\n',
    b'{"schema": 2, "do": "status"}\n',
    b'{"schema": 1, "do": "reset"}\n',
    b'{"schema": 1, "do": "status", "uid": 0}\n',
    b'{"schema": 1, "do": "plan", "words": {"pids": [-1]}}\n',
    b'{"schema": 1, "do": "plan", "words": {"pids": [99999999999999999999]}}\n',
    b'{"schema": 1, "do": "plan", "words": {"goal_bytes": -5}}\n',
    b'{"schema": 1, "do": "plan", "words": {"gpus": "0"}}\n',
    b'{"schema": 1, "do": "plan", "words": {"findings": ["; rm -rf /"]}}\n',
    b'{"schema": 1, "do": "run", "words": {}}\n',
    b'{"schema": 1, "do": "run", "digest": "x", "grace_s": 1e9}\n',
    b'{"schema": 1, "do": "wait"}\n',
    b'{"schema": 1, "do": "wait", "nbytes": 1, "gpus": [-1]}\n',
    b'{"schema": 1, "do": "wait", "nbytes": 99999999999999999}\n',
    b'{"schema": 1, "do": "wait", "nbytes": 1, "gpus": [77]}\n',
    b'{"schema": 1, "do": "allow-park"}\n',
    b'{"schema": 1, "do": "allow-park", "pid": -1}\n',
    b'{"schema": 1, "do": "allow-park", "pid": 4194303}\n',
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\x00\n",
    b'{"schema": 1, "do": "status"',
    b"[" * 60_000 + b"\n",
    b"9" * 5000 + b"\n",
    b"x" * (MAX_REQUEST + 1) + b"\n",
    b"y" * 1_000_000,
]


def test_every_malformed_request_is_answered_by_a_sentence(service: RunningService):
    for raw in BAD:
        answer = exchanged(service, raw)
        assert answer is None or (answer["is_last"] and answer["error"]["message"]), raw[:80]
    assert exchanged(service, GOOD)["data"]["health"]["status"] == "ok"


def test_a_flood_is_turned_away_and_the_service_goes_on(service: RunningService):
    memory = _resident(service)
    answers = [exchanged(service, raw) for raw in (BAD[:26] * 20)]
    assert all(answer is None or "error" in answer for answer in answers)
    assert any("in a minute" in answer["error"]["message"] for answer in answers if answer)
    assert service.get("/healthz")["status"] == "ok"
    assert _resident(service) - memory < 20 << 20


def _resident(service: RunningService) -> int:
    fields = Path(f"/proc/{service.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class InProcess:
    """The server in this very process, with handlers that only note what reaches them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.reached: list[SocketRequest] = []
        self.errors: list[str] = []
        self.listening = ListeningSocket(str(folder / "run" / "vram.sock"))
        handlers = dict.fromkeys(get_args(RequestedThing), self._note)
        self.server = SocketServer(self.listening.socket, handlers, self.errors.append, **options)

    async def _note(self, client: Connection, request: SocketRequest) -> None:
        self.reached.append(request)
        await client.last({"heard": True})

    async def __aenter__(self) -> InProcess:
        self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        self.listening.close()

    async def ask(self, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.listening.path)
        try:
            writer.write(raw)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except OSError:
            return b""
        finally:
            writer.close()


def test_thousands_of_malformed_requests_reach_no_handler_unless_they_are_sound(tmp_path: Path):
    """Bytes flipped and cut at random: each is answered by one line at most, and the server goes on."""

    async def abuse() -> None:
        chance = random.Random(15)
        async with InProcess(tmp_path, budget=RequestBudget(1 << 30)) as place:
            for _ in range(4000):
                raw = bytearray(chance.choice((*BAD[:25], GOOD)))
                for _ in range(chance.randrange(4)):
                    raw[chance.randrange(len(raw))] = chance.randrange(256)
                answer = await place.ask(bytes(raw[: chance.randrange(1, len(raw) + 1)]))
                assert answer == b"" or json.loads(answer)["is_last"]
            assert b"heard" in await place.ask(GOOD)
            assert place.errors == []
            assert {request.schema for request in place.reached} == {1}

    asyncio.run(abuse())


def test_a_slow_sender_is_cut_off_and_holds_up_nobody(tmp_path: Path):
    async def abuse() -> None:
        async with InProcess(tmp_path, request_s=2.0) as place:
            slow = [await asyncio.open_unix_connection(place.listening.path) for _ in range(8)]
            for _, writer in slow:
                writer.write(b'{"schema": 1,')
            assert b"heard" in await place.ask(GOOD)
            for reader, writer in slow:
                answer = json.loads(await asyncio.wait_for(reader.read(), PATIENCE_S))
                assert "within 2 s" in answer["error"]["message"]
                writer.close()

    asyncio.run(abuse())


def test_one_user_cannot_take_all_connections(service: RunningService):
    with ExitStack() as stack:
        for _ in range(MAX_OF_ONE_USER):
            stack.enter_context(connected(service))
        refused = stack.enter_context(connected(service))
        assert "too many" in json.loads(refused.makefile("rb").readline())["error"]["message"]
    service.until(lambda: "data" in (exchanged(service, GOOD) or {}))


def test_budgets_are_of_each_user_and_return():
    budget = RequestBudget()
    for _ in range(REQUESTS_PER_MINUTE):
        assert budget.enter(1000, 5.0) == ""
        budget.leave(1000, 5.0)
    assert "in a minute" in budget.enter(1000, 30.0)
    assert budget.enter(1001, 30.0) == ""
    assert budget.enter(1000, 66.0) == ""


def test_a_waiter_that_goes_away_is_forgotten(service: RunningService):
    with connected(service) as waiting:
        waiting.sendall(everything(service))
        assert json.loads(waiting.makefile("rb").readline())["event"] == "waiting"
        assert service.metrics()["vram_waiters",] == 1
        assert len(exchanged(service, GOOD)["data"]["waiting"]) == 1
    service.until(lambda: service.metrics()["vram_waiters",] == 0)


def test_waiters_of_one_user_are_limited(service: RunningService):
    with ExitStack() as stack:
        answers = []
        for _ in range(5):
            waiting = stack.enter_context(connected(service))
            waiting.sendall(everything(service))
            answers.append(json.loads(waiting.makefile("rb").readline()))
        assert [answer.get("event") for answer in answers] == ["waiting"] * 4 + [None]
        assert "wait already" in answers[-1]["error"]["message"]


def test_room_that_is_there_is_told_at_once(service: RunningService):
    with connected(service) as waiting:
        waiting.sendall(b'{"schema": 1, "do": "wait", "nbytes": 1073741824}\n')
        lines = waiting.makefile("rb")
        assert [json.loads(lines.readline())["event"] for _ in range(2)] == ["waiting", "room"]


def test_whoever_has_an_answer_can_ask_the_next_thing_at_once(service: RunningService):
    """The worker that answered has ended by then, and counts as one of the user's requests no longer."""
    with ServeClient(str(service.socket)) as client:
        for _ in range(5):
            assert client.data("plan")


# ---- where the socket lies ----


def test_the_socket_is_open_to_all_and_gone_afterwards(service: RunningService):
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(service.socket.parent.stat().st_mode) in (0o755, 0o700)
    assert service.stop() == 0
    assert not service.socket.exists()
    assert list(service.socket.parent.iterdir()) == []


@pytest.mark.fault(31)
def test_a_second_service_with_the_same_socket_leaves(service: RunningService, tmp_path: Path):
    with pytest.raises(AssertionError, match="another service answers"):
        RunningService(tmp_path, None, "--state", str(tmp_path / "other"), waits=False)
    assert exchanged(service, GOOD)["data"]["health"]["status"] == "ok"


@pytest.mark.fault(31)
def test_the_socket_of_a_killed_service_is_replaced(start_service: StartService):
    first = start_service()
    first.close()
    assert first.socket.exists()
    assert exchanged(start_service(), GOOD)["data"]["health"]["status"] == "ok"


def made_link(folder: Path) -> None:
    (folder / "vram.sock").symlink_to("/tmp/elsewhere")


def made_file(folder: Path) -> None:
    (folder / "vram.sock").write_text("precious")


def made_dangling(folder: Path) -> None:
    (folder / "vram.sock").symlink_to(folder / "nowhere")


def opened_folder(folder: Path) -> None:
    folder.chmod(0o777)


def opened_sticky_folder(folder: Path) -> None:
    folder.chmod(0o1777)


def foreign_folder(folder: Path) -> None:
    os.chown(folder, 4242, 4242)


def foreign_socket(folder: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(folder / "vram.sock"))
    made.close()
    os.chown(folder / "vram.sock", 4242, 4242)


PREPARED = [
    made_link,
    made_file,
    made_dangling,
    opened_folder,
    opened_sticky_folder,
    pytest.param(foreign_folder, marks=needs_root),
    pytest.param(foreign_socket, marks=needs_root),
]


@pytest.mark.fault(28)
@pytest.mark.parametrize("prepare", PREPARED)
def test_what_others_may_have_prepared_is_refused_and_left_as_it_was(prepare: Any, tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    prepare(folder)
    before = sorted((path.name, path.lstat().st_ino) for path in folder.iterdir())
    with pytest.raises(CannotListen) as caught:
        ListeningSocket(str(folder / "vram.sock"))
    assert caught.value.hint
    assert sorted((path.name, path.lstat().st_ino) for path in folder.iterdir()) == before


def test_a_listening_socket_is_not_taken_over(tmp_path: Path):
    path = str(tmp_path / "run" / "vram.sock")
    first = ListeningSocket(path)
    with pytest.raises(AlreadyRunning):
        ListeningSocket(path)
    first.close()
    ListeningSocket(path).close()
    assert not os.path.lexists(path)


def test_a_path_may_be_longer_than_a_sockets_name(tmp_path: Path):
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    made = ListeningSocket(str(folder / "vram.sock"))
    assert (folder / "vram.sock").is_socket()
    made.close()


# ---- the client ----


def test_without_a_service_the_client_says_so(tmp_path: Path):
    with pytest.raises(NoService) as caught, ServeClient(str(tmp_path / "none")) as client:
        client.data("status")
    assert "vram serve" in caught.value.hint


@needs_root
def test_the_client_does_not_talk_to_a_service_of_another_user(tmp_path: Path):
    tmp_path.chmod(0o755)
    path = tmp_path / "vram.sock"
    ready, listens = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            made = socket.socket(socket.AF_UNIX)
            made.bind(str(path))
            path.chmod(0o777)
            os.setresuid(4242, 4242, 4242)
            made.listen()
            os.write(listens, b"1")
            made.accept()
            signal.pause()
        finally:
            os._exit(0)
    try:
        os.close(listens)
        assert os.read(ready, 1) == b"1"
        with pytest.raises(NotPermitted, match="neither root nor you"), ServeClient(str(path)) as client:
            client.data("status")
    finally:
        os.close(ready)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_refusals_reach_the_user_with_their_exit_code(service: RunningService):
    with ServeClient(str(service.socket)) as client, pytest.raises(ServiceRefusal) as caught:
        client.data("allow-park", pid=1 << 21)
    assert (caught.value.exit_code, bool(caught.value.hint)) == (10, True)
