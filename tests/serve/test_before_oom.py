"""Policy before-oom at work: memory comes back from those who agreed, and from nobody else; none is ended."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.forecast.growing_program import GrowingProgram
from tests.reach.conftest import CACHED, World
from tests.release.conftest import StandIn
from tests.serve.running import RunningService
from tests.serve.users import UsersMachine, needs_root
from vram.virtualgpu import VirtualGpu

AGREES = "VRAM_ALLOW_BEFORE_OOM"
Start = Callable[..., RunningService]


def table(mode: str = "act", more: str = "", **keys: str) -> str:
    said = "".join(f'{name.replace("_", "-")} = "{value}"\n' for name, value in keys.items())
    return f"""
[forecast]
after = "2s"
[[policy]]
name = "room"
do = "before-oom"
mode = "{mode}"
all = true
after = "1s"
readings = 2
{said}
{more}
"""


@pytest.fixture
def place(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[World]:
    (tmp_path / "world").mkdir()
    made = World(virtual_gpu.environment(), tmp_path / "world")
    yield made
    made.close()


@pytest.fixture
def serving(virtual_gpu: VirtualGpu, tmp_path: Path, stack: ExitStack) -> Start:
    def start(policies: str) -> RunningService:
        (tmp_path / "serve.toml").write_text(policies)
        words = ("--config", str(tmp_path / "serve.toml"), "--deadline", "60s")
        return stack.enter_context(RunningService(tmp_path, virtual_gpu, *words))

    return start


def decided(service: RunningService, grow: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The first decision that has been carried out, or that was only made.

    Until there is one the leak grows; what is freed is of the whole GPU, and grows less where that goes on.
    """

    def found() -> list[dict[str, Any]]:
        decisions: list[dict[str, Any]] = service.get("/api/v1/policies")["decisions"]
        if not decisions:
            grow()
        return [each for each in decisions if each["status"] != "decided" or each["verdict"] != "act"]

    first: dict[str, Any] = service.until(found)[-1]
    return first


def charged(service: RunningService, pid: int) -> int:
    rows = service.get("/api/v1/ps")["processes"]
    return sum(row["nbytes"] for row in rows if row["pid"] == pid)


def test_a_cache_comes_back_before_a_leak_fills_the_gpu_and_the_owner_is_written_to(
    serving: Start, place: World, virtual_gpu: VirtualGpu, stack: ExitStack, tmp_path: Path
):
    script = tmp_path / "mail"
    script.write_text(f"#!/bin/sh\ncat >> {tmp_path}/mailed\n")
    script.chmod(0o755)
    agreed = place.subject("reading", **{AGREES: "trim"})
    other = place.subject("reading")
    growing = stack.enter_context(GrowingProgram(virtual_gpu))
    more = f'[policy.notify]\nmail = ["{script}"]\nmail-to = "operator"\n'
    service = serving(table(full_in="60s", more=more))
    done = decided(service, growing.grow)
    assert (done["do"], done["status"]) == ("relieve", "done"), done
    assert [each["pid"] for each in done["targets"]] == [agreed.pid]
    assert [each["pid"] for each in done["told"]] == [growing.pid]
    assert done["freed_bytes"] > 0  # of the GPU, which fills up meanwhile
    service.until(lambda: charged(service, agreed.pid) < CACHED)
    assert charged(service, other.pid) >= CACHED
    assert (agreed.ask()["alive"], other.ask()["alive"]) == (1, 1)
    mailed = (tmp_path / "mailed").read_text()
    assert "is nearly full" in mailed
    assert f"pid {growing.pid}" in mailed
    growing.grow(1)  # it lives, and may go on


def test_a_dry_run_says_whom_it_would_ask_and_touches_nobody(serving: Start, place: World, tmp_path: Path):
    agreed = place.subject("reading", **{AGREES: "trim"})
    service = serving(table("dry-run", min_free="1000GiB"))
    checked = place.vram("serve", "--check-config", "--config", tmp_path / "serve.toml").stdout
    assert re.search(
        rf"now: would trim, ask to release, or put to sleep, pid {agreed.pid} .*: GPU 0 nearly full", checked
    )
    said = decided(service)
    assert (said["verdict"], [each["pid"] for each in said["targets"]]) == ("dry-run", [agreed.pid])
    service.readings(4)
    assert charged(service, agreed.pid) >= CACHED
    log = [json.loads(line) for line in (service.state / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log] == ["decided"]


def test_without_agreement_nobody_is_touched(serving: Start, place: World):
    subject = place.subject("reading", VRAM_ALLOW_PARK="idle")
    service = serving(table(min_free="1000GiB"))
    done = decided(service)
    assert (done["status"], done["targets"]) == ("not-needed", [])
    service.readings(4)
    assert charged(service, subject.pid) >= CACHED


def test_a_server_that_agreed_is_asked_to_release(serving: Start, place: World, stack: ExitStack):
    server = StandIn({**place.environment, AGREES: "trim, release"}, "ollama")
    stack.callback(server.close)
    service = serving(table(min_free="1000GiB"))
    service.until(lambda: charged(service, server.pid))
    before = charged(service, server.pid)
    done = decided(service)
    assert f"release of pid {server.pid}" in done["message"]
    assert done["freed_bytes"] > 0, done
    service.until(lambda: charged(service, server.pid) < before)
    assert "/api/generate" in server.posts()


@needs_root
def test_each_is_asked_with_the_rights_of_its_owner_and_only_where_that_owner_agreed(
    virtual_gpu: VirtualGpu, stack: ExitStack
):
    machine = UsersMachine(virtual_gpu, stack)
    service = machine.start()
    hers = machine.demo("alice", "pools.trim", CACHED, **{AGREES: "trim"})
    hers.go()
    his = machine.demo("bob", "pools.trim", CACHED)
    his.go()
    pids = hers.pids["self"], his.pids["self"]
    (machine.folder / "serve.toml").write_text(table(min_free="1000GiB"))
    service.send(signal.SIGHUP)
    done = decided(service)
    assert [each["pid"] for each in done["targets"]] == [pids[0]]
    assert f"trim of pid {pids[0]}" in done["message"]
    assert machine.audit("alice")
    assert machine.audit("bob") == []
    service.until(lambda: charged(service, pids[0]) < CACHED)
    assert charged(service, pids[1]) >= CACHED
