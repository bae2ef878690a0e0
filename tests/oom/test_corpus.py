"""Every message of the corpus is read in its dialect, with its figures, and judged as the kind it is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from vram.model.oom import Amount, Case
from vram.oom.cases import cases
from vram.oom.judge import KINDS
from vram.oom.reader import sightings
from vram.oom.recognise import DIALECTS
from vram.units import parse_size

CORPUS = Path(__file__).parent / "corpus"
MESSAGES = sorted(path.stem for path in CORPUS.glob("*.txt"))
SIZES = ("asked", "total", "free", "live", "idle", "pooled", "process", "limit", "largest_free")


def read(name: str) -> tuple[Case, ...]:
    with open(CORPUS / f"{name}.txt", "rb") as stream:
        return cases(sightings(stream)).cases


def expected(name: str) -> dict[str, Any]:
    return tomllib.loads((CORPUS / f"{name}.toml").read_text())


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_judged_as_what_it_is(name: str) -> None:
    found, wanted = read(name), expected(name)
    assert len(found) == 1, [case.reading for case in found]
    (case,) = found
    assert (case.reading.dialect, case.judgement.kind) == (wanted["dialect"], wanted["kind"])
    assert case.count == wanted.get("count", 1)
    if "certainty" in wanted:
        assert case.judgement.certainty == wanted["certainty"]
    for field in ("gpu", "where"):
        if field in wanted:
            assert getattr(case.reading, field) == wanted[field]
    if "others" in wanted:
        assert [str(share.pid) for share in case.reading.others or ()] == wanted["others"].split()


@pytest.mark.parametrize("name", MESSAGES)
def test_its_figures_are_read_as_they_stand(name: str) -> None:
    (case,), wanted = read(name), expected(name)
    for field in SIZES:
        if field in wanted:
            figure = getattr(case.reading, field)
            assert isinstance(figure, Amount), field
            assert abs(figure.nbytes - parse_size(wanted[field])) <= 1 + figure.slack, field


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_shown_adds_up(name: str) -> None:
    """Balances sum to the total within the rounding that is printed; workings to their results."""
    for case in read(name):
        balance = case.judgement.balance
        if balance is not None:
            off = balance.total - sum(term.nbytes for term in balance.terms)
            assert abs(off) <= balance.slack
        for working in case.judgement.workings:
            assert abs(sum(term.nbytes for term in working.terms)) == working.nbytes


@pytest.mark.parametrize("name", MESSAGES)
def test_there_is_something_to_do_least_harm_first(name: str) -> None:
    harms = ("none", "interrupts", "loses-work", "affects-others")
    for case in read(name):
        order = [harms.index(remedy.harm) for remedy in case.judgement.remedies]
        assert order
        assert order == sorted(order)
        assert case.judgement.cause.endswith(".")


@pytest.mark.parametrize("name", ["pytorch-hip", "pytorch-xpu"])
def test_what_a_context_takes_on_nvidia_is_not_assumed_of_other_gpus(name: str) -> None:
    (case,) = read(name)
    terms = [term.name for working in case.judgement.workings for term in working.terms]
    assert terms == ["in use by this program", "asked", "total"]


def test_the_corpus_is_large_and_has_every_kind_and_dialect() -> None:
    assert len(MESSAGES) >= 60
    wanted = [expected(name) for name in MESSAGES]
    assert {each["kind"] for each in wanted} == {kind.ID for kind in KINDS}
    spoken = {each["dialect"] for each in wanted}
    assert {dialect.NAME for dialect in DIALECTS} - spoken <= {"bfc"}


@pytest.mark.parametrize("name", ["kernel-cgroup", "kubernetes", "slurm-new", "slurm-srun"])
def test_the_bound_of_a_job_or_a_container_is_not_taken_for_the_whole_machine(name: str) -> None:
    (case,) = read(name)
    assert "its job or container" in case.judgement.cause


def test_host_memory_that_is_missing_is_worked_out() -> None:
    (case,) = read("ollama-system")
    (working,) = case.judgement.workings
    assert [term.name for term in working.terms] == ["asked", "free"]
    assert (working.name, working.nbytes) == ("missing", sum(term.nbytes for term in working.terms))


def test_llama_cpp_is_not_told_of_a_data_loader() -> None:
    (case,) = read("llama-pinned")
    assert "DataLoader" not in " ".join(way.text for way in case.judgement.remedies)
    assert "export GGML_CUDA_NO_PINNED=1" in [way.command for way in case.judgement.remedies]


def test_a_size_that_cannot_be_is_said_and_not_missing() -> None:
    (case,) = read("ort-absurd")
    assert case.judgement.cause.startswith("It asked for more than an exabyte at once: no GPU has that.")
    assert not case.judgement.missing


@pytest.mark.parametrize(
    ("name", "words"), [("pytorch-2.5-one-other", "it is"), ("pytorch-2.5-three-others", "they are")]
)
def test_one_process_is_not_spoken_of_as_several(name: str, words: str) -> None:
    (case,) = read(name)
    (end,) = (way for way in case.judgement.remedies if way.step == "end")
    assert end.text.startswith(f"If {words} ")
