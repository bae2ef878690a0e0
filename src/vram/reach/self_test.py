"""Which routes into a CPython work on this machine: tried on Pythons that we start, one for each."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress

from vram.errors import VramError
from vram.model.doctor import AttachTest
from vram.model.plan import Target
from vram.model.process import ProcessRef
from vram.payloads import agent
from vram.payloads.procfs import started_at
from vram.reach import debug_offsets, injection, remote_exec
from vram.reach.payload import PayloadRequest, require_done
from vram.reach.python_process import examine

DEADLINE_S = 2.0

_READY = "import os, sys; os.write(1, b'.')\n"
# Each ends when its standard input does.
_STATES = {
    "at work": "import select\n" + _READY + "while not select.select([0], [], [], 0)[0]: sum(range(1000))",
    "at rest": _READY + "os.read(0, 1)",
    "waiting for a lock": "import _thread\n" + _READY + "lock = _thread.allocate_lock(); lock.acquire()\n"
    "_thread.start_new_thread(lambda: (os.read(0, 1), os._exit(0)), ())\nlock.acquire()",
}


def attach() -> AttachTest:
    """Measure a Python at work, one at rest and one that waits for a lock; all of them are ours."""
    routes: dict[str, float] = {}
    errors: dict[str, str] = {}
    folder = agent.folders()[0]
    made = not os.path.exists(folder)
    for state, code in _STATES.items():
        try:
            routes[state] = _stopped_s(code) * 1000
        except (VramError, OSError) as error:
            errors[state] = str(error)
    if made:
        with suppress(OSError):
            os.rmdir(folder)
    return AttachTest(version=f"{sys.version_info[0]}.{sys.version_info[1]}", routes=routes, errors=errors)


def _stopped_s(code: str) -> float:
    """For how long a Python that runs *code* was stopped."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.read(1)
        python = examine(_target(process.pid))
        injector = injection if sys.version_info < (3, debug_offsets.FIRST_MINOR) else remote_exec
        raw = injector.run(python, PayloadRequest("trim", {"verb": "measure"}), DEADLINE_S)
        require_done(process.pid, raw.body)
        return raw.stopped_s or 0.0


def _target(pid: int) -> Target:
    return Target(
        process=ProcessRef(pid, started_at(pid)),
        uid=os.geteuid(),
        user=None,
        command=sys.executable,
        executable=os.readlink(f"/proc/{pid}/exe"),
    )
