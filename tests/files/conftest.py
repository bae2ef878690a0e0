"""Folders that others can write to, and somebody else who uses them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs

NOBODY = 65534

needs_root = needs("root", detail="only root can leave files of another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp: everybody may write to it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder that nobody else may write to."""
    folder = tmp_path / "own"
    folder.mkdir(mode=0o755)
    return folder


def planted_link(path: Path, target: Path) -> Path:
    """A link that another user has left at *path*."""
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path
