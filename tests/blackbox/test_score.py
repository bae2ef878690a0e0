"""A row that is not as expected fails, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import evidence
import score
from machine import Machine

GPU = {"name": "NVIDIA | Test", "driver": "1.2/3", "cuda": 13000}


def row(run: score.RowFunction) -> score.Row:
    return score.Row("a_row", "A table", "a situation", "an outcome", run)


def test_an_unmet_expectation_fails_the_row(machine: Machine, real_gpu: bool) -> None:
    result = score.run(row(lambda seen: seen.expect("it holds", False)), machine, real=real_gpu)
    assert (result["ok"], result["status"], result["unmet"]) == (False, "failed", ["it holds"])


def test_figures_outside_the_tolerance_fail_the_row(machine: Machine, real_gpu: bool) -> None:
    def measure(seen: score.Score) -> None:
        seen.expect_near("inside", 100 * score.MIB, 92 * score.MIB)
        seen.expect_near("outside", 101 * score.MIB, 92 * score.MIB)

    result = score.run(row(measure), machine, real=real_gpu)
    assert result["unmet"] == ["outside: 101.0 MiB, not 92.0 ± 8.0"]


def test_memory_left_behind_fails_the_row(machine: Machine, real_gpu: bool) -> None:
    """A program that is still there when its row ends is noticed."""
    programs = []

    def measure(seen: score.Score) -> None:
        program = seen.machine.start("memory.plain", score.GIB)
        program.__enter__()
        programs.append(program)

    result = score.run(row(measure), machine, real=real_gpu)
    programs[0].__exit__(None, None, None)
    assert len(result["unmet"]) == 1
    assert result["unmet"][0].startswith("left behind at the end")


def test_a_program_that_fails_fails_the_row(machine: Machine, real_gpu: bool) -> None:
    def measure(seen: score.Score) -> None:
        with seen.machine.start("memory.plain", 2**50):
            pass

    result = score.run(row(measure), machine, real=real_gpu)
    assert not result["ok"]
    assert "cuMemAlloc_v2 answered 2" in result["unmet"][0]


def test_a_skipped_row_says_why(machine: Machine, real_gpu: bool) -> None:
    def measure(_: score.Score) -> None:
        raise score.Skipped("no such machine")

    assert score.run(row(measure), machine, real=real_gpu)["status"] == "skipped: no such machine"


def test_evidence_is_written_for_programs_and_for_people(tmp_path: Path) -> None:
    results = [
        {
            "row": "a_row",
            "table": "A table",
            "situation": "one | two",
            "expected": "an outcome",
            "measured": {"used": 1.5, "listed": {}},
            "unmet": ["it holds"],
            "status": "failed",
            "ok": False,
            "took_s": 0.1,
        }
    ]
    data, page = evidence.write(tmp_path / "evidence", GPU, results)
    kept = json.loads(data.read_text())
    assert {"date", "gpu", "driver", "kernel", "python", "rows"} <= set(kept)
    assert kept["rows"] == results
    assert data.name.endswith("-nvidia-test-1.2-3.json")
    assert (
        "| one \\| two | an outcome | {used: 1.5, listed: none} | **not as expected**: it holds |"
        in page.read_text().splitlines()
    )
