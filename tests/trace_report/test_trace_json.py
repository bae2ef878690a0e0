"""``--json`` of a trace, held against the schemas that are shipped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.trace_report import steady_traces, training_traces
from tests.trace_report.training_traces import STACKS, training
from vram.report import schema
from vram.trace.fit import fit
from vram.trace_report import json as trace_json
from vram.units import GIB, MIB

SAMPLES = (training, training_traces.with_blocks, training_traces.empty, training_traces.hostile)
SAMPLES += (steady_traces.serving, steady_traces.early_peak, steady_traces.hostile_names)


def validated(encoded: bytes, command: str) -> Any:
    answer = json.loads(encoded)
    shipped = json.loads(schema.shipped(command).read_bytes())
    Draft202012Validator.check_schema(shipped)
    Draft202012Validator(shipped).validate(answer)
    return answer


@pytest.mark.parametrize("command", ["report", "report-diff", "report-fit"])
def test_the_shipped_schemas_are_the_generated_ones(command: str) -> None:
    expected = schema.rendered(command)
    assert schema.shipped(command).read_bytes() == expected, "run `python -m vram.report.schema`"


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_view_validates_and_has_its_part_only(sample: Any) -> None:
    parts = {"peak": "peak", "leaks": "leaks", "churn": "churn", "timeline": "timeline", "frag": "holes"}
    for view in (*parts, "summary"):
        answer = validated(trace_json.report(sample(), view, "line", None), "report")  # type: ignore[arg-type]
        there = {name for name in parts.values() if answer[name] is not None}
        assert there == (set(parts.values()) if view == "summary" else {parts[view]})


def test_rows_refer_to_stacks_that_are_there() -> None:
    answer = validated(trace_json.report(training(), "leaks", "line", None), "report")
    (growing,) = [each for each in answer["leaks"] if each["verdict"] == "growing"]
    frames = answer["stacks"][growing["row"]["stack"]]["frames"]
    assert [frame["function"] for frame in frames] == [frame.function for frame in STACKS[3].frames]
    assert growing["row"]["place"]["line"] == 14
    assert (growing["row"]["nbytes"], growing["row"]["count"], growing["freed"]) == (3 * GIB, 48, 3)
    assert len(answer["stacks"]) < len(STACKS)


def test_rows_can_be_limited() -> None:
    answer = validated(trace_json.report(training(), "peak", "stack", 2), "report")
    assert [row["nbytes"] for row in answer["peak"]] == [8 * GIB, 6 * GIB]


def test_nothing_steers_a_terminal() -> None:
    encoded = trace_json.report(training_traces.hostile(), "summary", "stack", None)
    assert encoded.decode().replace("\n", "").isprintable()


def test_a_difference() -> None:
    before, after = training(), training(peak=training().peak[1:])
    answer = validated(trace_json.diff(before, after, "stack", None), "report-diff")
    (row,) = answer["at_peak"]
    assert (row["before_nbytes"], row["after_nbytes"]) == (6 * GIB, 0)
    assert answer["never_freed"] == []


def test_cards() -> None:
    view = training_traces.with_blocks()
    answer = validated(trace_json.fit(view, fit(view)), "report-fit")
    assert answer["fit"]["needs"][0]["cached_nbytes"] == 2 * GIB
    assert answer["fit"]["needs"][0]["context_nbytes"] == 527 * MIB
    assert {each["verdict"] for each in answer["fit"]["cards"]} == {"fits", "too small"}
