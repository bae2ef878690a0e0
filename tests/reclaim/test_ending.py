"""Ending exactly the holders of one leftover, as policies do: all of them, still the same, or nobody."""

from __future__ import annotations

import json
from typing import Any

from tests.reclaim.conftest import Bench
from vram.units import GIB

CODE = """
import json, sys
from vram.errors import VramError
from vram.host.local import LocalHost
from vram.reclaim.planner import plan_ending
for line in sys.stdin:
    holders = [tuple(each) for each in json.loads(line)]
    try:
        plan = plan_ending(LocalHost(), holders, 30.0).plan
        print(json.dumps([[s.kind, s.target.process.pid, s.finding] for s in plan.steps] + [list(plan.gpus)]))
    except VramError as error:
        print(json.dumps(type(error).__name__))
"""


def started(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def asked(machine: Bench, *holders: list[tuple[int, int]]) -> list[Any]:
    import sys

    lines = "".join(json.dumps(each) + "\n" for each in holders)
    done = machine.run([sys.executable, "-c", CODE], input=lines)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_holder_of_a_leftover_is_planned_and_nobody_who_is_not_one(machine: Bench):
    ghost, whole = machine.demo("forks.orphan", 2 * GIB), machine.demo("forks.orphan", GIB)
    child, other = ghost.pids["child"], whole.pids["child"]
    ghost.kill("parent")
    this = (child, started(child))
    found, later, healthy, both, nobody = asked(
        machine,
        [this],
        [(child, this[1] + 1)],
        [(other, started(other))],
        [this, (other, started(other))],
        [],
    )
    assert found == [["kill", child, "VR101"], [0]]
    assert [later, healthy, both, nobody] == ["WorldChanged"] * 4
