"""How a process that vram started answers: lines of JSON on descriptor 3."""

from __future__ import annotations

import ctypes
import json
import os

PIPE = 3
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def say(**fields: object) -> None:
    os.write(PIPE, json.dumps(fields).encode() + b"\n")


def end_with_parent() -> None:
    """A call that hangs must not outlive the command that asked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
