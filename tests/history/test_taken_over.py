"""Charges that moved: what the history knows of memory whose first owner has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.written import Written, at, ledger, process
from tests.patience import PATIENCE_S
from vram.diagnosis.engine import diagnose
from vram.history.taken_over import with_taken_over
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.model.ledger import Entry, Ledger, TakenOver
from vram.probes.survey import survey
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

CONTEXT = 518 * MIB
HELD = 4 * GIB + CONTEXT


def asked(folder: Path, *readings: tuple[Entry, ...]) -> Ledger:
    """What `vram why` knows at the last of *readings*, all of which were recorded."""
    written = Written(folder)
    for number, entries in enumerate(readings):
        written.reads(ledger(*entries), at(10.0 * number))
    written.store.close()
    return with_taken_over(ledger(*readings[-1]), str(written.path))


def taken_over(found: Ledger) -> list[tuple[TakenOver, ...]]:
    return [entry.taken_over for entry in found.gpus[0].entries if entry.holder]


BOTH = (process(7, HELD), process(8, CONTEXT))
MOVED = (process(8, HELD),)


def test_an_importer_has_taken_over_what_the_exporter_was_charged_with(tmp_path: Path) -> None:
    found = asked(tmp_path, BOTH, MOVED, MOVED)
    assert taken_over(found) == [(TakenOver(7, 4 * GIB),)]
    (finding,) = [each for each in diagnose(found) if each.code == "VR206"]
    assert "4.0 GiB of it was charged to pid 7 until that ended" in finding.cause


def test_sizes_are_those_at_the_moment_of_the_end(tmp_path: Path) -> None:
    """Both had grown before: the exporter to what it exported, the importer by memory of its own."""
    grown = (process(7, HELD), process(8, CONTEXT + GIB))
    moved = (process(8, HELD + GIB),)
    found = asked(tmp_path, (process(7, CONTEXT), process(8, CONTEXT)), grown, moved, moved)
    assert taken_over(found) == [(TakenOver(7, 4 * GIB),)]


Readings = tuple[tuple[Entry, ...], ...]


@pytest.mark.parametrize(
    "readings",
    [
        (BOTH, MOVED, (process(8, CONTEXT),)),  # released since
        (BOTH, MOVED, (process(8, CONTEXT),), MOVED),  # released, and allocated anew
        (BOTH, (process(8, CONTEXT),), MOVED),  # grown later
        (BOTH, (process(8, HELD + GIB),)),  # grown by more
        ((*BOTH, process(9, HELD)), MOVED),  # two ended that had as much
        (BOTH, (process(8, HELD, started_at=1),)),  # another process with the same pid
        (((process(7, HELD, uid=2000), process(8, CONTEXT))), MOVED),  # of another user
        (((process(7, HELD),)), (process(8, HELD),)),  # started when the other ended
    ],
)
def test_nothing_is_said_where_it_is_not_known(
    tmp_path: Path, readings: tuple[tuple[Entry, ...], ...]
) -> None:
    assert taken_over(asked(tmp_path, *readings)) == [()]


def test_an_end_that_nobody_saw_is_no_evidence(tmp_path: Path) -> None:
    """While the service was down, one can have ended, and the other have allocated, at any time."""
    written = Written(tmp_path).reads(ledger(*BOTH), at(0))
    written.restarts().reads(ledger(*MOVED), at(5000))
    written.store.close()
    assert taken_over(with_taken_over(ledger(*MOVED), str(written.path))) == [()]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_history_that_cannot_be_read_changes_nothing(tmp_path: Path, content: bytes) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    now = ledger(*MOVED)
    assert with_taken_over(now, str(path)) is now
    assert with_taken_over(now, str(tmp_path / "none")) is now


def test_an_importer_on_a_gpu(
    virtual_gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in virtual_gpu.environment().items():
        monkeypatch.setenv(name, value)
    written = Written(tmp_path)
    with DemoProgram(virtual_gpu, "imports.ipc", 4 * GIB) as demo:
        demo.go()
        written.reads(build_ledger(survey(LocalHost(), deadline_s=PATIENCE_S)), at(0))
        demo.go()
        now = build_ledger(survey(LocalHost(), deadline_s=PATIENCE_S))
        written.reads(now, at(10))
        exporter, importer = demo.pids["exporter"], demo.pids["importer"]
    written.store.close()
    (entry,) = [each for each in with_taken_over(now, str(written.path)).gpus[0].entries if each.holder]
    assert entry.holder is not None
    assert (entry.holder.pid, entry.taken_over) == (importer, (TakenOver(exporter, 4 * GIB),))
