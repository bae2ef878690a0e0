"""`vram check`: 0 clean, 1 held, 2 a wrong call, 3 unknown."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run, Write
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.units import GIB


def test_an_idle_host_is_clean(vram: Run, idle: str) -> None:
    assert vram("check", "--from", idle) == (0, "GPU 0: clean\nGPU 1: clean\n", "")


def test_a_held_gpu_names_each_holder_on_a_line(vram: Run, busy: str) -> None:
    answer = vram("check", "--from", busy)
    assert answer.code == 1
    assert "pid 100" in answer.out
    assert "pid 201" in answer.out
    assert "GPU 1: clean" in answer.out


def test_only_the_gpus_that_were_asked_for_count(vram: Run, busy: str) -> None:
    assert vram("check", "--from", busy, "--gpu", "1").code == 0


def test_leftovers_leave_healthy_processes_alone(vram: Run, busy: str, snapshot: Write) -> None:
    answer = vram("check", "--from", busy, "--leftovers")
    assert answer.code == 1
    assert "pid 100" not in answer.out
    healthy = snapshot(World().gpu(0, used=GIB + CONTEXT + OVERHEAD).cuda(100, GIB + CONTEXT))
    assert vram("check", "--from", healthy).code == 1
    assert vram("check", "--from", healthy, "--leftovers").code == 0


def test_some_may_be_allowed(vram: Run, snapshot: Write) -> None:
    world = snapshot(World().gpu(0, used=GIB + CONTEXT + OVERHEAD).cuda(100, GIB + CONTEXT))
    assert vram("check", "--from", world, "--allow", "2GiB").code == 0
    assert vram("check", "--from", world, "--allow", "1GiB").code == 1


@pytest.mark.fault(1)
def test_a_lost_gpu_cannot_be_told(vram: Run, half_lost: str) -> None:
    answer = vram("check", "--from", half_lost)
    assert answer.code == 3
    assert "GPU 1: unknown" in answer.out


@pytest.mark.fault(8)
def test_no_driver_cannot_be_told(vram: Run, no_driver: str) -> None:
    answer = vram("check", "--from", no_driver)
    assert answer.code == 3
    assert "unknown" in answer.err


@pytest.mark.parametrize("argv", [("--allow", "much"), ("--gpu", "9")])
def test_a_wrong_call_is_2(vram: Run, idle: str, argv: tuple[str, ...]) -> None:
    assert vram("check", "--from", idle, *argv).code == 2


def test_quiet_is_quiet(vram: Run, busy: str) -> None:
    assert vram("check", "--from", busy, "--quiet") == (1, "", "")
    assert vram("check", "--from", busy, "--quiet", "--json") == (1, "", "")


def test_json_says_what_the_code_says(vram: Run, busy: str) -> None:
    report = json.loads(vram("check", "--from", busy, "--json").out)
    assert report["verdict"] == "held"
    assert [gpu["verdict"] for gpu in report["gpus"]] == ["held", "clean"]
    assert report["gpus"][1]["held_bytes"] == 0
