"""Policies that put idle programs to sleep, where their owners allow it; a request is answered as ever."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import RunningService
from tests.serve.users import ROOT, UsersMachine, needs_root
from tests.sleeping import programs
from tests.sleeping.conftest import Bedroom, bedroom, get, is_paused, machine, until_wakers_ended
from tests.virtualgpu.programs import source
from vram.virtualgpu import VirtualGpu

__all__ = ["bedroom", "machine"]

ALLOWED = {"VRAM_ALLOW_SLEEP": "idle"}
Start = Callable[..., RunningService]


def table(mode: str = "act", idle: str = "1s", match: str = 'min-size = "1MiB"') -> str:
    return f"""
[[policy]]
name = "night"
do = "sleep-idle"
mode = "{mode}"
after = "1s"
readings = 2
idle = "{idle}"
[policy.match]
{match}
"""


def allowed(bedroom: Bedroom) -> dict[str, str]:
    """The environment of a program of a user's who allows it, and keeps state in a folder of the test's."""
    bedroom.machine.state_home.mkdir(exist_ok=True)
    return {**ALLOWED, "XDG_STATE_HOME": str(bedroom.machine.state_home)}


@pytest.fixture
def serving(bedroom: Bedroom, tmp_path: Path, stack: ExitStack) -> Start:
    def start(policies: str) -> RunningService:
        (tmp_path / "serve.toml").write_text(policies)
        words = ("--config", str(tmp_path / "serve.toml"), "--deadline", "60s")
        return stack.enter_context(RunningService(tmp_path, bedroom.machine.gpu, *words))

    return start


def decisions(service: RunningService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/api/v1/policies")["decisions"]
    return found


def done(service: RunningService, status: str = "done") -> dict[str, Any]:
    """The last decision, once it has come to *status*."""
    found: dict[str, Any] = service.until(
        lambda: [each for each in decisions(service) if each["status"] == status]
    )[0]
    return found


def test_an_idle_program_whose_owner_allows_it_sleeps_and_answers(serving: Start, bedroom: Bedroom) -> None:
    program, port = bedroom.server(**allowed(bedroom))
    other, others_port = bedroom.server()
    service = serving(table())
    decided = done(service)
    assert (decided["do"], [each["pid"] for each in decided["targets"]]) == ("sleep", [program.pid])
    assert decided["freed_bytes"] == decided["nbytes"]
    # Its owner finds it, and it stays asleep: nothing more is decided about it.
    assert bedroom.states() == {program.pid: "asleep"}
    service.readings(6)
    assert len(decisions(service)) == 1
    assert (is_paused(program), is_paused(other)) == (True, False)
    assert get(port, "/wanted") == "before /wanted"
    # And when it is idle again, it sleeps again.
    service.until(lambda: len(decisions(service)) > 1)
    bedroom.until(program, "asleep")
    bedroom.wake(program.pid)
    assert get(others_port, "/other") == "before /other"


def test_a_dry_run_touches_nobody(serving: Start, bedroom: Bedroom, tmp_path: Path) -> None:
    program, port = bedroom.server(**allowed(bedroom))
    service = serving(table("dry-run"))
    checked = bedroom.machine.vram("serve", "--check-config", "--config", tmp_path / "serve.toml").stdout
    assert f"now: would put to sleep, when it has been idle for long enough, pid {program.pid} " in checked
    said = service.until(lambda: decisions(service))
    assert (said[0]["verdict"], [each["pid"] for each in said[0]["targets"]]) == ("dry-run", [program.pid])
    service.readings(4)
    assert len(decisions(service)) == 1
    assert not is_paused(program)
    assert not list(bedroom.folder.glob("waker-*"))
    assert get(port) == "before /"


def test_one_that_works_is_left_alone(serving: Start, bedroom: Bedroom) -> None:
    works = bedroom.machine.program(programs.WORKS, **allowed(bedroom))
    rests = bedroom.machine.program(programs.PIPE, **allowed(bedroom))
    service = serving(table())
    assert [each["pid"] for each in done(service)["targets"]] == [rests.pid]
    service.readings(6)
    assert len(decisions(service)) == 1
    assert not is_paused(works)


def test_what_its_owner_chose_for_it_is_kept(serving: Start, bedroom: Bedroom) -> None:
    program, _ = bedroom.server(**allowed(bedroom))
    bedroom.sleep("--idle", "1d", "--port", 1, "--awake", "7s", program.pid)
    done(serving(table()))
    (listed,) = bedroom.listed()
    assert listed["state"] == "asleep"
    assert listed["options"] == {**listed["options"], "idle_s": 86400.0, "ports": [1], "min_awake_s": 7.0}
    bedroom.wake("--forget", program.pid)


def test_the_service_killed_it_sleeps_on_and_is_woken_by_a_request(serving: Start, bedroom: Bedroom) -> None:
    program, port = bedroom.server(**allowed(bedroom))
    service = serving(table())
    done(service)
    service.close()
    assert bedroom.states() == {program.pid: "asleep"}
    again = serving(table())
    again.readings(6)
    assert decisions(again) == []
    again.close()
    assert bedroom.states() == {program.pid: "asleep"}
    assert get(port, "/later") == "before /later"


def test_what_the_services_own_user_has_asleep_is_counted(
    bedroom: Bedroom, tmp_path: Path, stack: ExitStack
) -> None:
    program, _ = bedroom.server()
    bedroom.machine.worker()
    environment = {"XDG_STATE_HOME": str(bedroom.machine.state_home)}
    running = RunningService(tmp_path, bedroom.machine.gpu, "--deadline", "60s", environment=environment)
    service = stack.enter_context(running)
    service.until(lambda: service.metrics()["vram_sleeping_programs",] == 0)
    bedroom.sleep(program.pid)
    service.until(lambda: service.metrics()["vram_sleeping_programs",] == 1)
    assert service.metrics()["vram_parked_processes",] == 1
    bedroom.wake(program.pid)
    service.until(lambda: service.metrics()["vram_sleeping_programs",] == 0)


NEARLY_FULL = """
[[policy]]
name = "room"
do = "before-oom"
mode = "act"
all = true
after = "1s"
readings = 2
min-free = "1000GiB"
"""


def test_before_a_gpu_is_full_an_idle_one_that_agreed_sleeps(serving: Start, bedroom: Bedroom) -> None:
    def agrees(words: str) -> dict[str, str]:
        state = {key: value for key, value in allowed(bedroom).items() if key not in ALLOWED}
        return {**state, "VRAM_ALLOW_BEFORE_OOM": words}

    rests, port = bedroom.server(**agrees("sleep"))
    works = bedroom.machine.program(programs.WORKS, **agrees("sleep"))
    other, _ = bedroom.server(**agrees("trim"))
    service = serving(NEARLY_FULL)
    decided = done(service)
    assert {each["pid"] for each in decided["targets"]} == {rests.pid, works.pid, other.pid}
    (listed,) = bedroom.listed()
    assert (listed["state"], listed["targets"][0]["process"]["pid"]) == ("asleep", rests.pid)
    assert f"sleep of pid {works.pid}: pid {works.pid} works" in decided["message"]
    assert f"sleep of pid {other.pid}" not in decided["message"]
    assert decided["freed_bytes"] >= sum(share["nbytes"] for share in listed["shares"])
    assert (is_paused(works), is_paused(other)) == (False, False)
    assert get(port, "/wanted") == "before /wanted"


# ---- several users ----


class Hers:
    """A program of a user's that answers over HTTP."""

    def __init__(self, users: UsersMachine, user: str, text: str = programs.HTTP, **more: str) -> None:
        environment = {"PYTHONPATH": str(ROOT / "tests" / "virtualgpu"), **more}
        argv = [sys.executable, "-c", source(text)]
        self.process = users.popen(user, argv, stdin=-1, stdout=-1, text=True, more=environment)
        assert self.told() == "ready"

    def told(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def users(virtual_gpu: VirtualGpu) -> Iterator[UsersMachine]:
    with ExitStack() as stack:
        made = UsersMachine(virtual_gpu, stack)
        yield made
        made.end_programs()
        until_wakers_ended(_state(made, "alice"))


def _state(users: UsersMachine, user: str) -> Path:
    return users.home(user) / ".local" / "state" / "vram"


def _states(users: UsersMachine, user: str) -> dict[int, str]:
    found = users.vram(user, "sleep", "--json")
    assert found.returncode == 0, found.stderr
    listed = json.loads(found.stdout)["sleeping"]
    return {each["targets"][0]["process"]["pid"]: each["state"] for each in listed}


@needs_root
def test_each_is_put_to_sleep_as_its_owner_who_finds_it_and_can_wake_it(users: UsersMachine) -> None:
    service = users.start()
    hers, his = Hers(users, "alice", **ALLOWED), Hers(users, "bob")
    port, _ = hers.told(), his.told()
    users.set_policies(table())
    decided = done(service)
    pid = hers.process.pid
    assert [each["pid"] for each in decided["targets"]] == [pid]
    assert _states(users, "alice") == {pid: "asleep"}
    assert _states(users, "bob") == {}
    waker = _tracer(pid)
    about = os.stat(f"/proc/{waker}")
    assert about.st_uid == os.stat(f"/proc/{pid}").st_uid
    assert Path(f"/proc/{waker}/cgroup").read_text() == Path(f"/proc/{pid}/cgroup").read_text()
    woken = users.vram("alice", "wake", pid)
    assert woken.returncode == 0, woken.stderr
    assert get(port, "/awake") == "before /awake"
    service.until(lambda: _states(users, "alice") == {pid: "asleep"})
    service.close()
    assert os.path.exists(f"/proc/{_tracer(pid)}")
    assert get(port, "/wanted") == "before /wanted"


def _tracer(pid: int) -> int:
    """Who holds its threads."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
    assert found, "nobody traces it"
    return found


@needs_root
def test_only_the_owner_can_allow_it_over_the_socket_and_take_it_back(users: UsersMachine) -> None:
    service = users.start(table())
    hers = Hers(users, "alice")
    pid, _ = hers.process.pid, hers.told()
    for user in ("bob", "root"):
        refused = users.serve(user, "allow-sleep", pid)
        assert (refused.returncode, "not yours" in refused.stderr) == (12, True)
    parks = users.serve("alice", "allow-park", pid)
    assert parks.returncode == 0, parks.stderr
    service.readings(6)
    assert decisions(service) == []
    said = users.serve("alice", "allow-sleep", pid)
    assert said.stdout == f"pid {pid} may be put to sleep when it has been idle\n", said.stderr
    done(service)
    assert users.serve("alice", "allow-sleep", pid, "--revoke").returncode == 0
    assert users.vram("alice", "wake", pid).returncode == 0
    before = len(decisions(service))
    service.readings(6)
    assert len(decisions(service)) == before
