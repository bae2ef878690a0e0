"""Row 16: root asks for everything at once, by every verb, with every force there is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import needs, require
from tests.reclaim.conftest import Bench
from tests.search_path import search_path
from vram.virtualgpu.demos import PROGRAMS

WORLD = Path(__file__).with_name("protected_world.py")
ROOT = Path(__file__).parents[2]
PROTECTED = 13


@pytest.mark.fault(16)
@needs("root", detail="only root can install services for the time of a test")
def test_no_part_of_the_system_hears_a_signal(machine: Bench, tally: Tally) -> None:
    require("unshare")
    machine.require_virtual("services are installed for the time of the test")
    path = f"PYTHONPATH={search_path(PROGRAMS, ROOT)}"
    done = machine.run(["unshare", "--mount", "env", path, sys.executable, str(WORLD)])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(path.startswith("/opt/") for path in told["executables"])
    parts = len(told["heard"])
    disturbed = sum(heard != [] for heard in told["heard"].values()) + (not told["protected_orphan_alive"])
    tally.count((len(told["everything"]) + len(told["named"])) * parts, wrong=disturbed)
    assert disturbed == 0, told
    # Whoever names one is told so; what was really left over among them is freed.
    assert {each["code"] for each in told["named"]} == {PROTECTED}, told["named"]
    assert told["leftover_alive"] is False, told["everything"][0]["said"]
    ended = [each["step"]["target"]["executable"] for each in machine.audit() if each["event"] == "intend"]
    assert not any(path.startswith("/opt/") for path in ended)
