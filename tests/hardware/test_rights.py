"""What the observer of deploy/ sees of a real GPU with its two capabilities, and what with one of them.

python -m pytest --real-gpu -s tests/hardware/test_rights.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_capabilities import NEEDED, OBSERVER, as_observer
from tests.hardware.conftest import Record
from tests.hardware.test_places import Here, why
from tests.needs import needs
from tests.serve.running import RunningService
from vram.units import GIB, MIB
from vram.virtualgpu.demos import DemoProgram

pytestmark = [
    pytest.mark.gpu,
    needs("root", "setpriv"),
]


def observed(folder: Path, capabilities: tuple[str, ...]) -> dict[str, Any]:
    """`vram why` as a service of another user with *capabilities* alone answers it."""
    folder.mkdir()
    os.chown(folder, OBSERVER, OBSERVER)
    with RunningService(folder, None, "--observe", prefix=as_observer(capabilities)) as service:
        answer: dict[str, Any] = service.get("/api/v1/why")
        return answer


def leftovers(answer: dict[str, Any]) -> list[tuple[int | None, str, int]]:
    """Of each leftover: who holds it, how sure that is, and its size."""
    return [
        (entry["holder"]["pid"] if entry["holder"] else None, entry["confidence"], entry["nbytes"])
        for gpu in answer["gpus"]
        for entry in gpu["entries"]
        if entry["kind"] == "orphaned"
    ]


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
        both = observed(tmp_path / "both", NEEDED)
        one = observed(tmp_path / "one", ("dac_read_search",))
        root = why()
    said = {name: leftovers(answer) for name, answer in (("both", both), ("one", one), ("root", root))}
    record(
        leftovers={name: [each[1:] for each in found] for name, found in said.items()},
        kinds=by_kind(both),
        kinds_with_one=by_kind(one),
        kinds_as_root=by_kind(root),
    )
    ((holder, confidence, nbytes),) = said["both"]
    assert (holder, confidence) == (child, "fact")
    assert nbytes > 2 * GIB
    assert said["root"] == said["both"]
    assert "fact" not in [confidence for _, confidence, _ in said["one"]]
    # The totals need no capability.
    for other in (by_kind(one), by_kind(root)):
        kinds = by_kind(both)
        assert all(abs(kinds.get(kind, 0) - other.get(kind, 0)) <= 16 * MIB for kind in {*kinds, *other})
