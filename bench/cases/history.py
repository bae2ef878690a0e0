"""The history of a node with 16 GPUs: a day of readings recorded, what it takes, and how fast it answers.

A simulated node (bench/simulated_node.py) stands for the machine, so that a day takes half a minute. Times of
readings are CPU time: waiting for the disk is measured apart, as bytes written. Copying the log ends before
the next reading, as it does where a minute lies between two commits: else the same day is written more often
the slower a reading is.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

from bench.row import Row
from bench.simulated_node import SimulatedNode
from bench.timing import CommandFailed
from vram.history.checkpoint import Checkpointer
from vram.history.file import open_for_reading
from vram.history.questions import Questions
from vram.history.store import HistoryStore

MIB = 1024**2
HOURS = 24
WEEK_BYTES = 200 * MIB
READING_S = 0.020
ANSWER_S = 0.5
COPY_S = 30.0


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        path = os.path.join(folder, "history.sqlite")
        before = _written_bytes()
        spent, nbytes = _record(path, SimulatedNode(short=6))
        written = _written_bytes() - before
        rows = [
            Row("history of a week, 16 GPUs every 10 s", nbytes * 7, "bytes", target=WEEK_BYTES),
            Row("recording a reading, median", statistics.median(spent), "s", target=READING_S),
            Row(
                "recording a reading, 99 of 100", sorted(spent)[len(spent) * 99 // 100], "s", target=READING_S
            ),
            Row("written to disk in a day", written, "bytes"),
        ]
        return rows + _answers(path, turns)


class _AwaitedCheckpointer(Checkpointer):
    def start(self) -> None:
        super().start()
        if self._child is not None and not self._child.wait(COPY_S):
            raise CommandFailed(f"the history's log was not copied within {COPY_S:g} s")


def _record(path: str, node: SimulatedNode) -> tuple[list[float], int]:
    """CPU seconds of each reading, and what the file takes in the end."""
    store = HistoryStore(path, interval_s=node.interval_s)
    spent = []
    with patch("vram.history.store.Checkpointer", _AwaitedCheckpointer):
        for ledger, moment in node.readings(HOURS * 3600):
            began = time.thread_time()
            store.record(ledger, moment)
            store.tend(moment)
            spent.append(time.thread_time() - began)
        store.close()
    return spent, os.stat(path).st_size


def _answers(path: str, turns: int) -> list[Row]:
    connection = open_for_reading(path)
    noon = 1_790_000_000.0 + 12 * 3600
    questions: dict[str, Callable[[Questions], object]] = {
        "who held GPU 3 at noon": lambda ask: ask.holders_at("3", noon),
        "ghosts": lambda ask: ask.ghosts(None, None),
        "waste": lambda ask: ask.waste(None, None),
        "a day of one GPU": lambda ask: ask.series("3", None, None),
        "search": lambda ask: ask.search("17.yaml", None, None),
    }
    try:
        return [
            Row(
                f"history: {name}",
                min(_once(connection, ask) for _ in range(max(1, turns))),
                "s",
                target=ANSWER_S,
            )
            for name, ask in questions.items()
        ]
    finally:
        connection.close()


def _once(connection: sqlite3.Connection, ask: Callable[[Questions], object]) -> float:
    began = time.perf_counter()
    ask(Questions(connection))
    return time.perf_counter() - began


def _written_bytes() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("write_bytes"))
