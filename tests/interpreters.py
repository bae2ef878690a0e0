"""Pythons of other versions on this machine, found as `make matrix` finds them."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("pythons", Path(__file__).parents[1] / "tools" / "pythons.py")
assert _spec is not None
assert _spec.loader is not None
finder = module_from_spec(_spec)
_spec.loader.exec_module(finder)


def interpreter(version: str) -> str | None:
    """A Python of *version*, such as "3.12"; None where none starts."""
    found: str | None = finder.find(version)
    return found


def recorded_name(qualified: str) -> str:
    """What a recorder calls a function of this Python: before 3.11 no code knows its class."""
    return qualified if sys.version_info >= (3, 11) else qualified.rpartition(".")[2]
