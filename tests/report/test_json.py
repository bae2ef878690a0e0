"""The contract that scripts rely on, held against the schema that is shipped."""

from __future__ import annotations

import json as stdlib_json
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tests.report.samples import FINDINGS, make_gpu, make_holder, make_ledger
from vram.diagnosis.engine import diagnose
from vram.model.finding import Finding
from vram.model.ledger import Entry, Ledger
from vram.report import json, schema
from vram.units import MIB


@pytest.fixture
def answer(ledger: Ledger, findings: tuple[Finding, ...]) -> Any:
    return stdlib_json.loads(json.why(ledger, findings))


def test_the_shipped_schema_is_the_generated_one() -> None:
    assert schema.SHIPPED.read_bytes() == schema.rendered(), "run `python -m vram.report.schema`"


def test_output_validates(answer: Any) -> None:
    shipped = stdlib_json.loads(schema.SHIPPED.read_bytes())
    Draft202012Validator.check_schema(shipped)
    Draft202012Validator(shipped).validate(answer)


def test_the_schema_refuses_what_is_not_an_answer(answer: Any) -> None:
    validator = Draft202012Validator(schema.generate())
    del answer["gpus"][0]["entries"][0]["nbytes"]
    assert not validator.is_valid(answer)


def test_the_contract(answer: Any) -> None:
    assert set(answer) >= {"schema", "taken_at", "host", "gpus", "findings", "probes"}
    for gpu in answer["gpus"]:
        assert set(gpu) >= {"index", "uuid", "name", "total_bytes", "entries"}
        for entry in gpu["entries"]:
            assert set(entry) >= {"kind", "nbytes", "holder", "evidence", "confidence"}
            if entry["holder"]:
                assert set(entry["holder"]) >= {"pid", "started_at", "user", "command", "alive"}
    for finding in answer["findings"]:
        assert set(finding) >= {"code", "title", "nbytes", "cause", "gpus", "evidence", "remedies"}
    for probe in answer["probes"]:
        assert set(probe) >= {"name", "status", "duration_s"}


def test_the_holds_of_a_finding_are_in_no_report_and_reach_the_live_views() -> None:
    ledger = make_ledger(make_gpu(Entry(kind="process", nbytes=MIB, holder=make_holder(7))))
    (found,) = (each for each in diagnose(ledger) if each.code == "VR206")
    assert [(share.what, share.bytes_by_gpu) for share in found.holds] == [("process", ((0, MIB),))]
    assert "holds" not in stdlib_json.loads(json.why(ledger, (found,)))["findings"][0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Finding) == found


def test_entries_sum_to_the_total(answer: Any) -> None:
    gpu = answer["gpus"][0]
    assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]


def test_unknown_is_null_and_never_left_out(answer: Any) -> None:
    lost = answer["gpus"][1]
    assert lost["total_bytes"] is None
    assert lost["uuid"] is None
    assert answer["host"]["pid_namespace"] is None
    assert answer["gpus"][0]["facts"]["bar1_used"] is None
    assert answer["probes"][0]["message"] is None
    assert answer["gpus"][0]["entries"][-1]["holder"] is None


def test_command_lines_are_whole() -> None:
    command = "python " + "x" * 5000
    ledger = make_ledger(make_gpu(Entry(kind="process", nbytes=MIB, holder=make_holder(7, command))))
    assert command in json.why(ledger, ()).decode()


@pytest.mark.fault(27)
@pytest.mark.parametrize("name", ["\udcff\ud800 raw bytes", "\x1b[2J", "\u202e", "\x9b31m", "\x7f"])
def test_hostile_names_stay_valid_json_and_inert(name: str) -> None:
    ledger = make_ledger(make_gpu(Entry(kind="process", nbytes=MIB, holder=make_holder(7, name))))
    encoded = json.why(ledger, FINDINGS, compact=True)
    decoded = msgspec.json.decode(encoded)
    command = decoded["gpus"][0]["entries"][2]["holder"]["command"]
    assert command == (name if "\ud800" not in name else "\\xff\\ud800 raw bytes")
    assert encoded.decode().rstrip("\n").isprintable()


def test_compact_is_one_line(ledger: Ledger) -> None:
    encoded = json.why(ledger, FINDINGS, compact=True)
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
