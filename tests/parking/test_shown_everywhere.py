"""Who is parked is in every answer: of the commands, of a program, and of a snapshot read elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.parking.conftest import Machine, runs_on

ACCOUNT = """
import vram
print([(hold.state, hold.holder.pid) for hold in vram.account().holds])
"""


def test_a_program_sees_who_is_parked(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    done = subprocess.run(
        [sys.executable, "-c", ACCOUNT], env=machine.environment(), stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == f"[('parked', {worker.pid})]\n"


def test_a_snapshot_has_who_is_parked(machine: Machine, tmp_path: Path) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    for words in ((), ("--redact",)):
        path = tmp_path / "snapshot.json"
        assert machine.vram("snapshot", "-o", path, *words).returncode == 0
        (row,) = json.loads(machine.vram("ps", "--from", path, "--json").stdout)["processes"]
        assert (row["state"], row["pid"]) == ("parked", worker.pid)
        assert (row["command"] == "redacted") == bool(words)


def test_a_plan_for_a_hold_names_its_holders_and_touches_nothing(machine: Machine) -> None:
    worker = machine.worker()
    program = (
        "import vram\n"
        "found = vram.account()\n"
        "for only in (None, 'kill'):\n"
        "    (step,) = found.plan_free(found.holds[0], only=only).plan.steps\n"
        "    print(step.kind, step.target.process.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=machine.environment(), stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == f"trim {worker.pid}\nkill {worker.pid}\n"
    assert runs_on(worker)
