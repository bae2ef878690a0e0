"""``vram free --release``: servers are asked before caches are trimmed, and only where that was said."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.release.conftest import LOOKS, ServerWorld
from tests.release.server_program import CACHE, WEIGHTS

ALL = WEIGHTS + CACHE


def free(servers: ServerWorld, *words: str) -> dict[str, Any]:
    done = servers.vram("free", *words, "--json")
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["exit code"] = done.returncode
    return answer


@pytest.fixture
def named_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder names a server: a process that looks like none is not even asked what it is."""
    folder = tmp_path / "ComfyUI"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("named_like_one")
def test_a_server_is_asked_and_measured(servers: ServerWorld) -> None:
    server = servers.start("ollama")
    shown = free(servers, "--release", "--dry-run")
    (step,) = shown["plan"]["steps"]
    assert (step["kind"], step["via"]) == ("release", f"ollama at 127.0.0.1:{server.port}")
    assert (step["predicted_bytes"], step["reversible"]) == (ALL, False)
    assert server.posts() == []
    done = free(servers, "--release", "--yes")
    assert (done["exit code"], done["receipt"]["returned_bytes"]) == (0, ALL)
    assert done["plan"]["digest"] == shown["plan"]["digest"]
    assert server.posts() == ["/api/generate"] * 2


@pytest.mark.usefixtures("named_like_one")
@pytest.mark.parametrize(
    "words", [(), ("--caches",), ("1GiB",), ("--pid", "PID"), ("--pid", "PID", "--more", "1GiB")]
)
def test_nobody_is_asked_unless_that_was_said(servers: ServerWorld, words: tuple[str, ...]) -> None:
    server = servers.start("vllm")
    servers.vram(
        "free", "--dry-run", "--json", *(str(server.pid) if each == "PID" else each for each in words)
    )
    assert server.heard == []


@pytest.mark.usefixtures("named_like_one")
def test_before_caches(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    subject = servers.world.subject("reading", "agent")
    shown = free(servers, "--release", "--caches", "--dry-run")
    kinds = [(step["kind"], step["target"]["process"]["pid"]) for step in shown["plan"]["steps"]]
    assert kinds[0] == ("release", server.pid)
    assert ("trim", subject.pid) in kinds


@pytest.mark.usefixtures("named_like_one")
def test_a_goal_is_met_by_a_server_that_says_what_it_has(servers: ServerWorld) -> None:
    servers.start("ollama")
    done = free(servers, "--more", "1GiB", "--release", "--yes")
    assert (done["exit code"], [each["status"] for each in done["receipt"]["outcomes"]]) == (0, ["done"])


def test_a_process_that_looks_like_no_server_is_not_asked(
    servers: ServerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(LOOKS, "unknown")
    server = servers.start("unknown")
    assert free(servers, "--release", "--dry-run")["plan"]["steps"] == []
    assert server.heard == []


@pytest.mark.usefixtures("named_like_one")
def test_one_server_with_several_processes_is_asked_once(servers: ServerWorld) -> None:
    server = servers.start("vllm", "front")
    shown = free(servers, "--release", "--dry-run")
    (step,) = shown["plan"]["steps"]
    assert step["target"]["process"]["pid"] == server.child
    done = free(servers, "--release", "--yes")
    assert done["receipt"]["returned_bytes"] == ALL
    assert server.posts() == ["/sleep?level=1"]


@pytest.mark.usefixtures("named_like_one")
def test_each_of_its_processes_leads_to_the_same_server(servers: ServerWorld) -> None:
    server = servers.start("vllm", "front", "both")
    shown = free(servers, "--release", "--dry-run")
    (step,) = shown["plan"]["steps"]
    assert step["target"]["process"]["pid"] in (server.pid, server.child)
    assert free(servers, "--release", "--yes")["receipt"]["returned_bytes"] == 2 * ALL


@pytest.mark.usefixtures("named_like_one")
def test_a_goal_with_a_server_that_does_not_say_what_it_has(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    done = free(servers, "--more", "1GiB", "--release", "--yes")
    assert (done["exit code"], done["receipt"]["returned_bytes"], server.posts()) == (
        0,
        ALL,
        ["/sleep?level=1"],
    )


@pytest.mark.usefixtures("named_like_one")
def test_a_server_that_refuses_is_said_and_fails(servers: ServerWorld) -> None:
    servers.start("triton", "no-explicit")
    done = free(servers, "--release", "--yes")
    (outcome,) = done["receipt"]["outcomes"]
    assert (done["exit code"], outcome["status"]) == (3, "failed")
    assert "--model-control-mode=explicit" in outcome["message"]


@pytest.mark.usefixtures("named_like_one")
def test_a_server_that_dies_stops_the_plan(servers: ServerWorld) -> None:
    servers.start("vllm", "dies")
    done = free(servers, "--release", "--yes")
    assert (done["exit code"], done["receipt"]["outcomes"][0]["status"]) == (3, "failed")


@pytest.mark.usefixtures("named_like_one")
def test_a_plan_in_a_file_is_for_the_server_that_it_was_made_for(
    servers: ServerWorld, tmp_path: Path
) -> None:
    server = servers.start("ollama")
    plan = str(tmp_path / "plan.json")
    free(servers, "--release", "--dry-run", "--save", plan)
    server.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    servers.start("ollama")
    done = servers.vram("free", "--plan", plan, "--yes")
    assert done.returncode == 15, done.stderr
