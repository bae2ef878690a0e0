"""The site, built once as `make docs` builds it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.needs import require

COLLECT = ROOT / "docs" / "sphinx" / "collect.py"


def sphinx(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run Sphinx as strictly as the Makefile does."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", source, target]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="session")
def needs_sphinx() -> None:
    require("sphinx.application")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, needs_sphinx: None) -> Path:
    """The folder of the built site; its build has passed without a single warning."""
    base = tmp_path_factory.getbasetemp()
    # Workers of one run share a folder above their own: whoever comes first builds for all.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = folder / "told"
        if not told.exists():
            subprocess.run([sys.executable, COLLECT, folder / "source"], check=True)
            done = sphinx(folder / "source", folder / "html")
            told.write_text(done.stderr if done.returncode else "")
    assert not told.read_text(), told.read_text()
    return folder / "html"
