"""docs/reference/lab.md and a page per topic: every experiment, and what it showed on real hardware."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from statements.judge import OfClaim, Statement

from generators import Page
from generators.statement_links import QUESTIONS, statements_that
from vram.lab.claim import DefinedClaim
from vram.lab.topics import CLAIMS, TOPICS
from vram.model.lab import LabClaim, LabReport, Result
from vram.report.lab import cell, read_evidence
from vram.units import size

FOLDER = "docs/reference/lab"
SOURCES = "src/vram/lab/topics"
EVIDENCE = Path(__file__).resolve().parents[1] / "evidence"
UNMEASURED = "No run of it on real hardware is kept yet."
SLUGS = tuple(QUESTIONS)
NUMBERED = re.compile(r"[Qq]uestions? \d(?:(?:, | and )\d)*")
KNOWN = {name: claim.topic for name, claim in CLAIMS.items()}


def pages() -> Iterator[Page]:
    reports = sorted(map(_read, EVIDENCE.glob("*-lab.json")), key=lambda report: report.taken_at)
    yield Page("docs/reference/lab.md", "\n".join(_index(reports)) + "\n", (SOURCES,))
    for topic, claims in TOPICS.items():
        text = "\n".join(_page(topic, reports)) + "\n"
        modules = dict.fromkeys(claim.measure.__module__.rpartition(".")[2] for claim in claims)
        sources = tuple(f"{SOURCES}/{module}.py" for module in modules)
        yield Page(f"{FOLDER}/{topic_slug(topic)}.md", text, sources)


def _read(path: Path) -> LabReport:
    return read_evidence(path.read_bytes())


def _index(reports: list[LabReport]) -> Iterator[str]:
    yield "# The lab's experiments\n"
    yield f"{len(CLAIMS)} claims about GPU memory. `vram lab run NAME` tests one on your machine;"
    yield "[the guide](../guides/lab.md) says how to read the answer. Results on real hardware are from the"
    yield "runs in [evidence](../evidence/README.md), and are valid for that GPU and driver."
    if not reports:
        yield "No run of the lab on real hardware is kept there yet."
    yield "\n## By question\n"
    yield from _by_question()
    for topic, claims in TOPICS.items():
        yield f"\n## {topic}\n"
        yield "| claim | on hardware |"
        yield "|---|---|"
        for page in map(DefinedClaim.describe, claims):
            link = f"[{cell(page.claim)}](lab/{topic_slug(topic)}.md#{page.name})"
            yield f"| {link} | {_in_short(page.name, reports)} |"


def _by_question() -> Iterator[str]:
    """Which experiments test what is said in answer to each of the five questions."""
    yield "| question | its claims |"
    yield "|---|---|"
    for number, (question, title) in enumerate(QUESTIONS.items(), 1):
        pages = (claim.describe() for claim in CLAIMS.values())
        cited = [each for each in pages if str(number) in _numbers(each.source)]
        links = ", ".join(f"[{each.name}](lab/{topic_slug(each.topic)}.md#{each.name})" for each in cited)
        yield f"| [{title}](../questions/{question}.md) | {links} |"


def _numbers(source: str) -> set[str]:
    return {digit for words in NUMBERED.findall(source) for digit in re.findall(r"\d", words)}


def _in_short(name: str, reports: list[LabReport]) -> str:
    found = [(report, result) for report in reports for result in report.results if result.experiment == name]
    return (
        "; ".join(f"{_verdict(result)} ({cell(report.gpu)})" for report, result in found)
        or "not yet measured"
    )


def _page(topic: str, reports: list[LabReport]) -> Iterator[str]:
    yield f"# {topic}\n"
    yield "Experiments of `vram lab`. [All of them](../lab.md)"
    for claim in TOPICS[topic]:
        yield from _experiment(claim.describe(), topic, reports)


def _experiment(page: LabClaim, topic: str, reports: list[LabReport]) -> Iterator[str]:
    yield f"\n## {page.name}\n"
    yield f"**{_prose(page.claim, topic)}.**\n"
    yield f"*Said by:* {_questions(_prose(page.source, topic))}\n"
    yield f"*Method:* {_prose(page.method, topic)} It takes up to {size(page.takes_bytes)}.\n"
    yield f"*Reading:* {_prose(page.reading, topic)}\n"
    found = [(report, result) for report in reports for result in report.results]
    lines = [_measured(report, result) for report, result in found if result.experiment == page.name]
    yield "\n".join(lines) if lines else f"*Measured:* {UNMEASURED}"
    if decided := statements_that(lambda statement: page.name in _claims(statement)):
        yield f"\n*Statements of the articles that it decides:* {decided}"


def _claims(statement: Statement) -> set[str]:
    return {case.claim for case in statement.cases if isinstance(case, OfClaim)}


def _measured(report: LabReport, result: Result) -> str:
    where = f"{cell(report.gpu)}, driver {cell(report.driver or 'unknown')}, {report.taken_at[:10]}"
    return f"*Measured:* **{_verdict(result)}** ({where}): {cell(result.because)}."


def _verdict(result: Result) -> str:
    """What is "here" on the machine is, on a page, where the GPU's name says."""
    return result.verdict.removesuffix(" here")


def _prose(text: str, topic: str) -> str:
    """Text of ours, with the names of other experiments as links."""

    def link(match: re.Match[str]) -> str:
        other = KNOWN.get(match[0])
        place = "" if other == topic else f"{topic_slug(other)}.md" if other else None
        return match[0] if place is None else f"[{match[0]}]({place}#{match[0]})"

    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"[a-z]+(?:-[a-z]+)+", link, part.replace("__del__", "`__del__`")) for part in parts[::2]
    ]
    return "".join(parts)


def _questions(text: str) -> str:
    """The numbers of questions as links to their pages."""

    def link(words: re.Match[str]) -> str:
        return re.sub(r"\d", lambda n: f"[{n[0]}](../../questions/{SLUGS[int(n[0]) - 1]}.md)", words[0])

    return NUMBERED.sub(link, text)


def topic_slug(topic: str) -> str:
    return re.sub(r"[^a-z]+", "-", topic.lower()).strip("-")
