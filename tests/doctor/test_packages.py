"""Versions are those that Python's own, slower way tells."""

from __future__ import annotations

from importlib.metadata import version as told
from pathlib import Path

import pytest

from vram.doctor.collect import UNKNOWN, version


@pytest.mark.parametrize(
    ("distribution", "module"), [("msgspec", "msgspec"), ("nvidia-ml-py", "pynvml"), ("rich", "rich")]
)
def test_it_is_the_version_that_is_installed(distribution: str, module: str) -> None:
    assert version(distribution, module) == told(distribution)


def test_names_are_compared_as_installers_do(tmp_path: Path) -> None:
    (tmp_path / "Some.Package-1.0rc1.dist-info").mkdir()
    (tmp_path / "some_package_extra-9.dist-info").mkdir()
    assert version("some-package", "no_such_module", [str(tmp_path / "absent"), str(tmp_path)]) == "1.0rc1"


def test_a_module_without_a_package_is_there_all_the_same() -> None:
    assert version("no-such-package", "json", []) == UNKNOWN
    assert version("no-such-package", "no_such_module", []) is None
