"""What is installed beside vram: tests that need more say so, and are skipped with a word."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

BUILT = Path(__file__).parents[1] / ".build"


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def why_not(module: str) -> str:
    """Why *module* is not installed, where a tool that should build it left the reason."""
    reason = BUILT / module / "not-built.txt"
    return f"{module} is not installed" + (f": {reason.read_text().strip()}" if reason.exists() else "")


def needs(module: str) -> pytest.MarkDecorator:
    """Skip the test where *module* is not installed."""
    return pytest.mark.skipif(not is_installed(module), reason=why_not(module))
