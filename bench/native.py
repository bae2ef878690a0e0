"""The benchmark's own C programs, compiled as the project's libraries are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "native"))

from build import compiler  # noqa: E402  (native/ is no package: the build backend loads it by path)

FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


def build(name: str, folder: Path) -> Path:
    """Compile bench/*name*.c into *folder*."""
    return _compile(name, folder / name)


def build_library(name: str, path: Path) -> Path:
    """Compile bench/*name*.c into a shared library at *path*."""
    return _compile(name, path, "-shared", "-fPIC", "-fvisibility=hidden")


def _compile(name: str, path: Path, *flags: str) -> Path:
    source = str(ROOT / "bench" / f"{name}.c")
    subprocess.run([*compiler(), *FLAGS, *flags, "-o", str(path), source, "-ldl"], check=True)
    return path
