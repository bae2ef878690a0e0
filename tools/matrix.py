"""Run the suite on every supported Python of this machine, each in an environment of its own: `make matrix`.

python tools/matrix.py [--pythons VERSION,VERSION...] [PYTEST-ARGUMENT...]

It ends with a table: how many tests passed, failed and were skipped on each, and how long that took with the
set-up of its environment. Exit 1 if a test failed, or a Python that was named is not there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pythons import find
from repeat import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".build" / "matrix"
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
HEAD = ("Python", "passed", "failed", "skipped", "seconds")


class Run(NamedTuple):
    """The suite on one Python. ``code`` is pytest's, 0 where all is well."""

    version: str
    passed: int
    failed: int
    skipped: int
    took_s: float
    code: int


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pythons", default="", metavar="VERSION,...", help="those alone")
    args, rest = parser.parse_known_args(words)
    named = [each for each in args.pythons.split(",") if each]
    runs, missing = [], []
    for version in named or SUPPORTED:
        interpreter = find(version)
        if interpreter is None:
            missing.append(version)
            continue
        print(f"Python {version}: {interpreter}", flush=True)
        runs.append(suite(version, interpreter, rest))
    print("\n".join(table(runs)))
    for version in missing:
        print(f"Python {version} is not here, and was not tested")
    return 1 if any(run.code for run in runs) or (named and missing) else 0


def suite(version: str, interpreter: str, arguments: Sequence[str]) -> Run:
    report = RESULTS / f"{version}.xml"
    report.unlink(missing_ok=True)
    options = " ".join([f"--junit-xml={report}", *arguments])
    words = [f"PYTHON={interpreter}", f"VENV=.build/matrix/{version}", f"ARGS={options}"]
    # The outer make's flags would carry its own PYTHON and VENV into this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    began = time.monotonic()
    code = subprocess.run(["make", "test", *words], cwd=ROOT, env=environment).returncode
    passed, skipped, failed = read(report)
    return Run(version, passed, len(failed), skipped, time.monotonic() - began, code)


def table(runs: Sequence[Run]) -> list[str]:
    """A line for each run; one that ended before its tests did has the exit code of make."""
    rows = [
        (
            run.version,
            *map(str, (run.passed, run.failed, run.skipped)),
            f"{run.took_s:.0f}" + (f"   ended with {run.code}" if run.code and not run.failed else ""),
        )
        for run in runs
    ]
    return ["  ".join(f"{cell:>7}" for cell in row) for row in (HEAD, *rows)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
