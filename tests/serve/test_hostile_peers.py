"""Containers and many users against the socket: whose a connection is, and how much of it each gets."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip_without
from tests.patience import must_end
from tests.serve.running import RunningService
from tests.serve.users import needs_root
from vram.serve.socket import peers
from vram.serve.socket.server import MAX_CONNECTIONS, RUNS_PER_MINUTE

pytestmark = needs_root
CLONE_NEWPID, CLONE_NEWUSER = 0x20000000, 0x10000000
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
PLAN = b'{"schema": 1, "do": "plan"}\n'


# ---- the attack: the root of a container connects and exits; its pid becomes one of the machine's ----


class ContainerRoot:
    """Uid 0 in a PID namespace of its own. Its child connects, asks and exits; it waits for the answer."""

    def __init__(self, path: Path) -> None:
        told, tell = os.pipe()
        self._outer = os.fork()
        if self._outer == 0:
            if ctypes.CDLL(None).unshare(CLONE_NEWPID):
                os._exit(1)
            if os.fork():
                os.wait()
                os._exit(0)
            try:
                self._play(path, tell)
            finally:
                os._exit(0)
        os.close(tell)
        self._told = os.fdopen(told)
        line = self._told.readline()
        if not line:
            skip_without("namespaces", "no PID namespace can be made here")
        self.peer_pid = int(line)
        """As the machine counts."""

    def _play(self, path: Path, tell: int) -> None:
        made = socket.socket(socket.AF_UNIX)
        if os.fork() == 0:
            made.connect(str(path))
            made.sendall(PLAN)
            os.write(tell, os.readlink("/proc/self").encode() + b"\n")
            os._exit(0)
        os.wait()
        with made.makefile("rb") as answer:
            os.write(tell, answer.readline())

    def answer(self) -> Any:
        return json.loads(self._told.readline())

    def close(self) -> None:
        self._told.close()
        os.waitpid(self._outer, 0)


@contextmanager
def reused(pid: int) -> Iterator[bool]:
    """Whether a process of ours has *pid* now; somebody else on this machine may have got it first."""
    waiting, ends = os.pipe()
    children: list[int] = []
    while pid not in children and len(children) < 20:
        LAST_PID.write_text(str(pid - 1))
        children.append(os.fork())
        if children[-1] == 0:
            os.close(ends)
            os.read(waiting, 1)
            os._exit(0)
    try:
        yield pid in children
    finally:
        os.close(ends)
        os.close(waiting)
        for child in children:
            os.waitpid(child, 0)


def test_a_containers_root_is_not_the_machines_after_its_pid_was_reused(service: RunningService):
    """The service is stopped meanwhile: it accepts when the pid is that of a process in its namespaces."""
    is_reused = False
    with must_end():
        while not is_reused:
            service.send(signal.SIGSTOP)
            attacker = ContainerRoot(service.socket)
            with reused(attacker.peer_pid) as is_reused:
                service.send(signal.SIGCONT)
                answer = attacker.answer()
            attacker.close()
            assert answer.get("error", {}).get("name") == "NotPermitted", answer
            assert "namespace" in answer["error"]["message"]


# ---- the attack: a user with subordinate uids is 65,536 users ----

FIRST_UID = 200_000
RUN = b'{"schema": 1, "do": "run", "digest": "0"}\n'


@contextmanager
def users_connected(path: Path, count: int, request: bytes = b"") -> Iterator[None]:
    """A process in a user namespace that connects as *count* users, sends *request*, and stays connected."""
    told, tell = os.pipe()
    heard, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(say)
            _play_users(path, count, request, tell, heard)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(heard)
    try:
        if os.read(told, 1) != b".":
            skip_without("namespaces", "no user namespace can be made here")
        for kind in ("uid", "gid"):
            Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {FIRST_UID} 65536")
        os.write(say, b".")
        assert os.read(told, 1) == b"."
        yield
    finally:
        os.close(told)
        os.close(say)
        os.waitpid(pid, 0)


def _play_users(path: Path, count: int, request: bytes, tell: int, heard: int) -> None:
    os.chdir(path.parent)  # which others may enter, and perhaps not the folders above it
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER):
        return
    os.write(tell, b".")
    os.read(heard, 1)
    os.setresuid(0, 0, 0)
    made = []
    for number in range(count):
        os.seteuid(1000 + number)
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].connect(path.name)
        if request:
            with suppress(OSError):  # it was turned away
                made[-1].sendall(request)
                made[-1].recv(1 << 16)
        os.seteuid(0)
    os.write(tell, b".")
    os.read(heard, 1)


def test_a_user_with_many_uids_cannot_keep_root_out(service: RunningService):
    with must_end(), users_connected(service.socket, MAX_CONNECTIONS + 44):
        answers = [asked(service, b'{"schema": 1, "do": "status"}\n') for _ in range(18)]
    assert ["data" in answer for answer in answers] == [True] * 18
    assert service.metrics()["vram_socket_requests_total", "refused"] >= MAX_CONNECTIONS


def asked(service: RunningService, request: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(str(service.socket))
        made.sendall(request)
        return json.loads(made.makefile("rb").readline())


def test_a_user_with_many_uids_cannot_fill_the_audit_log(service: RunningService):
    """What is refused is a line for the first, and a number for all others when the service ends."""
    with must_end(), users_connected(service.socket, 300, RUN):
        pass
    assert service.stop() == 0
    lines = [json.loads(line) for line in (service.state / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["refused"] * 2
    assert lines[0]["peer_uid"] == FIRST_UID + 1000
    assert lines[1]["count"] == RUNS_PER_MINUTE - 1


def test_subordinate_uids_share_one_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listed = tmp_path / "subuid"
    listed.write_text("alice:200000:65536\nbob:300000:10\n\n# a remark\nwrong:x:y\n")
    monkeypatch.setattr(peers, "_SUBORDINATE", str(listed))
    found = [peers.account_of(uid) for uid in (0, 1000, 199_999, 200_000, 265_535, 265_536, 300_009)]
    assert found == [0, 1000, 199_999, peers.OTHERS, peers.OTHERS, 265_536, peers.OTHERS]
    monkeypatch.setattr(peers, "_SUBORDINATE", str(tmp_path / "none"))
    assert peers.account_of(200_000) == 200_000
