"""Every message of the corpus is read in its dialect, with its figures, and judged as the kind it is."""

from __future__ import annotations

import io
import json
import re

import pytest
from jsonschema.validators import validator_for

from tests.oom.corpus import MESSAGES, Message, hold_for_all
from vram.model.oom import Amount, OomMessage, OomReading
from vram.oom.cases import cases
from vram.oom.judge import KINDS
from vram.oom.reader import ANCHORS, DIALECTS, NEEDLES, find_messages
from vram.oom.sums import work_out
from vram.report import json_reports, schema
from vram.units import GIB, parse_size

SIZES = ("asked", "total", "free", "live", "idle", "pooled", "process", "limit", "largest_free")
FACTS = (
    *("gpu", "where", "program", "code", "reporter", "library", "assertion", "language"),
    *("utilization", "tokens_wanted", "tokens_fitting"),
)
HARMS = ("none", "interrupts", "loses-work", "affects-others")


def test_a_message_is_judged_as_what_it_is() -> None:
    def check(message: Message) -> None:
        case, wanted = message.case(), message.expected
        assert (case.reading.dialect, case.judgement.kind) == (wanted["dialect"], wanted["kind"])
        assert case.count == wanted.get("count", 1)
        if "certainty" in wanted:
            assert case.judgement.certainty == wanted["certainty"]
        for field in FACTS:
            if field in wanted:
                assert getattr(case.message, field) == wanted[field], field
        for field in ("pids", "signs"):
            if field in wanted:
                assert list(getattr(case.message, field)) == wanted[field], field
        if "others" in wanted:
            assert [str(listed.pid) for listed in case.reading.others or ()] == wanted["others"].split()

    hold_for_all(check)


def test_its_figures_are_read_as_they_stand() -> None:
    def check(message: Message) -> None:
        case, wanted = message.case(), message.expected
        for field in SIZES:
            if field in wanted:
                figure = getattr(case.reading, field)
                assert isinstance(figure, Amount), field
                assert abs(figure.nbytes - parse_size(with_unit(wanted[field]))) <= 1 + figure.slack, field

    hold_for_all(check)


def test_nothing_else_is_expected_of_a_message() -> None:
    """A misspelt name in the corpus would expect nothing."""
    known = {"dialect", "kind", "count", "certainty", "others", "pids", "signs", "source", *FACTS, *SIZES}

    def check(message: Message) -> None:
        assert message.expected.keys() <= known

    hold_for_all(check)


def test_what_is_shown_adds_up() -> None:
    """Balances sum to the total within the rounding that is printed; workings to their results."""

    def check(message: Message) -> None:
        for case in message.cases():
            balance = case.judgement.balance
            if balance is not None:
                off = balance.total - sum(term.nbytes for term in balance.terms)
                assert abs(off) <= balance.slack
            for working in case.judgement.workings:
                assert abs(sum(term.nbytes for term in working.terms)) == working.nbytes

    hold_for_all(check)


def test_there_is_something_to_do_least_harm_first() -> None:
    def check(message: Message) -> None:
        for case in message.cases():
            order = [HARMS.index(remedy.harm) for remedy in case.judgement.remedies]
            assert order
            assert order == sorted(order)
            assert case.judgement.cause.endswith(".")

    hold_for_all(check)


PYTHON = re.compile(r"vram\.[a-z]|@vram|torch|cupy|XLA_|TF_|rmm\.[a-z]|DataLoader|[Pp]ython|numpy|batch")


def test_a_program_in_cpp_gets_no_advice_in_python() -> None:
    seen = []

    def check(message: Message) -> None:
        for case in message.cases():
            if case.message.language != "c++":
                continue
            seen.append(message.name)
            judgement = case.judgement
            for words in (judgement.cause, *judgement.missing, *(each.text for each in judgement.remedies)):
                wrong = PYTHON.search(words.replace("vram.hpp", ""))
                assert not wrong, words

    hold_for_all(check)
    assert len(seen) >= 20


def test_json_is_what_its_schema_says() -> None:
    written = json.loads(schema.shipped("oom").read_bytes())
    validator = validator_for(written)(written)

    def check(message: Message) -> None:
        report = json.loads(json_reports.oom(message.cases(), 0, len(message.log)))
        assert not [error.message for error in validator.iter_errors(report)]

    hold_for_all(check)


def test_every_message_is_found_by_its_words() -> None:
    """Each has an anchor and a needle in the line that it begins in."""

    def check(message: Message) -> None:
        lines = message.log.split(b"\n")
        for found in find_messages(io.BytesIO(message.log)):
            near = b"\n".join(lines[found.line - 1 :])
            assert any(word in lines[found.line - 1] for word in ANCHORS)
            assert any(needle in near for needle in NEEDLES)

    hold_for_all(check)
    assert all(dialect.needles for dialect in DIALECTS)


def test_the_corpus_names_no_machine() -> None:
    """Paths in it are invented ones."""

    def check(message: Message) -> None:
        assert not re.search(rb"/(?:home|Users)/", message.log)

    hold_for_all(check)


def with_unit(figure: str) -> str:
    """Some messages have bare numbers of bytes."""
    return f"{figure}B" if figure.isdigit() else figure


@pytest.mark.parametrize("name", ["pytorch-hip", "pytorch-xpu"])
def test_what_a_context_takes_on_nvidia_is_not_assumed_of_other_gpus(name: str) -> None:
    case = MESSAGES[name].case()
    terms = [term.name for working in case.judgement.workings for term in working.terms]
    assert terms == ["in use by this program", "asked", "total"]


def test_the_corpus_is_large_and_has_every_kind_and_dialect() -> None:
    assert len(MESSAGES) >= 60
    wanted = [message.expected for message in MESSAGES.values()]
    assert {each["kind"] for each in wanted} == {kind.id for kind in KINDS}
    spoken = {each["dialect"] for each in wanted}
    assert {dialect.name for dialect in DIALECTS} - spoken <= {"bfc"}


def test_the_bound_of_a_job_or_a_container_is_not_taken_for_the_whole_machine() -> None:
    bounded = {message.case() for message in MESSAGES.values() if "bounded" in message.case().reading.signs}
    assert {"kernel", "kubernetes", "slurm", "srun"} == {case.reading.wording for case in bounded}
    assert all("its job or container" in case.judgement.cause for case in bounded)


@pytest.mark.parametrize(
    ("message", "signs"),
    [
        (
            OomMessage(
                dialect="cuda-error", wording="", signs=("sticky",), reporter="pytorch", assertion="i < n"
            ),
            ("sticky", "in=pytorch", "assert=i < n"),
        ),
        (
            OomMessage(dialect="xid", wording="31", signs=("sticky",), pids=(7, 9)),
            ("sticky", "pid=7", "pid=9"),
        ),
        (
            OomMessage(
                dialect="cuda-library", wording="", signs=("workspace", "pool-took-all"), library="cuBLAS"
            ),
            ("workspace", "cublas", "pool-took-all"),
        ),
        (
            OomMessage(dialect="xla", wording="", signs=("xla",), settings=(("mem_fraction", ".9"),)),
            ("mem_fraction=.9", "xla"),
        ),
    ],
)
def test_json_has_facts_as_words_among_the_signs(message: OomMessage, signs: tuple[str, ...]) -> None:
    assert message.as_reading() == OomReading(dialect=message.dialect, wording=message.wording, signs=signs)


def test_settings_of_jax_and_pids_of_one_fault_are_kept() -> None:
    log = b"XLA_PYTHON_CLIENT_MEM_FRACTION=.80 XLA_PYTHON_CLIENT_PREALLOCATE=true\n"
    log += b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.\n"
    (found,) = find_messages(io.BytesIO(log))
    assert found.reading.settings == (("mem_fraction", ".80"), ("preallocate", "true"))
    fault = b"NVRM: Xid (PCI:0000:65:00): 31, pid=%d, name=python, Ch 00000008\n"
    (case,) = cases(find_messages(io.BytesIO(fault % 7 + fault % 9))).cases
    assert (case.message.code, case.message.pids) == (31, (7, 9))


def test_host_memory_that_is_missing_is_worked_out() -> None:
    case = MESSAGES["ollama-system"].case()
    (working,) = case.judgement.workings
    assert [term.name for term in working.terms] == ["asked", "free"]
    assert (working.name, working.nbytes) == ("missing", sum(term.nbytes for term in working.terms))


def test_llama_cpp_is_not_told_of_a_data_loader() -> None:
    case = MESSAGES["llama-pinned"].case()
    assert "DataLoader" not in " ".join(way.text for way in case.judgement.remedies)
    assert "export GGML_CUDA_NO_PINNED=1" in [way.command for way in case.judgement.remedies]


def test_what_pytorch_prints_as_0_bytes_is_no_figure() -> None:
    case = MESSAGES["pytorch-no-figure-of-its-own"].case()
    assert case.reading.process is None
    assert work_out(case.message).unnamed == pytest.approx(24.2 * GIB, rel=0.005)
    assert "About 24.2 GiB is in use beyond this program" in case.judgement.cause


def test_a_size_that_cannot_be_is_said_and_not_missing() -> None:
    case = MESSAGES["ort-absurd"].case()
    assert case.judgement.cause.startswith("It requested more than an exabyte at once: no GPU has that much.")
    assert not case.judgement.missing


@pytest.mark.parametrize(
    ("name", "words"), [("pytorch-2.5-one-other", "it is"), ("pytorch-2.5-three-others", "they are")]
)
def test_one_process_is_not_spoken_of_as_several(name: str, words: str) -> None:
    case = MESSAGES[name].case()
    (end,) = (way for way in case.judgement.remedies if way.step == "end")
    assert end.text.startswith(f"If {words} ")
