"""Code that runs in other processes: standard library only, and nothing of vram but this package."""

from __future__ import annotations

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(module: str, *arguments: str) -> list[str]:
    """Runs ``main()`` of *module* in a fresh Python, without the user's environment, folder and packages."""
    code = f"import sys; sys.path.append({_ROOT!r}); from vram.payloads.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


# ---- in such a process ----

GONE = "gone"
"""The code of an answer about a process that has ended since, or has closed what was asked about."""
PIPE = 3
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def say(**fields: object) -> None:
    """Answer the vram that started this process: a line of JSON on descriptor 3."""
    import json

    os.write(PIPE, json.dumps(fields).encode() + b"\n")


def end_with_parent(parent: int | None = None) -> None:
    """Be killed when the parent ends (*parent*: also where it has): no call that hangs outlives it."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
