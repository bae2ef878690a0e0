"""Pythons of other versions on this machine, found as `make matrix` finds them."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

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


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--this-python",
        action="store_true",
        help="leave out tests of programs on other versions of Python than the one that runs the tests",
    )


def leave_out_other_pythons(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --this-python, deselect the tests that have the version of another Python as a parameter."""
    if not config.getoption("--this-python"):
        return
    ours = {f"{sys.version_info.major}.{sys.version_info.minor}"}
    others = [item for item in items if versions_in(item.name) - ours]
    items[:] = [item for item in items if not versions_in(item.name) - ours]
    config.hook.pytest_deselected(items=others)


def versions_in(test: str) -> set[str]:
    """The versions of Python among a test's parameters: {"3.13"} for ``test_a_frame[busy-3.13]``."""
    _, _, parameters = test.partition("[")
    return {each for each in re.split(r"[-\]]", parameters) if re.fullmatch(r"[23]\.\d+t?", each)}
