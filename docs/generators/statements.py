"""docs/reference/statements.md: every statement of the five articles, with its verdict and its figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from statements import ARTICLES
from statements.judge import (
    Answer,
    ByClaim,
    ByCompiler,
    ByFigures,
    ByJudgement,
    ByProgram,
    ByReading,
    ByRun,
    Case,
    Evidence,
    Judgement,
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
VERDICTS: tuple[Verdict, ...] = ("true", "false", "depends", "not measured yet")


def pages() -> Iterator[Page]:
    articles = [f"{SOURCES}/{question.replace('-', '_')}.py" for question in ARTICLES]
    yield Page(PAGE, "\n".join(table(read(EVIDENCE))) + "\n", (SOURCES, *articles))


def table(evidence: Evidence) -> Iterator[str]:
    """The page, for the GPU and driver of *evidence*."""
    judged = {
        question: [judge(each, evidence) for each in statements] for question, statements in ARTICLES.items()
    }
    everything = [each for judgements in judged.values() for each in judgements]
    measured = sum(each.measured for each in everything)
    where = f"{cell(evidence.gpu)}, driver {cell(evidence.driver)}, {evidence.date}"
    yield "# Every statement, judged\n"
    yield "Five articles that are often read about GPU memory say this, in our words. The verdicts follow"
    yield "from [the lab's experiments](lab.md) and the [examples](../../examples/README.md)"
    yield f"on {where}, and are valid for that GPU and driver."
    yield "*Depends* names the cases. Where nothing can be measured the verdict is our judgement, and is"
    yield "marked so. `vram lab run NAME` repeats an experiment on your machine.\n"
    yield f"{len(everything)} statements, {measured} of them measured: {_count(everything)}."
    for question, statements in ARTICLES.items():
        yield f"\n## {QUESTIONS[question]}\n"
        yield f"[The answer](../questions/{question}.md). {_count(judged[question])}.\n"
        yield "| statement | verdict | figure | more |"
        yield "|---|---|---|---|"
        rows = zip(statements, judged[question], strict=True)
        yield from (_row(number, each, judgement) for number, (each, judgement) in enumerate(rows, 1))


def _row(number: int, statement: Statement, judgement: Judgement) -> str:
    verdict = judgement.verdict if judgement.measured else f"{judgement.verdict} (judged)"
    return f"| {number}. {cell(statement.text)} | {verdict} | {_figures(judgement)} | {_links(statement)} |"


def _count(judgements: list[Judgement]) -> str:
    counts = Counter(each.verdict for each in judgements)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _figures(judgement: Judgement) -> str:
    return "; ".join(_figure(judgement, case, answer) for case, answer in judgement.answers)


def _figure(judgement: Judgement, case: Case, answer: Answer) -> str:
    judged = judgement.measured and isinstance(case, ByJudgement)
    words = ("judged: " if judged else "") + cell(answer.figure)
    if judgement.verdict == "depends":
        holds = {True: "true", False: "false", None: "not measured"}[answer.holds]
        return f"**{holds}** ({cell(case.when)}): {words}" if case.when else f"**{holds}**: {words}"
    return f"{cell(case.when)}: {words}" if case.when else words


# ---- links ----


def _links(statement: Statement) -> str:
    found = [*map(_of_case, statement.cases), *map(_of_page, statement.pages)]
    return ", ".join(dict.fromkeys(link for link in found if link))


def _of_case(case: Case) -> str:
    match case:
        case ByClaim(claim=name) | ByReading(claim=name) | ByFigures(claim=name):
            return f"[{name}](lab/{topic_slug(CLAIMS[name].topic)}.md#{name})"
        case ByProgram(program=name) | ByRun(program=name) | ByCompiler(program=name):
            return _of_program(name)
        case ByJudgement():
            return ""


def _of_program(name: str) -> str:
    found = [path for path in (ROOT / "examples").glob(f"{name}.*") if path.suffix in (".cpp", ".py")]
    return f"[{name}](../../{found[0].relative_to(ROOT)})" if found else ""


def _of_page(path: str) -> str:
    folder, _, name = path.removesuffix(".md").rpartition("/")
    label = {"reference/commands": f"vram {name}"}.get(folder, name.replace("-", " "))
    return f"[{label}](../{path})"
