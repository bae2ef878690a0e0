"""What lies in deploy/, and the wheel that packages are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tools"))

import bundle as bundle  # noqa: E402
from matrix import SUPPORTED as SUPPORTED  # noqa: E402


def build_wheel(into: Path, tree: Path = ROOT, **env: str) -> Path:
    """A wheel of *tree*, by the installed hatchling: no environment is made for it."""
    return _build("wheel", into, tree, env)


def build_source(into: Path) -> Path:
    """The source archive of this checkout."""
    return _build("sdist", into, ROOT, {})


def _build(kind: str, into: Path, tree: Path, env: dict[str, str]) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(into)]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made
