"""Machines of three users, some of them hostile: `vram free` would never end somebody's healthy work."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.ledger.hostile_machine import HostileMachine
from vram.ledger.build import build_ledger
from vram.ledger.processes import processes
from vram.reclaim.candidates import leftovers

MACHINES = int(os.environ.get("VRAM_MACHINES", "1000"))


def ended_at_once(machine: HostileMachine) -> tuple[set[int], set[int]]:
    """Whom `vram free` ends without being told a name: at once, and only when it sees them so again."""
    ledger = build_ledger(machine.observed().survey())
    entries = [entry for each in leftovers(ledger, processes(ledger)) for _, entry in each.entries]
    twice = {each.pid for entry in entries if entry.proof == "adopted" for each in entry.holders}
    return {each.pid for entry in entries for each in entry.holders} - twice, twice


@pytest.mark.fault(34)
@pytest.mark.parametrize("seed", range(4))
def test_no_healthy_process_is_ended(seed: int) -> None:
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for number in range(MACHINES // 4):
        state = chance.random()
        machine = HostileMachine(random.Random(state))
        at_once, twice = ended_at_once(machine)
        healthy = machine.healthy()
        assert not at_once & healthy, (seed, number, state)
        machine.finish_all()
        again = ended_at_once(machine)
        ended = at_once | (twice & (again[0] | again[1]))
        assert not ended & healthy, (seed, number, state)
        leftover = {one.pid for one in machine._living() if one.pid not in healthy and one.inherited}
        seen.update(machines=1, ended=len(ended & leftover), leftover=len(leftover))
    # It is not safe by ending nobody: most of what is left behind and can be told apart is found.
    assert seen["ended"] > 0.2 * seen["leftover"], seen
