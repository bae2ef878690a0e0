"""A program that is measured: it prints a line of JSON whenever it is asked."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def asked(target: subprocess.Popen[str]) -> Any:
    """Ask *target*, and return what it answers."""
    assert target.stdin is not None
    target.stdin.write("\n")
    target.stdin.flush()
    return heard(target)


def heard(target: subprocess.Popen[str]) -> Any:
    """The next line that *target* prints."""
    assert target.stdout is not None
    return json.loads(target.stdout.readline())
