"""``vram serve free --release``: servers are asked by a worker with the rights of who asks, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.release.conftest import PROGRAM
from tests.release.server_program import CACHE, WEIGHTS
from tests.search_path import search_path
from tests.serve.users import USERS, UsersMachine, needs_root
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

pytestmark = needs_root

ALL = WEIGHTS + CACHE
PATIENT = ("--yes", "--json", "--deadline", "60s")


class UsersServer:
    """A stand-in that runs as *user*."""

    def __init__(self, machine: UsersMachine, user: str, *words: str) -> None:
        more = {"PYTHONPATH": search_path(PROGRAMS)}
        argv = [sys.executable, str(PROGRAM), *words]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = machine.popen(user, argv, more=more, **pipes)
        self.port = json.loads(self._process.stdout.readline())["port"]
        self.pid = self._process.pid

    def end(self) -> list[str]:
        """What was sent to it, but for reads."""
        self._process.kill()
        said = [json.loads(line) for line in self._process.communicate()[0].splitlines()]
        return [each["path"] for each in said if each["method"] == "POST"]


@pytest.fixture
def machine(virtual_gpu: VirtualGpu) -> Iterator[UsersMachine]:
    with ExitStack() as stack:
        made = UsersMachine(virtual_gpu, stack)
        made.start()
        yield made


@pytest.mark.fault(15)
def test_a_user_asks_own_servers_and_nobody_elses(machine: UsersMachine) -> None:
    hers = UsersServer(machine, "alice", "sglang", "backup")
    his = UsersServer(machine, "bob", "vllm")
    done = machine.serve("alice", "free", "--release", *PATIENT)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["receipt"]["returned_bytes"]) == (0, ALL), done.stderr
    assert [step["target"]["uid"] for step in answer["plan"]["steps"]] == [USERS["alice"]]
    for pid in (his.pid, 1):
        refused = machine.serve("alice", "free", "--release", "--pid", pid, *PATIENT)
        assert refused.returncode in (12, 13), refused.stderr
    # What the service did in her name is undone by her own vram: only the log knows what SGLang released.
    undone = machine.vram("alice", "release", "--undo", hers.pid, "--yes", "--json")
    assert undone.returncode == 0, undone.stderr
    assert hers.end() == ["/release_memory_occupation", "/resume_memory_occupation"]
    assert his.end() == []
    asked = [line for line in machine.audit("alice") if line.get("action") in ("release", "release-undo")]
    assert [line["event"] for line in asked] == ["intend", "intend"]
    intent, outcome = machine.audit()[:2]
    assert (intent["peer_uid"], intent["words"]["release"]) == (USERS["alice"], True)
    assert (outcome["token"], outcome["message"]) == (intent["token"], f"{ALL} bytes freed")


def test_root_asks_another_users_server_only_by_name(machine: UsersMachine) -> None:
    his = UsersServer(machine, "bob", "vllm")
    assert json.loads(machine.serve("root", "free", "--release", *PATIENT).stdout)["plan"]["steps"] == []
    named = machine.serve("root", "free", "--release", "--pid", his.pid, *PATIENT)
    assert json.loads(named.stdout)["receipt"]["returned_bytes"] == ALL, named.stderr
    assert his.end() == ["/sleep?level=1"]


def test_nobody_is_asked_unless_that_was_said(machine: UsersMachine) -> None:
    hers = UsersServer(machine, "alice", "vllm")
    machine.serve("alice", "free", "--caches", *PATIENT)
    assert hers.end() == []
