"""Code that runs in other processes: standard library only, and nothing of vram but this package."""

from __future__ import annotations

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``main()`` of *module* in this package, in a fresh interpreter.

    Nothing of the user's environment, working directory or site packages takes part in it.
    """
    code = f"import sys; sys.path.append({_ROOT!r}); from vram.payloads.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *arguments]
