"""Through ``sys.remote_exec`` (PEP 768): Python 3.14 and later run a file at a safe point of their own.

Attacher and target must be of the same minor version, so the target's own interpreter is
asked to attach. It tells nobody when the file has run: see :mod:`vram.reach.script_drop`.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from vram.errors import NotReachable
from vram.model.trimming import Via
from vram.reach.permission import why_not_traced
from vram.reach.python_process import PythonProcess, shares_our_world, variables
from vram.reach.request import Raw, Request
from vram.reach.script_drop import ScriptDrop

NAME: Via = "remote-exec"
FIRST_MINOR = 14

_VARIABLE, _OPTION = "PYTHON_DISABLE_REMOTE_DEBUG", "disable-remote-debug"

# Flags of its own, not ours: -I keeps our environment and folder out, -S starts faster.
_ATTACHER = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"


def closed(process: PythonProcess) -> str | None:
    if process.minor is not None and process.minor < FIRST_MINOR:
        return f"its Python 3.{process.minor} has no sys.remote_exec (3.{FIRST_MINOR} has)"
    if not process.is_interpreter or process.minor is None:
        return "its program is not an interpreter of Python 3.14 or later"
    if not os.access(process.executable, os.X_OK):
        return f"its interpreter {process.executable} cannot be started again"
    if _was_disabled(process):
        return "it was started with remote debugging disabled"
    return shares_our_world(process.pid)


def visit(process: PythonProcess, request: Request, deadline_s: float) -> Raw:
    until = time.monotonic() + deadline_s
    with ScriptDrop(request, process, until) as drop:
        pidfd = os.pidfd_open(process.pid)
        try:
            _attach(process, drop.script(), deadline_s)
            return Raw(drop.answer(pidfd))
        finally:
            os.close(pidfd)


def _was_disabled(process: PythonProcess) -> bool:
    """As its start tells. Where that may not be read, its Python says so when it is asked."""
    if _VARIABLE in variables(process.pid):
        return True
    words = iter(process.argv[1:])
    for word in words:
        if (next(words, "") if word == "-X" else word.removeprefix("-X")) == _OPTION:
            return True
        if not word.startswith("-") or word in ("-c", "-m", "-"):  # the program begins
            return False
    return False


def _attach(process: PythonProcess, script: str, deadline_s: float) -> None:
    command = [process.executable, "-I", "-S", "-c", _ATTACHER, str(process.pid), script]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,  # our terminal would let it type into our shell
            text=True,
            errors="replace",
            timeout=deadline_s,
            **_as_its_owner(process),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReachable(f"{process.executable} could not be asked to attach: {error}") from error
    if done.returncode:
        raise _refusal(process, done.stderr.strip().rpartition("\n")[2])


def _as_its_owner(process: PythonProcess) -> dict[str, Any]:
    """The interpreter may be any file of the target's user: root never runs it as root.

    Nor does it read what root's environment says. Our own interpreter keeps ours: it may need
    LD_LIBRARY_PATH to find its libpython.
    """
    if process.is_ours:
        return {}
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    return {"user": process.target.uid, "group": process.gid, "extra_groups": [], "env": environment}


def _refusal(process: PythonProcess, complaint: str) -> NotReachable:
    if "not enabled" in complaint:
        return NotReachable(
            f"pid {process.pid} was started with remote debugging disabled",
            hint=f"unset {_VARIABLE} (or drop -X {_OPTION}) before its next start",
        )
    if complaint.startswith("PermissionError"):
        return NotReachable(f"pid {process.pid} may not be attached to", hint=why_not_traced())
    return NotReachable(f"Python refused to attach to pid {process.pid}: {complaint or 'no reason given'}")
