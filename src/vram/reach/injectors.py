"""The injectors, which run a payload in a live process, safest first; the choice among them; a self test."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from vram.errors import AttachDenied, NotReachable, TimedOut, VramError
from vram.model.doctor import AttachTest
from vram.model.inside import Trimmed, Verb, Via
from vram.model.plan import Target
from vram.model.process import ProcessRef
from vram.payloads.agent import folders
from vram.payloads.procfs import started_at
from vram.reach import agent, injection, jupyter, native, remote_exec, visitor_library
from vram.reach.cpython import FIRST_REMOTE_EXEC_MINOR
from vram.reach.deadline import run_with_deadline
from vram.reach.payload import PayloadAnswer, PayloadRequest, RawAnswer, decoded, require_done
from vram.reach.target_process import ENDING_S, TargetProcess, died, examine, has_ended, pidfd_of


class Injector(Protocol):
    """``unavailable_reason`` says why it cannot be used, or raises AttachDenied; it touches nothing.

    ``run`` has the payload answer inside the process. Whatever it raises, the target runs on.
    """

    NAME: Via

    def unavailable_reason(self, process: TargetProcess) -> str | None: ...
    def run(self, process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer: ...


INJECTORS: tuple[Injector, ...] = (agent, jupyter, remote_exec, injection, native)
"""Safest first. The first two do not stop the process. The next two do so for about a millisecond, and the
last one stops a single thread; it is for every program, the others for Python."""

_CHOOSING_S = 2.0

BY_NAME: dict[str, Injector] = {injector.NAME: injector for injector in INJECTORS}


class TrimAnswer(Struct, frozen=True):
    """What a process answered to trim or measure, by which injector, and what that cost it.

    It was stopped for ``stopped_s``; another of its threads waited for ``waited_s`` at most.
    """

    via: Via
    answer: Trimmed
    stopped_s: float | None = None
    waited_s: float | None = None


def choose_injector(
    target: Target, via: str | None = None, payload: str = "trim"
) -> tuple[TargetProcess, Injector]:
    """The safest injector that is available for *payload*, or the one called *via*; raises why none is."""
    pid, uid = target.process.pid, target.uid
    process, name = run_with_deadline(_CHOOSING_S, pid, uid, lambda: _choose(target, via, payload))
    return process, BY_NAME[name]


def possible_injectors(
    process: TargetProcess, payload: str = "trim", via: str | None = None
) -> tuple[Injector, ...]:
    """Those that can run *payload* in a process of that kind, whatever its state.

    In a Python the last one reaches only what is not Python's: it is used there where it is asked for.
    """
    others = INJECTORS[:-1] if process.is_python else ()
    is_wanted = payload in visitor_library.PAYLOADS and (not process.is_python or via == native.NAME)
    return (*others, native) if is_wanted else others


def _choose(target: Target, via: str | None, payload: str) -> tuple[TargetProcess, str]:
    process = examine(target)
    possible = possible_injectors(process, payload, via)
    wanted = [each for each in possible if via in (None, each.NAME)]
    if not wanted:
        raise _wrong_kind(process, via)
    reasons = {}
    denied: AttachDenied | None = None
    for injector in wanted:
        try:
            reason = injector.unavailable_reason(process)
        except AttachDenied as error:
            denied, reason = error, str(error)
        if reason is None:
            return process, injector.NAME
        reasons[injector.NAME] = reason
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    message = f"cannot attach to pid {process.pid} ({listed})"
    if denied is not None:
        raise AttachDenied(message, hint=denied.hint) from denied
    raise NotReachable(
        message,
        hint="leave out --via: vram uses the safest that is available"
        if via is not None
        else "have it call vram.agent(), which needs no permission"
        if process.is_python
        else "in its own code, cudaMemPoolTrimTo releases what its pools do not use",
    )


def _wrong_kind(process: TargetProcess, via: str | None) -> NotReachable:
    name = os.path.basename(process.executable)
    if process.is_python:
        return NotReachable(f"pid {process.pid} is a Python process: {via} cannot do this there")
    if via is not None and via != native.NAME:
        return NotReachable(
            f"pid {process.pid} is not a Python process ({name}), which {via} needs",
            hint="leave out --via: vram uses the safest that is available",
        )
    return NotReachable(
        f"pid {process.pid} is not a Python process ({name})",
        hint="only Python knows its arrays; `vram why PID` and `vram trim PID` work for any CUDA program",
    )


def ask(
    target: Target,
    payload: str,
    fields: dict[str, Any],
    deadline_s: float,
    *,
    via: str | None = None,
    files: tuple[str, ...] = (),
) -> PayloadAnswer:
    """Have *payload* answer inside *target*; raises a Refused where that cannot be, target unharmed.

    Raises TargetDied where it ended meanwhile.

    *payload* is a module of ``vram/payloads`` with ``answer(request)``; *fields* are plain JSON data, and
    *files* those of them that are paths of vram's own files.
    """

    def choose_and_run() -> PayloadAnswer:
        process, name = _choose(target, via, payload)
        with pidfd_of(process) as pidfd:
            try:
                raw = BY_NAME[name].run(process, PayloadRequest(payload, fields, files), deadline_s)
            except (NotReachable, TimedOut) as error:
                # These hear of its end only as of a connection that is closed, or silent.
                if name in (agent.NAME, jupyter.NAME) and has_ended(pidfd, ENDING_S):
                    raise died(process.pid) from error
                raise
            if has_ended(pidfd):
                raise died(process.pid)
        waited_s = require_done(process.pid, raw.body)
        return PayloadAnswer(BY_NAME[name].NAME, raw.body, raw.stopped_s, waited_s)

    return run_with_deadline(deadline_s, target.process.pid, target.uid, choose_and_run)


def ask_trim(
    target: Target,
    verb: Verb,
    deadline_s: float,
    *,
    tracebacks: bool = False,
    collect: bool = False,
    via: str | None = None,
) -> TrimAnswer:
    """Have *target* trim or measure; raises a Refused where that cannot be, target unharmed.

    *collect*: with a full garbage collection first, during which no other thread of it runs.
    """
    fields = {"verb": verb, "tracebacks": tracebacks, "collect": collect}
    answer = ask(target, "trim", fields, deadline_s, via=via)
    told = decoded(target.process.pid, answer.body, Trimmed)
    return TrimAnswer(answer.via, told, answer.stopped_s, answer.waited_s)


# ---- a self test: which routes into a CPython work on this machine ----

_SELF_TEST_S = 2.0

_READY = "import os, sys; os.write(1, b'.')\n"
# Each ends when its standard input does.
_STATES = {
    "at work": "import select\n" + _READY + "while not select.select([0], [], [], 0)[0]: sum(range(1000))",
    "at rest": _READY + "os.read(0, 1)",
    "waiting for a lock": "import _thread\n" + _READY + "lock = _thread.allocate_lock(); lock.acquire()\n"
    "_thread.start_new_thread(lambda: (os.read(0, 1), os._exit(0)), ())\nlock.acquire()",
}


# It waits as a program does that knows no Python: no handler may run in its thread.
_NATIVE_STATE = "import _signal\n_signal.signal(2, 0)\n" + _READY + "os.read(0, 1)"


def measure_routes() -> AttachTest:
    """Attach to a Python at work, one at rest and one that waits for a lock, all started for this.

    And to one more as if it were none.
    """
    routes: dict[str, float] = {}
    errors: dict[str, str] = {}
    native_ms, native_error = None, ""
    folder = folders()[0]
    made = not os.path.exists(folder)
    for state, code in _STATES.items():
        try:
            routes[state] = _stopped_s(code) * 1000
        except (VramError, OSError) as error:
            errors[state] = str(error)
    try:
        native_ms = _stopped_s(_NATIVE_STATE, native) * 1000
    except (VramError, OSError) as error:
        native_error = str(error)
    if made:
        with suppress(OSError):
            os.rmdir(folder)
    return AttachTest(
        version=f"{sys.version_info[0]}.{sys.version_info[1]}",
        routes=routes,
        errors=errors,
        native_ms=native_ms,
        native_error=native_error,
    )


def _stopped_s(code: str, injector: Injector | None = None) -> float:
    """For how long a Python that runs *code* was stopped."""
    import subprocess

    arguments = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            python = examine(
                Target(
                    process=ProcessRef(process.pid, started_at(process.pid)),
                    uid=os.geteuid(),
                    user=None,
                    command=sys.executable,
                    executable=os.readlink(f"/proc/{process.pid}/exe"),
                )
            )
            if injector is None:
                injector = injection if sys.version_info < (3, FIRST_REMOTE_EXEC_MINOR) else remote_exec
            raw = injector.run(python, PayloadRequest("trim", {"verb": "measure"}), _SELF_TEST_S)
            require_done(process.pid, raw.body)
        finally:
            process.kill()
    return raw.stopped_s or 0.0
