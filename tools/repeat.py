"""Run the suite again and again, quiet and on a busy machine, and count what fails: `make repeat`.

    python tools/repeat.py [--quiet N] [--busy N] [--workers N] [PYTEST ARGUMENTS...]

A busy run has every core kept busy by another process as well. Each run has an environment of its own: an
empty home folder and a plain PATH, as in .ci/run. The table, which is written after each run, and the output
of every run are in .build/repeat/. Exit 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".build" / "repeat"
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUSY_LOOP = "while True: pass"


class Run(NamedTuple):
    """One run of the suite. ``failed`` has what each failed test printed."""

    busy: bool
    took_s: float
    passed: int
    skipped: int
    failed: dict[str, str]
    code: int

    @property
    def is_good(self) -> bool:
        return not self.code and not self.failed


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quiet", type=int, default=0, metavar="N", help="so many runs on a quiet machine")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="so many with every core kept busy")
    parser.add_argument("--workers", type=int, default=6, metavar="N", help="as pytest -n (default: 6)")
    args, rest = parser.parse_known_args(words)
    if args.quiet + args.busy < 1:
        args.quiet = args.busy = 1
    RESULTS.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for busy in (*[False] * args.quiet, *[True] * args.busy):
        runs.append(run(len(runs) + 1, busy, args.workers, rest))
        (RESULTS / "table.md").write_text(table(runs))
        print(line(len(runs), runs[-1]), *(f"  {test}" for test in runs[-1].failed), sep="\n", flush=True)
    print(f"\n{table(runs)}\n{os.path.relpath(RESULTS)} has the output of each run")
    return 0 if all(each.is_good for each in runs) else 1


def run(number: int, busy: bool, workers: int, rest: Sequence[str]) -> Run:
    report, log = RESULTS / f"run-{number}.xml", RESULTS / f"run-{number}.log"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal"]
    with tempfile.TemporaryDirectory() as home, log.open("wb") as output, load(busy):
        began = time.monotonic()
        done = subprocess.run(
            [*argv, f"--junit-xml={report}", *rest],
            cwd=ROOT,
            env={"HOME": home, "PATH": PLAIN_PATH},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        took_s = time.monotonic() - began
    passed, skipped, failed = read(report)
    return Run(busy, took_s, passed, skipped, failed, done.returncode)


@contextmanager
def load(busy: bool) -> Iterator[None]:
    """Keep every core busy, each by a process that may not leave it."""
    cores = os.sched_getaffinity(0) if busy else ()
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in cores]
    for loop, core in zip(loops, cores, strict=True):
        os.sched_setaffinity(loop.pid, {core})
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def read(report: Path) -> tuple[int, int, dict[str, str]]:
    """How many passed, how many were skipped, and what the others printed."""
    if not report.exists():  # it ended before its end, as a usage error does: the exit code says so
        return 0, 0, {}
    passed = skipped = 0
    failed: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [part for part in case if part.tag in ("failure", "error")]
        if wrong:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed[name] = "\n".join(part.text or "" for part in wrong)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, failed


def line(number: int, each: Run) -> str:
    kind = "busy" if each.busy else "quiet"
    code = f", exit code {each.code}" if each.code and not each.failed else ""
    counts = f"{each.passed} passed, {len(each.failed)} failed, {each.skipped} skipped"
    return f"run {number} ({kind}): {counts}, {each.took_s:.0f} s{code}"


def table(runs: Sequence[Run]) -> str:
    """The runs, and how often each test failed that did."""
    head = ["| run | machine | passed | failed | skipped | seconds |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {number} | {'busy' if each.busy else 'quiet'} | {each.passed} | {len(each.failed)} "
        f"| {each.skipped} | {each.took_s:.0f} |"
        for number, each in enumerate(runs, 1)
    ]
    often: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(runs, 1):
        for test in each.failed:
            often[test].append(number)
    lines = [
        f"- {test}: {len(failed)} of {len(runs)} (runs {', '.join(map(str, failed))})"
        for test, failed in sorted(often.items(), key=lambda item: -len(item[1]))
    ]
    lines += [
        f"- run {number} ended with exit code {each.code}: run-{number}.log has its last words"
        for number, each in enumerate(runs, 1)
        if each.code and not each.failed
    ]
    return "\n".join([*head, *rows, "", *(lines or ["Nothing failed."]), ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
