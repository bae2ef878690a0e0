"""Straight in, through the kernel: CPython 3.9 to 3.14, without a debugger and without harm."""

from __future__ import annotations

import time

from vram.model.inside import Via
from vram.reach.entry import converse, opened, refusals, why_closed
from vram.reach.python_process import PythonProcess, pidfd_of
from vram.reach.request import Raw, Request
from vram.reach.script_drop import ScriptDrop

NAME: Via = "ptrace"


def closed(process: PythonProcess) -> str | None:
    """Why this way does not lead in; nothing is stopped or changed to find out."""

    def require() -> None:
        with opened(process) as entry:
            entry.python.require_usable()

    return why_closed(process, require)


def visit(process: PythonProcess, request: Request, deadline_s: float) -> Raw:
    until = time.monotonic() + deadline_s
    with (
        refusals(process),
        opened(process) as entry,
        pidfd_of(process) as pidfd,
        ScriptDrop(request, process, until) as drop,
    ):
        return converse(entry, drop, pidfd, until)
