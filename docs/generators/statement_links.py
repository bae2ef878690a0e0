"""Links from other pages back to the statements of the articles."""

from __future__ import annotations

import re
from collections.abc import Callable

from statements import ARTICLES
from statements.judge import Statement

QUESTIONS = {
    "after-exit": "Why is the memory not free after my program ended?",
    "no-process": "Why is memory in use when no process is listed?",
    "threads": "Why does memory stay after a thread has ended?",
    "out-of-memory": 'Why "out of memory" when nothing is running?',
    "flush": "How do I flush GPU memory?",
}


def statements_that(holds: Callable[[Statement], bool]) -> str:
    """The statements of which *holds* is true, by article and number: links from a folder of reference/."""
    found = {
        question: [str(number) for number, each in enumerate(statements, 1) if holds(each)]
        for question, statements in ARTICLES.items()
    }
    return "; ".join(
        f"[{question}](../statements.md#{_anchor(QUESTIONS[question])}) {', '.join(numbers)}"
        for question, numbers in found.items()
        if numbers
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
