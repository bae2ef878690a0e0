"""Every ghost ended on real hardware, its bytes read from the device.

python -m pytest --real-gpu -s tests/hardware/test_free.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.reclaim.conftest import Bench
from tests.reclaim.test_free import BY_NAME, GHOSTS, all_ghosts_freed, ghost
from tests.reclaim.test_shared_machine import EVERYBODY, play, require_only_leftovers_gone
from vram.units import GIB, MIB
from vram.virtualgpu.demos import PROGRAMS

pytestmark = pytest.mark.gpu

DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "import driver, protocol; driver.context(); driver.alloc(2 << 30)\n"
    "protocol.ready('deaf'); protocol.wait()"
)


@pytest.fixture
def bench(tmp_path: Path):
    place = Bench(dict(os.environ), tmp_path / "state", real=True)
    yield place
    place.close()


def free(bench: Bench, *words: str) -> tuple[dict[str, Any], float]:
    """Run it, and the seconds from the command's start to its end."""
    began = time.monotonic()
    answer = bench.ask(*words)
    return answer, time.monotonic() - began


def figures(answer: dict[str, Any], took_s: float) -> dict[str, Any]:
    receipt = answer["receipt"]
    return {
        "promised_mib": round(receipt["promised_bytes"] / MIB, 1),
        "returned_mib": round(receipt["returned_bytes"] / MIB, 1),
        "step_s": [round(each["took_s"], 3) for each in receipt["outcomes"]],
        "command_s": round(took_s, 3),
        "status": [each["status"] for each in receipt["outcomes"]],
        "message": [each["message"] for each in receipt["outcomes"]],
    }


@pytest.mark.parametrize("code", GHOSTS)
def test_a_ghost_is_ended(bench: Bench, record: Record, code: str):
    holder = ghost(bench, code, 4 * GIB)
    words = ("--pid", str(holder), "--up-to", "kill") if code in BY_NAME else ("--finding", code)
    answer, took_s = free(bench, "free", *words, "--yes")
    record(finding=code, **figures(answer, took_s))
    assert [step["target"]["process"]["pid"] for step in answer["plan"]["steps"]] == [holder]
    assert answer["receipt"]["outcomes"][0]["status"] == "done"
    assert answer["receipt"]["returned_bytes"] >= 4 * GIB
    assert bench.vram("check", "--leftovers").returncode == 0


def test_a_zombies_children_are_ended(bench: Bench, record: Record):
    demo = bench.demo("forks.orphan", 4 * GIB)
    pidfd = os.pidfd_open(demo.pids["parent"])
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    os.close(pidfd)
    answer, took_s = free(bench, "free", "--finding", "VR203", "--yes")
    record(finding="VR203", **figures(answer, took_s))
    assert answer["receipt"]["returned_bytes"] >= 4 * GIB


def test_a_ghost_is_freed_by_free_alone_within_a_second(bench: Bench, record: Record):
    holder = ghost(bench, "VR101", 4 * GIB)
    answer, took_s = free(bench, "free", "--yes")
    record(**figures(answer, took_s))
    assert [step["target"]["process"]["pid"] for step in answer["plan"]["steps"]] == [holder]
    assert answer["receipt"]["returned_bytes"] >= 4 * GIB
    assert took_s < 1.0


@pytest.mark.parametrize("who", EVERYBODY)
@pytest.mark.parametrize("style", ["batch", "jobs"])
def test_a_shared_machine(who: str, style: str, tmp_path: Path, record: Record):
    """Dead trainers, a zombie, a server and a stopped job: only what the dead left is freed."""
    told = play(who, style, 1, tmp_path, "free", "--yes", "--up-to", "kill", real=True)
    record(who=who, style=style, **{key: told[key] for key in ("held_by_the_dead", "left_of_that", "took_s")})
    require_only_leftovers_gone(told, slack=64 * MIB)


def test_all_ghosts_at_once_and_a_worker_among_them(bench: Bench, record: Record):
    """A goal is reached over several of them; who works is not touched."""
    for answer, took_s in all_ghosts_freed(bench):
        record(ghosts=len(GHOSTS), **figures(answer, took_s))


def test_sigterm_ignored(bench: Bench, record: Record):
    deaf = subprocess.Popen(
        [sys.executable, "-c", DEAF],
        cwd=PROGRAMS,
        env=bench.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert deaf.stdout is not None
    assert deaf.stdout.readline()
    try:
        answer, took_s = free(bench, "kill", str(deaf.pid), "--yes", "--grace", "0.5s")
        record(**figures(answer, took_s))
        assert "SIGKILL" in answer["receipt"]["outcomes"][0]["message"]
        assert answer["receipt"]["returned_bytes"] >= 2 * GIB
    finally:
        deaf.kill()
        deaf.communicate()


def test_a_dry_run_touches_nothing_and_is_quick(bench: Bench, record: Record):
    holder = ghost(bench, "VR101", 4 * GIB)
    answer, took_s = free(bench, "free", "--finding", "VR101", "--dry-run")
    record(command_s=round(took_s, 3), digest=answer["plan"]["digest"][:12])
    assert answer["receipt"] is None
    assert not bench.audit()
    os.kill(holder, 0)


def test_a_reset_is_refused_while_somebody_is_there(bench: Bench, record: Record):
    """Only the refusal: no test resets a GPU."""
    pid = bench.demo("memory.plain", 1 * GIB).pids["self"]
    done = bench.vram("reset", "0", "--json")
    answer = json.loads(done.stdout)
    record(blockers=len(answer["blockers"]), command=answer["command"])
    assert done.returncode == 1
    assert pid in [each["pid"] for each in answer["blockers"]]
