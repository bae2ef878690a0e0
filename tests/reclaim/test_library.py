"""The same verbs from Python: ``vram.reclaim.plan`` and ``.execute``."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.reclaim.conftest import Bench
from vram.units import GIB

PROGRAM = """
import json
import vram

draft = vram.reclaim.plan(more="1GiB", findings=("VR101",))
told = []
receipt = vram.reclaim.execute(draft.plan, on_outcome=told.append, patience_s={"kill": 5.0})
try:
    vram.reclaim.execute(draft.plan)
except vram.errors.WorldChanged as error:
    again = str(error)
print(json.dumps({
    "planned": [step.target.process.pid for step in draft.plan.steps],
    "told": [outcome.status for outcome in told],
    "returned": receipt.returned_bytes,
    "again": again,
}))
"""


def test_a_program_plans_and_executes(machine: Bench):
    demo = machine.demo("forks.orphan", 2 * GIB)
    demo.kill("parent")
    done = machine.run([sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["planned"], answer["told"]) == ([demo.pids["child"]], ["done"])
    assert answer["returned"] > 2 * GIB
    assert "no longer holds anything here" in answer["again"]
    assert [each["event"] for each in machine.audit()] == ["intend", "outcome"]


def test_importing_vram_does_no_work():
    code = "import sys; before = set(sys.modules); import vram; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"vram", "msgspec", "rich", "ctypes", "subprocess", "pathlib", "asyncio"}
    assert {name for name in done.stdout.split() if name.partition(".")[0] in heavy} == {"vram"}
