"""docs/reference/statements.md: every statement of the five articles, with its verdict and its figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from statements import ARTICLES
from statements.judge import (
    Answer,
    ByJudgement,
    Case,
    Evidence,
    Judgement,
    OfClaim,
    OfProgram,
    Statement,
    Verdict,
    judge,
    read,
)

from generators import Page
from generators.lab import topic_slug
from generators.statement_links import QUESTIONS
from vram.lab.topics import CLAIMS
from vram.report.lab import cell

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
PAGE = "docs/reference/statements.md"
SOURCES = "docs/statements"
OPEN: Verdict = "not measured yet"
VERDICTS: tuple[Verdict, ...] = ("true", "false", "depends", OPEN)
OF_CASE = {True: "true", False: "false", None: "not measured"}


def pages() -> Iterator[Page]:
    articles = [f"{SOURCES}/{question.replace('-', '_')}.py" for question in ARTICLES]
    yield Page(PAGE, "\n".join(table(read(EVIDENCE))) + "\n", (SOURCES, *articles))


def table(evidence: Evidence) -> Iterator[str]:
    """The page, for the GPU and driver of *evidence*."""
    judged = {
        question: [judge(each, evidence) for each in statements] for question, statements in ARTICLES.items()
    }
    everything = [each for judgements in judged.values() for each in judgements]
    where = f"{cell(evidence.gpu)}, driver {cell(evidence.driver)}, {evidence.date}"
    yield "# Every statement, judged\n"
    yield "Five articles that are often read about GPU memory say this, in our words. The verdicts follow"
    yield "from [the lab's experiments](lab.md) and the [examples](../../examples/README.md)"
    yield f"on {where}, and are valid for that GPU and driver."
    yield "*Depends* means that the cases below it differ. What no experiment could refute (advice, what"
    yield "documentation promises, other machines) is our judgement: *judged*, or *judged in part* where only"
    yield "some of the cases are. `vram lab run NAME` repeats an experiment on your machine.\n"
    yield f"{len(everything)} statements: {_count(everything)}."
    yield f"{_bases(everything)}."
    for question, statements in ARTICLES.items():
        yield f"\n## {QUESTIONS[question]}\n"
        yield f"[The answer](../questions/{question}.md). {_count(judged[question])}.\n"
        yield "| statement, and its cases | verdict | figure or reason | more |"
        yield "|---|---|---|---|"
        for number, (each, judgement) in enumerate(zip(statements, judged[question], strict=True), 1):
            yield from _rows(number, each, judgement)


def _count(judgements: list[Judgement]) -> str:
    counts = Counter(each.verdict for each in judgements)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _bases(judgements: list[Judgement]) -> str:
    counts = Counter(each.basis for each in judgements if each.verdict != OPEN)
    return (
        f"{counts['measured']} rest on measurements alone, {counts['judged in part']} in part on our"
        f" judgement, {counts['judged']} on our judgement alone"
    )


def _rows(number: int, statement: Statement, judgement: Judgement) -> Iterator[str]:
    """The statement with its verdict; below it a row for each of its cases, if there are several."""
    verdict: str = judgement.verdict
    if judgement.basis != "measured":
        verdict += f" ({judgement.basis})"
    text, pages = f"{number}. {cell(statement.text)}", list(map(_of_page, statement.pages))
    if len(judgement.answers) == 1:
        ((case, answer),) = judgement.answers
        yield _row(text, verdict, cell(answer.figure), [_of_case(case), *pages])
        return
    yield _row(f"**{text}**", f"**{verdict}**", "", pages)
    for case, answer in judgement.answers:
        yield _row(f"– {cell(case.when)}", _of_answer(case, answer), cell(answer.figure), [_of_case(case)])


def _of_answer(case: Case, answer: Answer) -> str:
    return OF_CASE[answer.holds] + (" (judged)" if isinstance(case, ByJudgement) else "")


def _row(text: str, verdict: str, figure: str, links: list[str]) -> str:
    return f"| {text} | {verdict} | {figure} | {', '.join(dict.fromkeys(filter(None, links)))} |"


# ---- links ----


def links(statement: Statement) -> list[str]:
    """Where a reader can go on from a statement: experiments, programs, pages."""
    found = [*map(_of_case, statement.cases), *map(_of_page, statement.pages)]
    return [link for link in found if link]


def _of_case(case: Case) -> str:
    if isinstance(case, OfClaim):
        return f"[{case.claim}](lab/{topic_slug(CLAIMS[case.claim].topic)}.md#{case.claim})"
    return _of_program(case.program) if isinstance(case, OfProgram) else ""


def _of_program(name: str) -> str:
    found = [path for path in (ROOT / "examples").glob(f"{name}.*") if path.suffix in (".cpp", ".py")]
    return f"[{name}](../../{found[0].relative_to(ROOT)})" if found else ""


def _of_page(path: str) -> str:
    folder, _, name = path.removesuffix(".md").rpartition("/")
    label = {"reference/commands": f"vram {name}"}.get(folder, name.replace("-", " "))
    return f"[{label}](../{path})"
