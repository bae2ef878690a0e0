"""Policies at work: a real service, real ghosts on a virtual GPU, and neighbours that must not notice."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.patience import has_ended, until_ended
from tests.serve.conftest import StartDemo
from tests.serve.running import RunningService
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

JOBS = Path(__file__).parents[1] / "reclaim" / "jobs.py"
ENDING = """
[[policy]]
name = "ghosts"
do = "end-leftovers"
mode = "{mode}"
after = "{after}"
readings = 2
most-per-hour = 50
{more}
[policy.match]
{match}
"""
StartPolicies = Callable[..., RunningService]

needs_root = needs("root", detail="only root can mount")


def table(mode: str = "act", after: str = "1s", more: str = "", match: str = 'min-size = "1GiB"') -> str:
    return ENDING.format(mode=mode, after=after, more=more, match=match)


@pytest.fixture
def serving(virtual_gpu: VirtualGpu, tmp_path: Path, stack: ExitStack) -> StartPolicies:
    """Start a service with these policies."""

    def start(policies: str, **options: Any) -> RunningService:
        (tmp_path / "serve.toml").write_text(policies)
        words = ("--config", str(tmp_path / "serve.toml"), "--deadline", "60s")
        return stack.enter_context(RunningService(tmp_path, virtual_gpu, *words, **options))

    return start


def decisions(service: RunningService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/api/v1/policies")["decisions"]
    return found


def decided(service: RunningService, status: str) -> list[dict[str, Any]]:
    """The decisions of that status, once there is one."""
    found: list[dict[str, Any]] = service.until(
        lambda: [each for each in decisions(service) if each["status"] == status]
    )
    return found


def audit(service: RunningService) -> list[dict[str, Any]]:
    path = service.state / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def child_of(demo: DemoProgram, stack: ExitStack) -> int:
    """A pidfd of the process that will be left over."""
    pidfd = os.pidfd_open(demo.pids["child"])
    stack.callback(os.close, pidfd)
    return pidfd


def lives(pidfd: int) -> bool:
    return not has_ended(pidfd)


class Neighbour:
    """A server that works, with forked workers of its own, in a process group of its own."""

    def __init__(self, gpu: VirtualGpu, stack: ExitStack, executable: str = sys.executable) -> None:
        self.process = gpu.popen(
            [executable, str(JOBS), "server", "1024", "2"],
            env={**os.environ, "PYTHONPATH": str(PROGRAMS)},
            stdin=-1,
            stdout=-1,
            text=True,
            preexec_fn=os.setpgrp,
        )
        stack.callback(self._end)
        self.workers: list[int] = json.loads(self.process.stdout.readline())["workers"]

    def answers(self) -> bool:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return bool(json.loads(self.process.stdout.readline())["alive"] == "5a5a5a5a")

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def test_a_ghost_is_ended_after_the_delay_and_measured_and_a_neighbour_never_notices(
    serving: StartPolicies, virtual_gpu: VirtualGpu, demo: StartDemo, stack: ExitStack
):
    neighbour = Neighbour(virtual_gpu, stack)
    whole = demo("forks.orphan", 3 * GIB)  # parent and child live: nothing of it is left over
    ghost = demo("forks.orphan", 2 * GIB)
    small = demo("forks.orphan", GIB // 4)
    service = serving(table(after="2s"))
    pidfds = {
        name: child_of(each, stack) for name, each in (("ghost", ghost), ("whole", whole), ("small", small))
    }
    service.readings(2)
    began = time.monotonic()
    ghost.kill("parent")
    small.kill("parent")
    until_ended(pidfds["ghost"])
    assert time.monotonic() - began >= 1.9
    (done,) = decided(service, "done")
    assert [each["pid"] for each in done["targets"]] == [ghost.pids["child"]]
    assert done["freed_bytes"] >= 2 * GIB
    assert done["held_s"] >= 2.0
    service.readings(4)
    assert (lives(pidfds["whole"]), lives(pidfds["small"]), neighbour.answers()) == (True, True, True)
    assert all(os.path.exists(f"/proc/{pid}") for pid in neighbour.workers)
    events = [(line["event"], line.get("action")) for line in audit(service)]
    assert events == [("intend", "policy"), ("intend", None), ("outcome", None), ("outcome", None)]
    evidence = audit(service)[0]["decision"]["evidence"]
    assert any("no longer exists" in line for line in evidence)


@pytest.mark.fault(17)
def test_dry_run_says_what_would_be_done_with_its_digest_and_touches_nothing(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack
):
    service = serving(table(mode="dry-run"))
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    (found,) = decided(service, "done")
    assert (found["verdict"], found["message"], len(found["digest"])) == ("dry-run", "only planned", 64)
    service.readings(4)
    assert lives(child)
    assert len(decisions(service)) == 1
    assert [line["event"] for line in audit(service)] == ["decided"]


def test_without_policies_nothing_is_done_and_no_log_is_written(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack
):
    service = serving("")
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    service.until(lambda: service.get("/api/v1/ghosts")["ghosts"])
    service.readings(4)
    assert (lives(child), decisions(service), audit(service)) == (True, [], [])


def test_a_bad_file_keeps_the_old_policies_and_says_so(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack, tmp_path: Path
):
    service = serving(table(mode="dry-run"))
    (tmp_path / "serve.toml").write_text(table(match=""))  # it would act on everything
    service.send(signal.SIGHUP)
    service.until(lambda: "would act on everything" in service.log)
    assert service.get("/api/v1/policies")["policies"][0]["mode"] == "dry-run"
    assert service.metrics()["vram_config_last_reload_successful",] == 0
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    assert decided(service, "done")[0]["verdict"] == "dry-run"
    assert lives(child)
    (tmp_path / "serve.toml").write_text(table())
    service.send(signal.SIGHUP)
    until_ended(child)


def test_an_owner_is_warned_once_with_what_where_and_how_to_free_it(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack, tmp_path: Path
):
    script = tmp_path / "mail"
    script.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/mailed; cat >> {tmp_path}/mailed\n")
    script.chmod(0o755)
    told = f"""
[[policy]]
name = "tell"
do = "warn-owner"
mode = "act"
all = true
after = "1s"
readings = 2
[policy.notify]
mail = ["{script}", "{{user}}"]
mail-to = "operator"
"""
    service = serving(told)
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    (done,) = decided(service, "done")
    assert (done["do"], done["message"]) == ("warn", "mail to operator")
    service.readings(4)
    assert (len(decisions(service)), lives(child)) == (1, True)
    recipient, message = (tmp_path / "mailed").read_text().split("\n", 1)
    assert recipient == "operator"
    assert message.count("Subject:") == 1
    assert f"vram kill {ghost.pids['child']}" in message
    service.close()
    again = serving(told)  # what was said is remembered
    again.readings(8)
    assert decisions(again) == []


@pytest.mark.fault(31)
def test_a_killed_services_successor_waits_again_and_nothing_is_done_twice(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack
):
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    first = serving(table(after="3s"))
    ghost.kill("parent")
    first.until(lambda: first.get("/api/v1/ghosts")["ghosts"])
    first.close()
    began = time.monotonic()
    second = serving(table(after="3s"))
    until_ended(child)
    assert time.monotonic() - began >= 2.9
    assert len(decided(second, "done")) == 1


@needs_root
@pytest.mark.fault(21)
def test_without_room_for_the_log_nothing_is_done_and_readings_go_on(
    serving: StartPolicies, demo: StartDemo, stack: ExitStack, tmp_path: Path
):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    mount = f'mount -t tmpfs -o size=256k,mode=700 none {state}; exec "$@"'
    service = serving(table(), prefix=("unshare", "--mount", "sh", "-ec", mount, "sh"))
    inside = Path(f"/proc/{service.process.pid}/root{state}")
    with suppress(OSError), open(inside / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    (refused, *_) = decided(service, "refused")
    assert "No space" in refused["message"]
    service.readings(3)
    assert lives(child)
    health = {each["name"]: each for each in service.get("/api/v1/health")["parts"]}
    assert (health["policies"]["status"], health["reading"]["status"]) == ("degraded", "ok")
    (inside / "filler").unlink()


PROTECTED = ("Xorg", "nvidia-persistenced", "containerd-shim", "slurmd", "sshd")


@needs_root
@pytest.mark.fault(16)
def test_a_policy_that_matches_everything_as_root_signals_no_part_of_the_system(
    serving: StartPolicies, virtual_gpu: VirtualGpu, demo: StartDemo, stack: ExitStack
):
    mount = 'mount -t tmpfs -o mode=755 none /opt; exec "$@"'
    everything = table(more="all = true", match='commands = ["*"]')
    service = serving(everything, prefix=("unshare", "--mount", "sh", "-ec", mount, "sh"))
    enter = ("nsenter", f"--mount=/proc/{service.process.pid}/ns/mnt", "--")
    left = [_left_by(virtual_gpu, stack, name, enter, service.process.pid) for name in PROTECTED]
    ghost = demo("forks.orphan", 2 * GIB)
    child = child_of(ghost, stack)
    ghost.kill("parent")
    until_ended(child)
    service.readings(6)
    assert [lives(each) for each in left] == [True] * len(PROTECTED)
    assert len(service.get("/api/v1/ghosts")["ghosts"]) == len(PROTECTED)
    touched = {target["pid"] for each in decisions(service) for target in each["targets"]}
    assert touched == {ghost.pids["child"]}


def _left_by(gpu: VirtualGpu, stack: ExitStack, name: str, enter: tuple[str, ...], pid: int) -> int:
    """The forked child of a dead part of the system, which holds its memory; as a pidfd."""
    program = f"/proc/{pid}/root/opt/{name}"
    with open(os.path.realpath(sys.executable), "rb") as source, open(program, "wb") as copy:
        copy.write(source.read())
    os.chmod(program, 0o755)
    home = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}", "PYTHONPATH": str(PROGRAMS)}
    process = gpu.popen(
        [*enter, f"/opt/{name}", str(JOBS), "trainer", "512", "1"],
        env={**os.environ, **home},
        stdin=-1,
        stdout=-1,
        text=True,
        preexec_fn=os.setpgrp,
    )
    (worker,) = json.loads(process.stdout.readline())["workers"]
    pidfd = os.pidfd_open(worker)
    stack.callback(os.close, pidfd)
    stack.callback(process.stdin.close)
    stack.callback(process.stdout.close)
    process.kill()
    process.wait()
    return pidfd


ROUNDS = int(os.environ.get("VRAM_SOAK_ROUNDS", "8"))


@pytest.mark.fault(10)
def test_a_worker_killed_at_any_moment_leaves_nobody_stopped(
    serving: StartPolicies, virtual_gpu: VirtualGpu, demo: StartDemo, stack: ExitStack, tally: Any
):
    """Ghosts come one after the other; the worker that ends each is killed, sooner or later."""
    neighbour = Neighbour(virtual_gpu, stack)
    service = serving(table(more='grace = "1s"'))
    for at in range(ROUNDS):
        ghost = demo("forks.orphan", 2 * GIB)
        child = child_of(ghost, stack)
        ghost.kill("parent")

        def is_over(count: int = at + 1) -> bool:
            return sum(each["status"] != "decided" for each in decisions(service)) >= count

        worker = service.until(lambda is_over=is_over: _worker_of(service) or is_over())
        if worker is not True:  # it was seen before it had ended
            select.select([worker], [], [], 0.4 * at / max(1, ROUNDS - 1))
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)
        service.until(is_over)
        state = _state(ghost.pids["child"])
        landed = decisions(service)[0]["status"] == "failed"
        tally.count(landed=int(landed), wrong=int(state in ("T", "t")))
        assert state not in ("T", "t")
        if lives(child):
            ghost.close()
        assert neighbour.answers()
    assert service.get("/healthz")["status"] == "ok"


def _worker_of(service: RunningService) -> int | None:
    """The worker of the service, as a pidfd."""
    folder = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    for pid in folder.read_text().split():
        with suppress(OSError):
            if b"vram.serve.socket.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return os.pidfd_open(int(pid))
    return None


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
