"""What the observer of deploy/ sees of a real GPU with its two capabilities, and what with one of them.

python -m pytest --real-gpu -s tests/hardware/test_rights.py
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_capabilities import NEEDED, OBSERVER, as_observer
from tests.hardware.conftest import Record
from tests.hardware.test_places import Here, why
from tests.serve.running import RunningService
from vram.units import GIB, MIB
from vram.virtualgpu.demos import DemoProgram

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        bool(os.geteuid()) or not shutil.which("setpriv"),
        reason="needs root and setpriv, to become another user",
    ),
]


def observed(folder: Path, capabilities: tuple[str, ...]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Leftovers and memory by kind, as a service of another user with *capabilities* alone reports them."""
    folder.mkdir()
    os.chown(folder, OBSERVER, OBSERVER)
    with RunningService(folder, None, "--observe", prefix=as_observer(capabilities)) as service:
        service.readings(2)
        return service.get("/api/v1/ghosts")["ghosts"], by_kind(service.get("/api/v1/why"))


def by_kind(answer: dict[str, Any]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for gpu in answer["gpus"]:
        for entry in gpu["entries"]:
            sums[entry["kind"]] = sums.get(entry["kind"], 0) + (entry["nbytes"] or 0)
    return sums


def test_an_observer_proves_who_holds_a_leftover_of_root(record: Record, tmp_path: Path) -> None:
    with DemoProgram(Here(), "forks.orphan", 2 * GIB) as family:
        child = family.pids["child"]
        family.kill("parent")
        ghosts, kinds = observed(tmp_path / "both", NEEDED)
        blind, less = observed(tmp_path / "one", ("dac_read_search",))
        root = by_kind(why())
    record(
        with_both=[(each["code"], each["nbytes"]) for each in ghosts],
        with_one=[(each["code"], each["nbytes"]) for each in blind],
        kinds=kinds,
        kinds_with_one=less,
        kinds_as_root=root,
    )
    assert [(each["code"], each["pids"]) for each in ghosts] == [("VR101", [child])]
    assert ghosts[0]["nbytes"] > 2 * GIB
    assert not blind
    # The totals need no capability.
    for other in (less, root):
        assert all(abs(kinds.get(kind, 0) - other.get(kind, 0)) <= 16 * MIB for kind in {*kinds, *other})
