"""The table of statements: whole, answered, decided by evidence, and the same on the virtual GPU."""

from __future__ import annotations

import re

import pytest
from generators import statements as page
from generators.statement_links import QUESTIONS
from statements import ARTICLES
from statements.judge import (
    CHANGED,
    ByClaim,
    ByJudgement,
    Evidence,
    OfClaim,
    OfProgram,
    ProgramRun,
    Statement,
    Step,
    affirms,
    compiles,
    compiles_as_cuda,
    denies,
    frees_at_most,
    gains,
    goes,
    judge,
    leaves,
    leaves_nothing,
    less,
    merged,
    proves,
    read,
    refuses,
    right,
    runs,
    statement,
    stays,
    takes,
    wrong,
)
from statements.outcomes import outcomes

from tests.docs.pages import DOCS, WRITTEN, site_page
from tests.examples.expected import EXPECTED
from tests.lab.conftest import Lab, results_of
from tests.lab.conftest import lab as lab  # a fixture
from tests.lab.test_verdicts import UNKNOWN, VERDICTS
from vram.lab.topics import CLAIMS
from vram.model.lab import Figure, LabReport, Result, StageReading
from vram.virtualgpu import VirtualGpu

EVERY = [
    pytest.param(question, each, id=f"{question}/{number}")
    for question, statements in ARTICLES.items()
    for number, each in enumerate(statements, 1)
]
ON_HARDWARE = read(page.EVIDENCE)


# ---- the tables ----


def test_every_question_has_its_statements() -> None:
    assert list(ARTICLES) == list(QUESTIONS)
    assert sum(map(len, ARTICLES.values())) == 127


def test_no_statement_is_there_twice() -> None:
    texts = [each.text for statements in ARTICLES.values() for each in statements]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(("question", "each"), EVERY)
def test_a_statement_is_a_sentence_with_cases_and_a_page_that_answers_it(
    question: str, each: Statement
) -> None:
    assert re.fullmatch(r"([A-Z]|cuda[A-Z])[^|]{10,160}\.", each.text)
    assert each.cases
    assert page.links(each), "a reader can go on from here"
    for name in each.pages:
        assert (DOCS / name).exists() or DOCS / name in WRITTEN, name
    for case in each.cases:
        if isinstance(case, OfClaim):
            assert case.claim in CLAIMS


@pytest.mark.parametrize(("question", "each"), EVERY)
def test_each_of_several_cases_says_when(question: str, each: Statement) -> None:
    """It is a row of its own on the page."""
    assert len(each.cases) == 1 or all(case.when for case in each.cases)


def test_no_cell_of_the_page_is_a_paragraph() -> None:
    cells = [cell for line in page_lines() if line.startswith("| ") for cell in line[2:-2].split(" | ")]
    assert len(cells) > 1000
    assert [cell for cell in cells if len(cell.split()) > 30] == []


def page_lines() -> list[str]:
    (written,) = page.pages()
    return written.text.splitlines()


def test_most_verdicts_are_measured_and_those_of_programs_always() -> None:
    every = [each for statements in ARTICLES.values() for each in statements]
    bases = [judge(each, ON_HARDWARE).basis for each in every]
    assert bases.count("judged") <= 25
    assert bases.count("judged in part") <= 15
    assert [each.text for each, basis in zip(every, bases, strict=True) if basis != "measured"] == [
        each.text for each in every if any(isinstance(case, ByJudgement) for case in each.cases)
    ]
    assert [
        each.text
        for each, basis in zip(every, bases, strict=True)
        if each.kind == "program" and basis != "measured"
    ] == []


def test_what_rests_on_judgement_is_not_counted_as_measured() -> None:
    """The bases of what has a verdict, and what is open, are all statements."""
    text = " ".join(page_lines())
    counts = re.search(
        r"(\d+) statements: .*?(?:, (\d+) not measured yet)?\. "
        r"(\d+) rest on measurements alone, (\d+) in part on our judgement, (\d+) on our judgement alone\.",
        text,
    )
    assert counts is not None
    every, still_open, *bases = (int(each or 0) for each in counts.groups())
    assert every == still_open + sum(bases)
    assert text.count("(judged in part)") == bases[1]


CITED = sorted(
    {
        case.claim
        for statements in ARTICLES.values()
        for each in statements
        for case in each.cases
        if isinstance(case, OfClaim)
    }
)


@pytest.mark.parametrize("name", CITED)
def test_a_cited_experiment_can_come_out_either_way(name: str) -> None:
    """An experiment that cannot refute a statement cannot confirm it either."""
    assert outcomes(CLAIMS[name].measure) == {True, False}


def test_all_fifteen_programs_are_judged_as_they_are_written() -> None:
    named = {
        case.program
        for statements in ARTICLES.values()
        for each in statements
        for case in each.cases
        if isinstance(case, OfProgram)
    }
    assert {name.rpartition("/")[2].partition("_")[0] for name in named} == {"1", "2", "3"}
    assert len(named) == 15
    assert {name.partition("/")[0] for name in named} == set(ARTICLES)
    assert all(name.endswith("_as_written") for name in named)


def test_every_question_page_leads_to_the_table() -> None:
    for name in ("index", *ARTICLES):
        question = DOCS / "questions" / f"{name}.md"
        links = re.findall(r"\]\(([^)#]*/statements[^)#]*)", question.read_text())
        assert [site_page((question.parent / link).resolve()) for link in links] == [
            DOCS / "reference" / "statements.md"
        ]


# ---- the virtual GPU against the evidence ----


def on_the_virtual_gpu() -> Evidence:
    """What tests/lab and tests/examples prove of the virtual GPU: verdicts, and steps of programs."""
    results = {
        name: Result(experiment=name, topic="", claim="", source="", verdict=verdict, because="")  # type: ignore[arg-type]
        for name, verdict in VERDICTS.items()
    }
    programs = {
        name: ProgramRun(
            program=name,
            question=name.partition("/")[0],
            number=1,
            version="",
            steps=tuple(Step(step, mib << 20) for step, mib in expected.pairs()),
            exit_code=0,
            output=expected.output,
            compiled_as=None if name.startswith("threads/") else "CUDA" if expected.undeclared else "C++",
            compile_error=expected.undeclared,
        )
        for name, expected in EXPECTED.items()
    }
    return Evidence("virtual", "virtual", "2026-01-01", results, programs)


@pytest.mark.parametrize(("question", "each"), EVERY)
def test_the_virtual_gpu_agrees_with_the_hardware(question: str, each: Statement) -> None:
    """Case by case, wherever both have an answer.

    They may differ where one has none: the virtual GPU runs no kernels and lacks frameworks, and a claim may
    be newer than the last run on hardware.
    """
    model = on_the_virtual_gpu()
    for case in each.cases:
        # Figures and readings are those of experiments whose verdicts are compared.
        if not isinstance(case, OfClaim) or isinstance(case, ByClaim):
            here, there = case.answer(model).holds, case.answer(ON_HARDWARE).holds
            assert here == there or None in (here, there), case


def test_every_case_about_a_program_is_decided_by_its_steps() -> None:
    """A step that is misspelt here, or renamed there, would leave a statement open for ever."""
    model = on_the_virtual_gpu()
    cases = [
        case
        for statements in ARTICLES.values()
        for each in statements
        for case in each.cases
        if isinstance(case, OfProgram)
    ]
    assert [case for case in cases if case.answer(model).holds is None] == []
    assert {case.program for case in cases} == {name for name in EXPECTED if name.endswith("_as_written")}


def test_what_the_virtual_gpu_cannot_answer_is_known() -> None:
    """Claims of the table that stay open on the virtual GPU: kernels, graphs, and frameworks."""
    used = {
        case.claim
        for statements in ARTICLES.values()
        for each in statements
        for case in each.cases
        if isinstance(case, ByClaim)
    }
    open_ones = {name for name in used if VERDICTS[name] == UNKNOWN}
    assert {CLAIMS[name].topic for name in open_ones} <= {
        "Host and managed memory",
        "Frameworks",
        "Figures and kernels",
        "Pools and graphs",
    }


def test_what_was_run_on_hardware_is_decided() -> None:
    """A claim of the table that the last run on hardware knew has a verdict there."""
    used = {
        case.claim
        for statements in ARTICLES.values()
        for each in statements
        for case in each.cases
        if isinstance(case, ByClaim)
    }
    ran = used & set(ON_HARDWARE.claims)
    assert len(ran) > 30
    assert [name for name in ran if ON_HARDWARE.claims[name].verdict == UNKNOWN] == []


@pytest.mark.parametrize(("question", "each"), EVERY)
def test_a_statement_is_open_only_until_the_next_run_on_hardware(question: str, each: Statement) -> None:
    """What keeps a verdict open is an experiment or a program that is newer than the evidence."""
    if judge(each, ON_HARDWARE).verdict == "not measured yet":
        known = {*ON_HARDWARE.claims, *ON_HARDWARE.programs}
        names = {getattr(case, "claim", None) or getattr(case, "program", None) for case in each.cases}
        assert names - {None} - known


def test_the_table_of_another_machine(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """The same table for a run of the lab on this machine's virtual GPU."""
    names = ("free-keeps", "freed-for-others", "lost-pointer", "pitched-keeps", "managed-on-allocation")
    ended = lab("run", "--json", *names)
    results = results_of(ended)
    report = LabReport(
        taken_at="2026-02-03T00:00:00Z",
        program="vram test",
        gpu="Virtual | GPU",
        index=0,
        driver=None,
        cuda=None,
        kernel="6",
        python="3",
        virtual=True,
        results=tuple(results.values()),
    )
    text = "\n".join(page.table(merged([report])))
    assert "on Virtual \\| GPU, driver unknown, 2026-02-03" in text
    lines = text.splitlines()

    def rows(words: str, count: int) -> list[str]:
        first = next(number for number, line in enumerate(lines) if words in line)
        return lines[first : first + count]

    (row,) = rows("cudaFree tells the driver", 1)
    assert "| true | 0 B of 256.0 MiB not free for the other process after the free | [freed" in row
    whole, plain, pitched, managed = rows("cudaMallocPitch all take", 4)
    assert whole.endswith(
        "** | **depends** |  | [where do my bytes go](../concepts/where-do-my-bytes-go.md) |"
    )
    assert plain.startswith("| – cudaMalloc | true | 256.0 MiB of 256.0 MiB came into use | [free-keeps]")
    assert pitched.startswith("| – cudaMallocPitch | true | 256.0 MiB of 256.0 MiB came into use |")
    assert managed.startswith("| – cudaMallocManaged | false | 0 B of 256.0 MiB used when it was allocated")
    whole, null, _, other = rows("No single function", 4)
    assert "| **not measured yet (judged in part)** |" in whole
    assert "| not measured | free-null-flushes was not run yet |" in null
    assert "| true (judged) | the runtime's and the driver's" in other


# ---- how a verdict follows ----

CLAIM = Result(
    experiment="free-keeps",
    topic="Freeing",
    claim="",
    source="",
    verdict="false here",
    because="0 B of 1 MiB",
    figures=(Figure("fast", 1, "seconds"), Figure("slow", 2, "seconds"), Figure("granted", 0, "code")),
    readings=(StageReading("context", 10 << 20, 0), StageReading("allocated", 266 << 20, 0)),
)
OPEN = Result(
    experiment="torch-del", topic="", claim="", source="", verdict="cannot tell", because="not installed"
)
RUN = ProgramRun(
    program="flush/1",
    question="flush",
    number=1,
    version="as written",
    steps=(Step("started", 0), Step("allocated", 531 << 20), Step("freed", 527 << 20), Step("ended", 0)),
    exit_code=0,
    output=("the memory is free",),
    compiled_as="C++",
)
# It leaves a single block in use, and says the opposite.
LEAKING = ProgramRun(
    program="flush/3",
    question="flush",
    number=3,
    version="as written",
    steps=(Step("started", 0), Step("ended", 2 << 20)),
    exit_code=0,
    output=("nothing is left",),
    compiled_as="CUDA",
    compile_error="error: no cudaFree",
)
BROKEN = ProgramRun(
    program="threads/2",
    question="threads",
    number=2,
    version="as written",
    exit_code=0,
    output=("all is free", "LogicError: invalid device context"),
    compile_error="error: no cudaFree",
)
EVIDENCE = Evidence(
    "GPU",
    "1",
    "2026-01-01",
    {"free-keeps": CLAIM, "torch-del": OPEN},
    {"flush/1": RUN, "flush/3": LEAKING, "threads/2": BROKEN},
)


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([affirms("free-keeps")], "false"),
        ([denies("free-keeps")], "true"),
        ([affirms("free-keeps"), denies("free-keeps")], "depends"),
        ([affirms("torch-del")], "not measured yet"),
        ([denies("torch-del")], "not measured yet"),
        ([affirms("kill-nine")], "not measured yet"),
        ([denies("free-keeps"), affirms("torch-del")], "not measured yet"),
        ([denies("free-keeps"), affirms("free-keeps"), affirms("torch-del")], "depends"),
        ([right("it is so")], "true"),
        ([wrong("it is not"), affirms("free-keeps")], "false"),
        ([right("it is so"), affirms("free-keeps")], "depends"),
        ([takes("free-keeps", "context", "allocated", 256 << 20)], "true"),
        ([takes("free-keeps", "allocated", "context", 256 << 20)], "false"),
        ([takes("free-keeps", "context", "freed", 256 << 20)], "not measured yet"),
        ([less("free-keeps", "fast", "slow")], "true"),
        ([less("free-keeps", "slow", "fast")], "false"),
        ([less("free-keeps", "fast", "unknown")], "not measured yet"),
        ([less("kill-nine", "fast", "slow")], "not measured yet"),
        ([goes("flush/1", "allocated", "freed", 4 << 20)], "true"),
        ([stays("flush/1", "allocated", "freed", 4 << 20)], "false"),
        ([stays("flush/1", "allocated", "freed")], "true"),
        ([goes("flush/1", "allocated", "ended")], "true"),
        ([gains("flush/1", "started", "freed", 527 << 20)], "true"),
        ([gains("flush/1", "freed", "allocated", 8 << 20)], "not measured yet"),
        ([goes("flush/1", "allocated", "reset")], "not measured yet"),
        ([goes("flush/2", "allocated", "ended")], "not measured yet"),
        ([runs("flush/1")], "true"),
        ([runs("threads/2")], "false"),
        ([runs("flush/2")], "not measured yet"),
        ([compiles("flush/1")], "true"),
        ([compiles("threads/2")], "false"),
        ([compiles("flush/2")], "not measured yet"),
        ([compiles("flush/3")], "false"),
        ([compiles_as_cuda("flush/1")], "true"),
        ([compiles_as_cuda("flush/3")], "true"),
        ([compiles_as_cuda("threads/2")], "false"),
        ([compiles_as_cuda("flush/2")], "not measured yet"),
        ([leaves("flush/1")], "false"),
        ([leaves_nothing("flush/1")], "true"),
        ([leaves("flush/3")], "true"),
        ([leaves_nothing("flush/3")], "false"),
        ([leaves("threads/2")], "not measured yet"),
        ([frees_at_most("flush/1", "allocated", "freed", 1 << 20)], "false"),
        ([frees_at_most("flush/1", "allocated", "freed", 3 << 20)], "true"),
        ([frees_at_most("flush/1", "allocated", "reset", 3 << 20)], "not measured yet"),
        ([proves("flush/1", "the memory is free")], "true"),
        ([proves("threads/2", "all is free")], "false"),
        ([proves("threads/2", "nothing is left")], "true"),
        ([proves("flush/2", "all is free")], "not measured yet"),
        ([refuses("free-keeps", "fast")], "true"),
        ([refuses("free-keeps", "granted")], "false"),
        ([refuses("free-keeps", "unknown")], "not measured yet"),
        ([refuses("kill-nine", "fast")], "not measured yet"),
    ],
)
def test_a_verdict_follows_from_its_cases(cases: list, verdict: str) -> None:
    assert judge(statement("It is so.", *cases), EVIDENCE).verdict == verdict


@pytest.mark.parametrize(
    ("cases", "basis"),
    [
        ([affirms("free-keeps")], "measured"),
        ([right("it is so")], "judged"),
        ([right("it is so"), wrong("it is not")], "judged"),
        ([right("it is so"), denies("free-keeps")], "judged in part"),
    ],
)
def test_a_verdict_says_what_it_rests_on(cases: list, basis: str) -> None:
    assert judge(statement("It is so.", *cases), EVIDENCE).basis == basis


def test_figures_are_those_of_the_evidence() -> None:
    (answer,) = (answer for _, answer in judge(statement("So.", affirms("free-keeps")), EVIDENCE).answers)
    assert answer.figure == "0 B of 1 MiB"
    (answer,) = (answer for _, answer in judge(statement("So.", runs("threads/2")), EVIDENCE).answers)
    assert answer.figure == "it says: LogicError: invalid device context"
    case = goes("flush/1", "allocated", "freed", 4 << 20)
    assert case.answer(EVIDENCE).figure == "0 B of 4.0 MiB in use at the step “freed”"
    case = leaves("flush/3")
    assert case.answer(EVIDENCE).figure == "2.0 MiB more in use when it had ended than before it began"
    case = frees_at_most("flush/1", "allocated", "freed", 1 << 20)
    assert case.answer(EVIDENCE).figure == "4.0 MiB came back at the step “freed”"
    case = proves("threads/2", "all is free")
    assert (
        case.answer(EVIDENCE).figure == "it printed “all is free” after: LogicError: invalid device context"
    )


def report(taken_at: str, result: Result) -> LabReport:
    return LabReport(
        taken_at=taken_at,
        program="",
        gpu="GPU",
        index=0,
        driver="1",
        cuda=None,
        kernel="",
        python="",
        virtual=False,
        results=(result,),
    )


def named(name: str) -> Result:
    return Result(experiment=name, topic="", claim="", source="", verdict="false here", because="256 MiB")


def test_a_later_run_that_cannot_tell_does_not_hide_an_earlier_verdict() -> None:
    decided, first, second = named("torch-del"), "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    assert merged([report(first, decided), report(second, OPEN)]).claims["torch-del"] == decided
    assert merged([report(first, OPEN), report(second, decided)]).claims["torch-del"] == decided
    assert merged([report(first, decided), report(second, OPEN)]).date == "2026-01-02"


def test_a_result_of_an_experiment_that_measured_something_else_is_none() -> None:
    name, since = next(iter(CHANGED.items()))
    before, after = since.replace("2026", "2025"), since.replace("2026", "2027")
    assert name not in merged([report(before, named(name))]).claims
    assert name in merged([report(after, named(name))]).claims
    assert set(CHANGED) <= set(CLAIMS)
