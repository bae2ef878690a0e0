"""A program that goes on: its first screen says whether it grows, what holds most and what churns."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.trace_report import steady_traces
from tests.trace_report.steady_traces import driver_window, early_peak, native_steady, serving, window
from tests.trace_report.test_views import text
from vram.model.trace import TraceView
from vram.trace_report import json as trace_json
from vram.trace_report.page_data import content
from vram.trace_report.rows import narrowed
from vram.trace_report.windows import answers, churn_rows, most_rows, trend_sentence
from vram.trace_report.words import sentences
from vram.units import GIB, MIB

FIRST_SCREEN = 24

STEADY: dict[str, Callable[[], TraceView]] = {
    "serving": serving,
    "a C program": native_steady,
    "Numba": steady_traces.numba_steady,
    "an early peak": early_peak,
}


def first_screen(view: TraceView) -> str:
    return "\n".join(text("summary", view).splitlines()[:FIRST_SCREEN])


@pytest.mark.parametrize("sample", STEADY)
def test_the_first_screen_answers(sample: str) -> None:
    said = first_screen(STEADY[sample]())
    assert "Growing: " in said or "Steady: " in said
    assert "Most at the highest moment" in said
    assert "Allocated and freed again and again" in said


@pytest.mark.parametrize("sample", STEADY)
def test_no_heading_is_empty(sample: str) -> None:
    """A heading is followed by something that belongs to it, unless it says itself that there is nothing."""
    lines = text("summary", STEADY[sample]()).splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_heading = line[:1].isupper() and not line.startswith(("GPU", "More:", "Steady", "Growing"))
        assert not is_heading or following.startswith("  ") or line.endswith(": nothing"), line


def test_a_serving_program_says_what_holds_it_by_name_and_by_line() -> None:
    said = text("summary", serving(), 120)
    assert "held before recording: 9.0 GiB; nothing was allocated since" in said
    assert "PyTorch: 7.0 GiB in tensors when recording began, highest 9.1 GiB after 1.00 s" in said
    assert "6.0 GiB    66%     64  __main__: model.layers[0…31].weight  (before)" in said
    assert "1.5 GiB    16%     64  Cache.append" in said
    assert "peak 0 B" not in said


def test_what_goes_on_growing_is_named_with_its_rate() -> None:
    said = text("summary", serving(), 120)
    assert "Growing: 96.0 MiB more in 1.98 s, 48.5 MiB/s" in said
    assert "+96.0 MiB by 48 allocations, none freed  Log.remember" in said
    assert trend_sentence(serving(growing=False)) == "Steady: no place went on growing in 1.98 s"


def test_churn_is_ordered_by_bytes() -> None:
    rows = churn_rows(serving(), answers(serving()), "line")
    assert [row.row.label.split()[0] for row in rows] == ["Model.attend", "Cache.append"]
    assert rows[0].made == 64_000
    assert rows[0].per_second == pytest.approx(64_000 / 1.98)
    assert rows[0].nbytes_per_second == pytest.approx(64_000 * 16 * MIB / 1.98)


def test_a_rising_floor_is_growth_even_without_a_place() -> None:
    rising = window((steady_traces.WEIGHTS,), lowest=(GIB, 2 * GIB, 3 * GIB, 4 * GIB), trend="growing")
    view = steady_traces.attached(windows=(rising,))
    assert trend_sentence(view) == "Growing: at its lowest 3.0 GiB more in 1.98 s, step by step"


def test_of_a_c_program_the_sum_from_before_is_the_largest_row() -> None:
    said = text("summary", native_steady(), 120)
    assert "9.0 GiB   100%         held before recording: no lines are known" in said
    assert "since then at most 5.0 MiB more" in said


def test_names_of_arrays_are_listed_where_no_framework_was_recorded() -> None:
    said = text("summary", steady_traces.numba_steady(), 120)
    assert "Held when recording began, by name" in said
    assert "1.0 GiB      2  __main__: grid  (Numba)" in said
    assert "by name" not in text("summary", serving(), 120), "its tensors have names in the table above"


def test_a_run_with_an_early_peak_shows_both() -> None:
    said = text("summary", early_peak(), 120)
    assert "peak 18.0 GiB after 2.00 s" in said
    assert "Most at the peak" in said
    assert "Most at the highest moment since 32.0 s" in said
    assert "load_weights" in said.partition("since 32.0 s")[2]


def test_a_run_whose_peak_came_late_stays_as_it_was() -> None:
    late = replace(early_peak(), gpus=tuple(replace(use, peak_ns=56 * 10**9) for use in early_peak().gpus))
    assert answers(late) == []
    assert "highest moment" not in text("summary", late)


def test_a_place_of_the_driver_that_grows_is_named_beside_pytorchs_window() -> None:
    """A library that leaks device memory is no tensor."""
    leak = steady_traces.place(
        3, 8 * MIB, 8, kind="device", base_count=0, base_nbytes=0, made=8, made_nbytes=8 * MIB, growing=True
    )
    view = serving(growing=False)
    view = replace(view, windows=(driver_window((leak,)), view.windows[1]))
    said = text("summary", view, 120)
    assert "Growing: 8.0 MiB more" in said
    assert "Log.remember" in said


def test_the_callers_of_a_wrapper_have_rows_of_their_own() -> None:
    make = steady_traces.python("tensor", "/home/user/project/make.py", 5)
    stacks = tuple(
        steady_traces.CallStack((make, *stack.frames)) if stack.frames else stack
        for stack in steady_traces.STACKS
    )
    view = replace(serving(), stacks=stacks)
    rows = [row for row in most_rows(view, answers(view), "line") if row.row.place == make]
    assert len(rows) == 3
    assert "Log.remember" in text("summary", view, 120)


def test_parts_of_a_trace_keep_their_windows() -> None:
    assert narrowed(serving(), pids=[4101]).windows == serving().windows
    assert narrowed(serving(), gpus=[0]).windows == serving().windows


def test_the_peak_is_that_of_the_window_where_the_driver_had_none() -> None:
    said = text("peak", serving(), 120)
    assert "highest 9.1 GiB after 1.00 s" in said
    assert "__main__: model.layers[0…31].weight" in said
    assert "0 B live" not in said
    both = text("peak", early_peak(), 120)
    assert "18.0 GiB live after 2.00 s, its highest moment" in both
    assert "Most at the highest moment since 32.0 s" in both


def test_json_has_every_figure() -> None:
    found = json.loads(trace_json.report(serving(), "window", "line", None))
    driver, torch = found["windows"]
    assert (driver["framework"], driver["before_nbytes"], driver["rows"]) == (None, 9 * GIB, [])
    assert (torch["framework"], torch["base_nbytes"], torch["trend"]) == ("torch", 7 * GIB, "growing")
    names = {row["name"]: row["base_nbytes"] for row in torch["rows"] if row["name"]}
    assert names == {"__main__: model.layers[0…31].weight": 6 * GIB, "__main__: model.embedding": GIB}
    (grown,) = [row for row in torch["rows"] if row["growing"]]
    assert grown["end_nbytes"] - grown["base_nbytes"] == 96 * MIB
    assert found["stacks"][grown["row"]["stack"]]["frames"][0]["function"] == "Log.remember"
    assert len(found["held"]) == 2
    assert json.loads(trace_json.report(serving(), "peak", "line", None))["windows"] is None


def test_the_page_has_the_highest_moment_of_the_window() -> None:
    page = content(serving())
    assert page["is_attached"]
    assert sum(page["places"]["window"]) == window((*serving().windows[1].places,)).highest_nbytes
    (shown,) = page["windows"]
    assert [row["name"] for row in shown["most"]][:1] == ["__main__: model.layers[0…31].weight"]
    assert [row["nbytes"] for row in shown["grew"]] == [96 * MIB]
    assert len(shown["churn"]) == 2
    said = " ".join(each["text"] for each in page["sentences"])
    assert "Growing: 96.0 MiB more" in said
    assert "0 B" not in said


def test_a_page_without_windows_has_none() -> None:
    page = content(replace(early_peak(), windows=()))
    assert page["windows"] == []
    assert not page["is_attached"]
    assert sentences(early_peak())[1].text.startswith("GPU 0 was highest at 18.0 GiB")
