"""`vram who`: families of holders, for people and for scripts."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


def test_the_dead_parent_heads_its_child(vram: Run, busy: str) -> None:
    answer = vram("who", "--from", busy)
    lines = answer.out.splitlines()
    dead = next(at for at, line in enumerate(lines) if "pid 200" in line)
    assert answer.code == 0
    assert "dead" in lines[dead]
    assert any("pid 201" in line for line in lines[dead:])


def test_json_counts_every_held_byte_once(vram: Run, busy: str) -> None:
    report = json.loads(vram("who", "--json", "--from", busy).out)
    why = json.loads(vram("why", "--json", "--from", busy).out)
    held = sum(
        entry["nbytes"]
        for gpu in why["gpus"]
        for entry in gpu["entries"]
        if entry["kind"] not in ("free", "reserved")
    )
    counted = sum(group["nbytes"] for group in report["groups"])
    assert counted + sum(keep["nbytes"] or 0 for keep in report["unnamed"]) == held


def test_an_idle_host_has_nobody(vram: Run, idle: str) -> None:
    answer = vram("who", "--from", idle)
    assert answer.code == 0
    assert "No process holds GPU memory" in answer.out


def test_no_driver_and_lost_gpus_have_their_codes(vram: Run, no_driver: str) -> None:
    assert vram("who", "--from", no_driver).code == 4


def test_a_lost_gpu_is_partial(vram: Run, half_lost: str) -> None:
    assert vram("who", "--from", half_lost).code == 3
