"""The benchmark's own C programs, compiled as the project's libraries are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "native"))

from build import compiler  # noqa: E402  (native/ is no package: the build backend loads it by path)


def build(name: str, folder: Path) -> Path:
    """Compile bench/*name*.c into *folder*."""
    program = folder / name
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*compiler(), *flags, str(ROOT / "bench" / f"{name}.c"), "-ldl"], check=True)
    return program
