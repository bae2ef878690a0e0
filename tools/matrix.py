"""Run the suite on every supported Python of this machine, each in an environment of its own.

python tools/matrix.py [PYTEST-ARGUMENT...]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pythons import find

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")


def main(arguments: list[str]) -> int:
    failed = []
    for version in SUPPORTED:
        interpreter = find(version)
        if interpreter is None:
            print(f"Python {version}: not found, not tested", flush=True)
            continue
        print(f"Python {version}: {interpreter}", flush=True)
        if suite(version, interpreter, arguments):
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}")
    return 1 if failed else 0


def suite(version: str, interpreter: str, arguments: list[str]) -> int:
    words = [f"PYTHON={interpreter}", f"VENV=.build/matrix/{version}", f"ARGS={' '.join(arguments)}"]
    # The outer make's flags would carry its own PYTHON and VENV into this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", "test", *words], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
