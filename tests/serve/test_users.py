"""Several users, one service as root: each acts on own processes alone, as the kernel says who asks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, has_ended
from tests.serve.users import USERS, UsersMachine, needs_root
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

pytestmark = needs_root


@pytest.fixture
def machine(virtual_gpu: VirtualGpu) -> Iterator[UsersMachine]:
    with ExitStack() as stack:
        yield UsersMachine(virtual_gpu, stack)


def ghost(machine: UsersMachine, user: str, nbytes: int) -> tuple[DemoProgram, int]:
    """A process of *user* that holds the memory of its dead parent; also a pidfd of it."""
    demo = machine.demo(user, "forks.orphan", nbytes)
    child = os.pidfd_open(demo.pids["child"])
    demo.kill("parent")
    return demo, child


def lives(pidfd: int) -> bool:
    return not has_ended(pidfd)


@pytest.mark.fault(15)
def test_a_user_frees_own_leftovers_and_nobody_elses(machine: UsersMachine):
    service = machine.start()
    _, alices = ghost(machine, "alice", 2 * GIB)
    bob, bobs = ghost(machine, "bob", 3 * GIB)
    done = machine.serve("alice", "free", "--yes", "--json", "--deadline", "60s")
    answer = json.loads(done.stdout)
    assert answer["executed"], done.stderr
    assert answer["receipt"]["returned_bytes"] > 2 * GIB
    assert (lives(alices), lives(bobs)) == (False, True)
    assert {step["target"]["uid"] for step in answer["plan"]["steps"]} == {USERS["alice"]}
    # Done as alice: in her own log, and in the service's with her uid.
    assert [line["event"] for line in machine.audit("alice")] == ["intend", "outcome"]
    service.until(lambda: len(machine.audit()) == 2)
    intent, outcome = machine.audit()
    assert (intent["event"], intent["peer_uid"]) == ("intend", USERS["alice"])
    assert (outcome["event"], outcome["token"], outcome["status"]) == ("outcome", intent["token"], "done")
    for pid in (bob.pids["child"], os.getpid(), 1):
        refused = machine.serve(
            "alice", "free", "--pid", pid, "--up-to", "kill", "--yes", "--deadline", "60s"
        )
        assert refused.returncode in (12, 13), refused.stderr
    assert lives(bobs)


def test_a_digest_that_is_not_the_plans_runs_nothing(machine: UsersMachine):
    machine.start()
    _, alices = ghost(machine, "alice", GIB)
    assert machine.serve("alice", "free", "--yes", "--digest", "0" * 64, "--deadline", "60s").returncode == 15
    assert lives(alices)


def test_what_a_client_says_about_itself_is_refused(machine: UsersMachine):
    """There is no word for a user in a request: one is an error, and none is believed."""
    service = machine.start()
    _, bobs = ghost(machine, "bob", GIB)
    code = f"""
import json, socket
for more in ({{"uid": {USERS["bob"]}}}, {{"words": {{"user": "bob"}}}}, {{"words": {{"pids": ["1"]}}}}):
    made = socket.socket(socket.AF_UNIX); made.connect({str(service.socket)!r})
    made.sendall(json.dumps({{"schema": 1, "do": "plan", **more}}).encode() + b"\\n")
    print(made.makefile().readline(), end="")
"""
    process = machine.popen("alice", [sys.executable, "-c", code], stdout=-1, text=True)
    answers = [json.loads(line) for line in process.communicate()[0].splitlines()]
    assert [answer["error"]["name"] for answer in answers] == ["Rejected"] * 3
    assert lives(bobs)


def test_a_peer_in_a_container_may_read_and_not_act(machine: UsersMachine):
    machine.start()
    _, alices = ghost(machine, "root", GIB)
    enter = ("unshare", "--pid", "--fork", "--mount-proc")
    assert machine.serve("root", "status", prefix=enter).returncode == 0
    refused = machine.serve("root", "free", "--yes", prefix=enter)
    assert (refused.returncode, "namespace" in refused.stderr) == (12, True)
    owned = ("unshare", "--user", "--map-root-user")
    refused = machine.serve("alice", "free", "--yes", prefix=owned)
    assert (refused.returncode, "namespace" in refused.stderr) == (12, True)
    assert lives(alices)


PARK = """
[[policy]]
name = "make room"
do = "park-idle"
mode = "act"
after = "1s"
readings = 2
unpark-after = "1s"
[policy.match]
users = ["alice"]
"""
ROOM = "135GiB"


def holds_after_wait(machine: UsersMachine, *command: str) -> list[str]:
    assert machine.service is not None
    return [
        *(sys.executable, "-m", "vram", "wait", "--socket", str(machine.service.socket), ROOM),
        *("--", *command),
    ]


def journal(machine: UsersMachine, user: str) -> list[Path]:
    return sorted((machine.home(user) / ".local" / "state" / "vram").glob("parked-*"))


def test_an_idle_process_whose_owner_allows_it_makes_room_and_comes_back(machine: UsersMachine):
    service = machine.start(PARK)
    allowed = machine.demo("alice", "memory.plain", 8 * GIB, VRAM_ALLOW_PARK="idle")
    other = machine.demo("alice", "memory.plain", GIB // 4)
    waiting = machine.popen(
        "bob", holds_after_wait(machine, "cat"), stdin=-1, stdout=-1, stderr=-1, text=True
    )
    service.until(lambda: journal(machine, "alice"))
    service.until(lambda: ("park", "done") in _statuses(machine))
    (parked,) = json.loads(machine.vram("alice", "park", "--json").stdout)["parked"]
    assert (parked["pid"], parked["state"]) == (allowed.pids["self"], "parked")
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    waiting.stdin.write("it runs\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline() == "it runs\n"
    assert journal(machine, "alice")
    waiting.stdin.close()
    assert waiting.wait(PATIENCE_S) == 0
    service.until(lambda: ("unpark", "done") in _statuses(machine))
    assert journal(machine, "alice") == []
    for demo in (allowed, other):
        demo.go()  # it still has its memory


def _statuses(machine: UsersMachine) -> list[tuple[str, str]]:
    assert machine.service is not None
    found = machine.service.get("/api/v1/policies")["decisions"]
    return [(each["do"], each["status"]) for each in found]


def test_only_the_owner_can_allow_parking(machine: UsersMachine):
    service = machine.start(PARK)
    program = machine.demo("alice", "memory.plain", 8 * GIB)
    pid = program.pids["self"]
    for user in ("bob", "root"):
        refused = machine.serve(user, "allow-park", pid)
        assert (refused.returncode, "not yours" in refused.stderr) == (12, True)
    assert machine.wait("bob", ROOM, "--timeout", "3s").returncode == 21
    assert (_statuses(machine), journal(machine, "alice")) == ([], [])
    assert machine.serve("alice", "allow-park", pid).returncode == 0
    done = machine.wait("bob", ROOM, "--timeout", "110s")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    service.until(lambda: ("unpark", "done") in _statuses(machine))


def test_others_commands_are_shown_as_proc_shows_them(machine: UsersMachine):
    machine.start()
    _, _ = ghost(machine, "alice", GIB)
    status = json.loads(machine.serve("bob", "status", "--json").stdout)
    assert status["you"] == {"uid": USERS["bob"]}
