"""What is installed beside vram: tests that need more say so, and are skipped with a word."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def needs(module: str) -> pytest.MarkDecorator:
    """Skip the test where *module* is not installed."""
    return pytest.mark.skipif(not is_installed(module), reason=f"{module} is not installed")
