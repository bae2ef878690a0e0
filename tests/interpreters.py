"""Pythons of other versions on this machine."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def interpreter(version: str) -> str | None:
    """A Python of *version*, such as "3.12": pyenv's newest, or the one on PATH. None where none starts."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True)
    on_path = shutil.which(f"python{version}")
    candidates = [*map(str, installed), *([on_path] if on_path else [])]
    return next((each for each in candidates if _starts(each)), None)


def _starts(python: str) -> bool:
    """A pyenv shim exists for versions that it then refuses to start: only running tells."""
    return not subprocess.run([python, "-c", ""], capture_output=True).returncode
