"""The statements of five articles that are often read about GPU memory, each judged by measurement."""

from __future__ import annotations

from statements import after_exit, flush, no_process, out_of_memory, threads
from statements.judge import Statement

ARTICLES: dict[str, tuple[Statement, ...]] = {
    "after-exit": after_exit.STATEMENTS,
    "no-process": no_process.STATEMENTS,
    "threads": threads.STATEMENTS,
    "out-of-memory": out_of_memory.STATEMENTS,
    "flush": flush.STATEMENTS,
}
"""By the question that an article answers, in the order of docs/questions."""
