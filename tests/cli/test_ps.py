"""`vram ps`: one process a line, in any order, with any columns, and the same as JSON."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

from tests.cli.conftest import Run, Write
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.cli.commands import ps
from vram.model.hold import STATES
from vram.report.process_table import COLUMNS
from vram.report.schema import generate
from vram.units import GIB


@pytest.fixture
def shared(snapshot: Write) -> str:
    """Two GPUs: a stopped job on both, a server with a worker, a ghost, and a monitor that only looks."""
    world = World()
    world.gpu(0, used=9 * GIB + 3 * CONTEXT + 3 * OVERHEAD).gpu(1, used=4 * GIB + CONTEXT + OVERHEAD)
    world.process(100, state="T").charge(100, 2 * GIB + CONTEXT).charge(100, 4 * GIB + CONTEXT, gpu=1)
    world.files(100, minors=(0, 1), family=100)
    world.cuda(300, 5 * GIB + CONTEXT)
    world.process(301, parent=300, forked=True).files(301, family=300)
    world.charge(200, 2 * GIB + CONTEXT).process(201, forked=True).files(201, family=200)
    world.process(400).files(400, context=False)
    return snapshot(world)


def table(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_each_process_has_one_line_trouble_first(vram: Run, shared: str) -> None:
    answer = vram("ps", "--from", shared)
    assert answer.code == 0
    heading, *lines = table(answer.out)
    assert heading == ["GPU", "SIZE", "PID", "USER", "AGE", "STATE", "COMMAND"]
    assert [(line[0], line[3], line[6]) for line in lines] == [
        ("0-1", "100", "STOPPED"),
        ("0", "201", "GHOST"),
        ("0", "300", "ok"),
    ]
    assert lines[2][-2:] == ["+1", "worker"]
    assert answer.out.splitlines()[2].endswith("memory of dead pid 200")


def test_all_lists_workers_and_who_only_has_files_open(vram: Run, shared: str) -> None:
    answer = vram("ps", "--all", "--columns", "pid,state", "--no-header", "--from", shared)
    assert dict(table(answer.out)) == {
        "100": "STOPPED",
        "201": "GHOST",
        "300": "ok",
        "301": "open",
        "400": "open",
    }


@pytest.mark.parametrize(
    ("order", "pids"),
    [("size", ["100", "300", "201"]), ("pid", ["100", "201", "300"]), ("state", ["201", "100", "300"])],
)
def test_lines_can_be_sorted(vram: Run, shared: str, order: str, pids: list[str]) -> None:
    words = ("ps", "--sort", order, "--columns", "pid", "--no-header", "--from", shared)
    assert vram(*words).out.split() == pids
    assert vram(*words, "--reverse").out.split() == pids[::-1]


@pytest.mark.parametrize("order", ps.SORTS)
def test_every_order_keeps_every_process(vram: Run, shared: str, order: str) -> None:
    words = ("ps", "--sort", order, "--columns", "pid", "--no-header", "--from", shared)
    assert sorted(vram(*words).out.split()) == ["100", "201", "300"]


def test_columns_can_be_chosen(vram: Run, shared: str) -> None:
    answer = vram("ps", "--columns", "pid,bytes,ppid", "--from", shared)
    assert table(answer.out)[0] == ["PID", "BYTES", "PPID"]
    assert ["300", str(5 * GIB + CONTEXT), "1"] in table(answer.out)
    assert vram("ps", "--columns", ",".join(ps.COLUMNS), "--from", shared).code == 0


def test_the_columns_of_the_help_are_those_there_are() -> None:
    assert set(ps.COLUMNS) == set(COLUMNS)


@pytest.mark.parametrize(
    "words", [("--columns", "pid,colour"), ("--columns", ""), ("--sort", "colour"), ("0",)]
)
def test_what_is_no_column_is_refused_with_those_that_are(
    vram: Run, shared: str, words: tuple[str, ...]
) -> None:
    answer = vram("ps", "--from", shared, *words)
    assert (answer.code, answer.out) == (2, "")


def test_json_has_the_same_rows(vram: Run, shared: str) -> None:
    report = json.loads(vram("ps", "--json", "--from", shared).out)
    validate(report, generate("ps"))
    assert [(row["pid"], row["state"]) for row in report["processes"]] == [
        (100, "stopped"),
        (201, "ghost"),
        (300, "ok"),
    ]
    stopped, ghost, server = report["processes"]
    assert stopped["nbytes_by_place"] == {"0": 2 * GIB + CONTEXT, "1": 4 * GIB + CONTEXT}
    assert stopped["nbytes"] == 6 * GIB + 2 * CONTEXT
    assert ghost["dead_pids"] == [200]
    assert server["workers"] == [301]
    assert {row["state"] for row in report["processes"]} <= set(STATES)


def test_one_gpu_can_be_chosen(vram: Run, shared: str) -> None:
    report = json.loads(vram("ps", "--json", "--gpu", "1", "--from", shared).out)
    assert [(row["pid"], row["gpus"]) for row in report["processes"]] == [(100, [1])]


def test_an_idle_host_has_a_heading_and_no_lines(vram: Run, idle: str) -> None:
    assert len(vram("ps", "--from", idle).out.splitlines()) == 1
    assert vram("ps", "--no-header", "--from", idle) == (0, "", "")


def test_without_a_driver_scripts_still_get_their_object(vram: Run, no_driver: str) -> None:
    answer = vram("ps", "--json", "--from", no_driver)
    assert answer.code == 4
    assert json.loads(answer.out)["processes"] == []
