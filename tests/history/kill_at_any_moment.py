"""Run as a program: kills the process that writes a history, again and again, and checks what it left.

    python -m tests.history.kill_at_any_moment FOLDER TIMES SEED

Prints how often it tried, how often the process was killed while it wrote, how many readings there are in
the end, and how many files were moved aside. Writers are forked: imports are paid once.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.history.written import Written, at, ghost, ledger, process


def write_on(folder: Path, started: int, after: int, told: int) -> None:
    """Record without an end, a commit with every few readings; a byte to *told* *after* so many of them."""
    choice = random.Random(started)
    written = Written(folder, most_bytes=8 << 20)
    for number in range(10**6):
        pids = [choice.randrange(2, 60) for _ in range(choice.randrange(20))]
        entries = [process(pid, choice.randrange(1, 9) << 30) for pid in dict.fromkeys(pids)]
        what = ledger(process(1), *entries, *((ghost(900, 901),) if number % 50 < 25 else ()))
        if number == after:
            os.write(told, b".")
        written.reads(what, at(started * 10**6 + number * 25))


def check(folder: Path) -> int:
    """The file is whole, and what it says can be true; the number of readings."""
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            return 0  # killed while it was made
        assert not connection.execute("SELECT 1 FROM hold WHERE until <= since").fetchall()
        same = "SELECT gpu, topic, pid, started_at, dead_pid FROM hold WHERE until IS NULL"
        assert not connection.execute(f"{same} GROUP BY 1, 2, 3, 4, 5 HAVING count(*) > 1").fetchall()
        lost = "SELECT 1 FROM hold LEFT JOIN program ON program.id = hold.program WHERE program.id IS NULL"
        assert not connection.execute(lost).fetchall()
        kept = "(SELECT coalesce(max(value), 0) FROM progress WHERE name = 'kept-from')"
        moments = f"SELECT min(id), max(id), count(*) FROM moment WHERE id >= {kept}"
        first, last, count = connection.execute(moments).fetchone()
        assert count == (last - first + 1 if last else 0)
        return int(count)


def main(folder: Path, times: int, seed: int) -> None:
    choice, killed, readings = random.Random(seed), 0, 0
    for started in range(times):
        # The first ones while the file is made: by time, since nothing can be told before.
        after, (hear, told) = -1 if started < times // 4 else choice.randrange(12), os.pipe()
        child = os.fork()
        if not child:
            try:
                write_on(folder, started, after, told)
            finally:
                os._exit(1)
        os.close(told)
        if after >= 0:
            os.read(hear, 1)
        os.close(hear)
        time.sleep(choice.random() ** 3 * 0.01)
        os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
        if (folder / "history.sqlite").exists():
            readings = check(folder)
    asides = [each.name for each in folder.iterdir() if ".damaged-" in each.name or ".foreign-" in each.name]
    print(times, killed, readings, len(asides))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
