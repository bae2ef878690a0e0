"""Is this GPU clean? Only what is known to be clean is called so."""

from __future__ import annotations

import pytest

from tests.report.samples import EXPORT, LOOSE, ORPHAN, WORKER, make_gpu, make_holder, make_ledger
from vram.diagnosis.verdict import judge, overall
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.report import check
from vram.units import MIB


def verdict(*entries: Entry, leftovers: bool = False, allow: int = 0) -> str:
    return overall(judge(make_ledger(make_gpu(*entries)), leftovers=leftovers, allow=allow))


def held_by(**fields: object) -> Entry:
    return Entry(kind="process", nbytes=MIB, holder=make_holder(7, **fields))  # type: ignore[arg-type]


HIDDEN = Entry(kind="hidden", nbytes=MIB, confidence="likely")


def test_only_the_drivers_reserve_is_clean() -> None:
    assert verdict() == "clean"


@pytest.mark.parametrize("entry", [ORPHAN, EXPORT, WORKER, LOOSE, HIDDEN], ids=lambda entry: entry.kind)
def test_anything_else_is_held(entry: Entry) -> None:
    assert verdict(entry) == "held"


def test_what_is_allowed_passes_and_not_a_byte_more() -> None:
    assert verdict(held_by(), allow=MIB) == "clean"
    assert verdict(held_by(), allow=MIB - 1) == "held"


@pytest.mark.parametrize("entry", [ORPHAN, EXPORT, LOOSE], ids=lambda entry: entry.kind)
def test_leftovers_are_what_no_process_works_with(entry: Entry) -> None:
    assert verdict(entry, WORKER, leftovers=True) == "held"


@pytest.mark.parametrize(
    "unwell", [{"alive": False}, {"state": "T"}, {"state": "t"}, {"state": "Z"}, {"exiting": True}], ids=str
)
def test_a_process_that_does_not_run_leaves_leftovers(unwell: dict[str, object]) -> None:
    assert verdict(held_by(**unwell), leftovers=True) == "held"


@pytest.mark.parametrize("well", [{}, {"state": "R"}, {"state": "D"}, {"executable_deleted": True}], ids=str)
def test_a_running_process_leaves_none(well: dict[str, object]) -> None:
    assert verdict(held_by(**well), leftovers=True) == "clean"


def test_whether_a_hidden_holder_is_well_cannot_be_told() -> None:
    assert verdict(HIDDEN, leftovers=True) == "unknown"
    assert verdict(HIDDEN, ORPHAN, leftovers=True) == "held"


def lost() -> GpuLedger:
    return GpuLedger(
        index=1, uuid=None, name="G", total_bytes=None, entries=(), status="lost", message="fell off"
    )


@pytest.mark.fault(1)
def test_a_gpu_that_does_not_answer_is_not_clean() -> None:
    assert overall(judge(make_ledger(make_gpu(), lost()))) == "unknown"


def test_held_for_certain_outweighs_what_could_not_be_told() -> None:
    assert overall(judge(make_ledger(lost(), make_gpu(WORKER)))) == "held"


def test_no_gpu_is_not_clean() -> None:
    assert overall(judge(make_ledger())) == "unknown"


def test_every_holder_gets_one_line(ledger: Ledger) -> None:
    lines = check.text(ledger, judge(ledger)).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("GPU 0: 48.0 GiB held by pid 6001, alice")
    assert lines[-1] == "GPU 1: unknown: fell off the bus"


def test_hostile_names_keep_to_their_line() -> None:
    gpu = make_gpu(held_by(command="x\nGPU 0: clean\x1b[A"))
    ledger = make_ledger(gpu)
    (line,) = check.text(ledger, judge(ledger)).splitlines()
    assert line.isprintable()


def together(*people: dict[str, object]) -> list[Entry]:
    """Processes without figures of their own, and the bytes that they have together."""
    holders = [make_holder(pid, **fields) for pid, fields in enumerate(people, 7)]  # type: ignore[arg-type]
    each = [Entry(kind="process", nbytes=None, holder=one, confidence="unknown") for one in holders]
    whole = Entry(
        kind="process", nbytes=MIB, co_holders=tuple(holders), sharing="together", confidence="unknown"
    )
    return [whole, *each]


@pytest.mark.parametrize(
    ("people", "answer"),
    [
        (({}, {}), "clean"),
        (({}, {"state": "T"}), "unknown"),
        (({"alive": False}, {"state": "T"}), "held"),
    ],
    ids=str,
)
def test_bytes_of_several_are_leftovers_where_none_of_them_is_healthy(people, answer: str) -> None:
    assert verdict(*together(*people), leftovers=True) == answer
    assert verdict(*together(*people)) == "held"


def test_bytes_of_several_name_all_of_them() -> None:
    ledger = make_ledger(make_gpu(*together({}, {})))
    assert check.text(ledger, judge(ledger)) == "GPU 0: 1.0 MiB held by pids 7, 8 together\n"
