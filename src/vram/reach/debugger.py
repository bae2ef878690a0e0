"""Through a debugger, only when asked for: it stops the target for a moment.

gdb, lldb or cuda-gdb attaches, has the target's own Python promise to run a file (see
:mod:`vram.reach.injection`), and leaves; the file runs after that, in the target's own time.
A guardian process keeps the debugger, so that not even our death leaves the target stopped.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from typing import Any

from vram.errors import DebuggerUnavailable, NoSuchProcess, NotReachable, Refused, TimedOut
from vram.host.local.child import interpreter
from vram.model.trimming import Via
from vram.reach.injection import GONE
from vram.reach.permission import ptrace_scope, why_not_traced
from vram.reach.python_process import PythonProcess, shares_our_world, tracer
from vram.reach.request import Raw, Request
from vram.reach.script_drop import ScriptDrop

NAME: Via = "debugger"
PROGRAMS = ("gdb", "lldb", "cuda-gdb")
CHOICE = "VRAM_DEBUGGER"
GRACE_S = 15.0


def closed(process: PythonProcess) -> str | None:
    program()
    if ptrace_scope() in ("1", "2", "3") and (os.geteuid() or ptrace_scope() == "3"):
        raise DebuggerUnavailable(f"no debugger may attach to pid {process.pid}", hint=why_not_traced())
    other = tracer(process.pid)
    if other:
        raise DebuggerUnavailable(
            f"pid {process.pid} is being debugged by pid {other} already", hint="end that first"
        )
    return shares_our_world(process.pid)


def program() -> str:
    """The debugger to use; cuda-gdb last, because it stops the GPU as well."""
    chosen = os.environ.get(CHOICE)
    for name in (chosen,) if chosen else PROGRAMS:
        if found := shutil.which(name) or _of_the_toolkit(name):
            return found
    raise DebuggerUnavailable(
        f"there is no debugger here ({chosen or ', '.join(PROGRAMS)})",
        hint="install one: apt-get install gdb",
    )


def _of_the_toolkit(name: str) -> str | None:
    folder = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which(name, path=os.path.join(folder, "bin"))


def visit(process: PythonProcess, request: Request, deadline_s: float) -> Raw:
    until = time.monotonic() + deadline_s
    with ScriptDrop(request, process, until) as drop:
        pidfd = os.pidfd_open(process.pid)
        try:
            _send_guardian(process, drop, until)
            return Raw(drop.answer(pidfd))
        finally:
            os.close(pidfd)


def _send_guardian(process: PythonProcess, drop: ScriptDrop, until: float) -> None:
    """Wait until the target has been visited and let go of; raises why it was left alone."""
    orders = {
        "pid": process.pid,
        "started_at": process.target.process.started_at,
        "minor": process.minor,
        "code": drop.starter(),
        "folder": drop.path,
        "debugger": program(),
        "until": until,
    }
    guardian = subprocess.Popen(
        interpreter("vram.reach.guardian"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,  # a line that lies in a buffer would not be seen by poll
    )
    assert guardian.stdin is not None
    guardian.stdin.write(json.dumps(orders).encode() + b"\n")
    guardian.stdin.close()
    _listen(process, guardian, until)


def _listen(process: PythonProcess, guardian: subprocess.Popen[bytes], until: float) -> None:
    assert guardian.stdout is not None
    told: dict[str, Any] = {}
    with guardian.stdout as pipe:
        while told.get("event") != "left":
            if not _speaks(pipe.fileno(), until + GRACE_S):
                raise TimedOut(
                    f"the debugger is still inside pid {process.pid}, in a call that must not be cut off",
                    hint="it leaves by itself when the call returns",
                )
            line = pipe.readline() or b'{"event": "left", "message": "its guardian has ended"}'
            told = {**told, **json.loads(line)}
    guardian.wait()
    if "route" not in told:
        raise _refusal(process, str(told.get("message", "it gave no reason")))


def _speaks(pipe: int, until: float) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


def _refusal(process: PythonProcess, message: str) -> Refused:
    if message == GONE:
        return NoSuchProcess(f"process {process.pid} has ended meanwhile")
    if "not permitted" in message:
        return DebuggerUnavailable(f"no debugger may attach to pid {process.pid}", hint=why_not_traced())
    if "in time" in message:
        return TimedOut(
            f"the debugger took too long with pid {process.pid}; the process runs on",
            hint="--deadline gives it longer",
        )
    return NotReachable(f"the debugger left pid {process.pid} alone: {message}")
