"""Programs that check what lies in deploy/: on the PATH, or beside the interpreter that runs the tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_PLACES = os.pathsep.join(
    (os.environ.get("PATH", ""), str(Path(sys.executable).parent), "/usr/sbin", "/sbin")
)


def find(program: str) -> str | None:
    return shutil.which(program, path=_PLACES)


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip the test where one of *programs* is not there."""
    missing = [each for each in programs if find(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
