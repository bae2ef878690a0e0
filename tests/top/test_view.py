"""Lines, filters, series and headings: what the view is made of, without a screen."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tests.golden.screens import Machine
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.ledger import Ledger
from vram.report.job_rows import ORPHANS, rows_by_job
from vram.report.layout import RenderOptions
from vram.report.process_rows import JobRow, ProcessRow, rows
from vram.top.panels import MAX_POINTS, History, sparkline
from vram.top.table import column_at, formatted
from vram.top.view import SORTS, ViewLine, ViewState, basis, details, key_of, lines
from vram.units import GIB

HEADING = "GPU     SIZE    PID USER  AGE STATE  COMMAND"


@pytest.fixture
def ledger() -> Ledger:
    """A healthy process, and a forked child that holds its dead parent's memory."""
    world = World()
    world.gpu(0, used=6 * GIB + 2 * CONTEXT + 2 * OVERHEAD).gpu(1)
    world.cuda(100, 2 * GIB + CONTEXT)
    world.charge(200, 4 * GIB + CONTEXT).process(201).files(201, family=200)
    return build_ledger(world.survey())


def shown(ledger: Ledger, **view: object) -> list[int | None]:
    found = lines(ledger, rows(ledger), ViewState(**view))  # type: ignore[arg-type]
    return [line.row.pid for line in found if line.row is not None]


def test_trouble_comes_first_whatever_is_larger(ledger: Ledger) -> None:
    assert shown(ledger) == [201, 100]
    assert shown(ledger, reverse=True) == [100, 201]


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_every_line(ledger: Ledger, sort: str) -> None:
    assert sorted(shown(ledger, sort=sort), key=str) == [100, 201]


def test_filters_narrow_and_combine(ledger: Ledger) -> None:
    assert shown(ledger, state="ghost") == [201]
    assert shown(ledger, gpu="0") == [201, 100]
    assert shown(ledger, gpu="1") == []
    assert shown(ledger, gpu="0", state="ghost", search="dead 200") == [201]
    assert shown(ledger, search="no such word") == []
    assert ViewState().filters == ""
    assert ViewState(gpu="0", search="x").filters == "GPU 0, search 'x'"


def test_a_filter_by_gpu_means_its_mig_devices_too() -> None:
    row = ProcessRow(gpus=(1,), places=("1:0",), nbytes=1, nbytes_by_place={}, pid=7, state="ok")
    assert ViewState(gpu="1").matches(row)
    assert not ViewState(gpu="0").matches(row)


def test_the_tree_keeps_the_branch_that_leads_to_a_match(ledger: Ledger) -> None:
    found = lines(ledger, rows(ledger), ViewState(tree=True, state="ghost"))
    assert [line.row.pid if line.row else line.heading for line in found] == [
        "outside of containers and jobs: 7.0 GiB",
        "└─ pid 200: dead; those below hold its memory",
        201,
    ]


def test_nobody_is_in_the_tree_twice(ledger: Ledger) -> None:
    keys = [line.key for line in lines(ledger, rows(ledger), ViewState(tree=True))]
    assert len(keys) == len(set(keys))


def test_keys_tell_processes_with_one_pid_apart() -> None:
    row, other = (
        ProcessRow(
            gpus=(0,), places=("0",), nbytes=1, nbytes_by_place={}, pid=7, started_at=start, state="ok"
        )
        for start in (1, 2)
    )
    assert key_of(row) != key_of(other)


@pytest.mark.parametrize(
    ("x", "column"),
    [
        *((0, "gpu"), (2, "gpu"), (4, "size"), (11, "size"), (13, "pid"), (18, "pid")),
        *((20, "user"), (23, "user"), (26, "age"), (28, "age"), (30, "state")),
        *((37, "command"), (200, "command")),
    ],
)
def test_a_heading_is_found_where_it_stands(x: int, column: str) -> None:
    assert column_at(HEADING, x) == column


def test_ages_go_on_between_readings() -> None:
    row = ProcessRow(gpus=(0,), places=("0",), nbytes=1, nbytes_by_place={}, pid=7, state="ok", age_s=58.0)
    _, (text,) = formatted([ViewLine(key_of(row), row)], 3.0, {}, RenderOptions(80))
    assert " 1m " in text.plain


def test_lines_are_text_and_never_markup() -> None:
    row = ProcessRow(
        gpus=(0,),
        places=("0",),
        nbytes=1,
        nbytes_by_place={},
        pid=7,
        state="ok",
        command="python [red]x[/] \x1b[0m",
    )
    _, (text,) = formatted([ViewLine(key_of(row), row)], 0.0, {}, RenderOptions(120))
    assert isinstance(text, Text)
    assert "[red]x[/] \\x1b[0m" in text.plain


# ---- memory over time ----


def test_a_point_is_the_most_during_its_time() -> None:
    history = History(0.5, span_s=10 * MAX_POINTS)
    for at, nbytes in enumerate((1, 7, 3, 5)):
        history.add(at, {"a": nbytes})
    assert list(history.points("a")) == [7]
    history.add(10.0, {"a": 2})
    assert list(history.points("a")) == [7, 2]


def test_history_is_bounded_and_forgets_the_ended() -> None:
    history = History(1.0)
    for at in range(5000):
        history.add(float(at), {"gpu": at, ("pid", at // 3): 1})
    assert len(history.points("gpu")) <= MAX_POINTS
    assert set(history.keys()) == {"gpu", ("pid", 1666)}


def test_a_sparkline_has_its_width_and_its_extremes() -> None:
    assert sparkline([0, 50, 100], 5, 100) == "  ▁▄█"
    assert sparkline([0, 50, 100], 3, 100, ascii_only=True) == "_-#"
    assert sparkline(range(100), 4, 99) == "████"
    assert sparkline([], 3, 100) == "   "
    assert sparkline([5], 0, 100) == ""


# ---- jobs ----


@pytest.fixture
def lost() -> Ledger:
    """Two ranks whose launcher is dead, beside a larger healthy process."""
    return Machine().torchrun(300, 4, ranks=2).job(100, "python serve.py", 40).with_gpus(2).ledger()


def test_an_orphaned_job_is_one_line_and_is_found_by_each_of_its_pids(lost: Ledger) -> None:
    found = rows_by_job(lost, ORPHANS)
    for words in ("", "310", "torchrun", "train.py"):
        (first, *_) = lines(lost, found, ViewState(search=words))
        assert (first.row.pid, first.row.state) == (300, "orphan") if first.row else False
    assert lines(lost, found, ViewState(search="4711")) == []


def test_its_line_is_the_same_when_its_first_rank_has_ended(lost: Ledger) -> None:
    three = Machine().torchrun(300, 4, ranks=3).with_gpus(3).ledger()
    (row,) = rows_by_job(three, ORPHANS)
    assert isinstance(row, JobRow)
    assert key_of(row) == key_of(replace(row, pid=310, started_at=3100, others=row.others[1:]))
    assert key_of(row) != key_of(replace(row, job=replace(row.job, key="another")))  # type: ignore[type-var]


def test_the_tree_has_a_line_for_each_process_of_a_job(lost: Ledger) -> None:
    found = lines(lost, rows_by_job(lost, ORPHANS), ViewState(tree=True))
    assert {line.row.pid for line in found if line.row} == {100, 300, 310}


def test_the_cpu_time_of_a_job_is_that_of_all_its_processes(lost: Ledger) -> None:
    row = rows_by_job(lost, ORPHANS)[0]
    for known, shown in (({300: 40, 310: 60}, " 100 ORPHAN"), ({310: 60}, " 60 ORPHAN"), ({}, " - ORPHAN")):
        _, (text,) = formatted([ViewLine(key_of(row), row)], 0.0, known, RenderOptions(120))
        assert shown in text.plain


def test_details_of_a_job_name_all_of_it(lost: Ledger) -> None:
    findings = diagnose(lost)
    job, healthy = rows_by_job(lost, ORPHANS)
    text = plain(details(lost, findings, job, (), RenderOptions(100)))
    assert text.startswith("pid 300, 310 · 9.0 GiB on GPU 0-1 · ORPHAN: its launcher is dead")
    assert "torchrun train.py, 2 ranks" in text
    assert "pid 300, the first of them:" in text
    assert "vram kill --job 300" in text
    (rank,) = [row for row in rows(lost) if row.pid == 310]
    assert "rank 1 of 2 in a torchrun job; with pid 300; launcher dead" in plain(
        details(lost, findings, rank, (), RenderOptions(100))
    )
    assert "launcher" not in plain(details(lost, findings, healthy, (), RenderOptions(100)))
    assert basis(lost, findings, job) == basis(lost, findings, replace(job, age_s=0.0))
    assert basis(lost, findings, job) != basis(lost, findings, rank)


def plain(parts: list[RenderableType]) -> str:
    console = Console(width=100, file=StringIO(), color_system=None)
    console.print(Group(*parts))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
