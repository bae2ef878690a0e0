"""Start and stop the recorder in a process that already runs, by the injectors of :mod:`vram.reach`.

Only in processes of this user (root: of any user), each compared by pidfd before it is touched, and logged
before and after. The recorder and its file belong to the process; it goes on when vram ends, and its library
stays loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from vram.errors import (
    CallsGivenUp,
    CannotRecord,
    NoSuchProcess,
    NotReachable,
    Refused,
    TargetDied,
    UsageError,
    VramError,
    WorldChanged,
)
from vram.host.ports import Host
from vram.ledger.processes import processes
from vram.model.inside import Bytes, Count, Text, Via
from vram.model.plan import Target
from vram.payloads.procfs import ProcessFolder
from vram.reach import payload
from vram.reach.injectors import ask, choose_injector
from vram.reach.target_process import TargetProcess
from vram.reach.target_root import sees_our_files
from vram.reclaim import audit
from vram.reclaim.device_state import read_ledger
from vram.reclaim.identity import identify, open_verified
from vram.trace import cupti
from vram.trace.elsewhere import describe
from vram.trace.launch import FRAMEWORK_PAYLOAD, LIBRARY, Framework, Stacks, require_library

PAYLOAD = "tracer.control"
FOLDERS_APART = ("/tmp", "/var/tmp", "/dev/shm")
"""Where a process that sees other files writes its trace: the first where it may."""
NAMING_PAYLOAD = "tracer.begin"
"""The same, and what the arrays are called that the process has by then."""
Outcome = Literal[
    "recording", "already recording", "output", "no recorder", "failed", "stopped", "not recording"
]
LongText = Annotated[str, Meta(max_length=5000)]

# By the codes of the recorder (native/tracer).
_HINTS = {
    3: "install CUPTI into its environment: `pip install nvidia-cuda-cupti-cu12`, for CUDA 13"
    " `pip install nvidia-cuda-cupti`",
    4: "a profiler or another tracer is at work in it; end that first",
}
_RUN_INSTEAD = "`vram run -- COMMAND` records a program from its start"
_RUN_BEFORE = "`vram run -- COMMAND` records a program from its start, before it gives them up"


class HeldLine(Struct, frozen=True):
    """What the process held on one device before recording began, and who says so."""

    device: Annotated[int, Meta(ge=-1, le=4096)]
    nbytes: Bytes
    source: LongText


class RecorderAnswer(Struct, frozen=True, kw_only=True):
    """What the process says about its recorder."""

    outcome: Outcome
    python: Text | None = None
    file: LongText = ""
    error: LongText = ""
    code: int = 0
    events: Count = 0
    nbytes: Bytes = 0
    lost: Count = 0
    held: Annotated[tuple[HeldLine, ...], Meta(max_length=4096)] = ()
    frameworks: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    uses_cuda: bool = True


class AttachReceipt(Struct, frozen=True, kw_only=True):
    """A process in which the recorder was started or stopped, and how it was reached."""

    target: Target
    via: Via
    answer: RecorderAnswer
    stopped_s: float | None = None
    waited_s: float | None = None
    apart: bool = False
    """It sees other files than vram: the trace is one of its own, until it is brought here."""


def attach(
    host: Host,
    pid: int,
    output: str,
    *,
    stacks: Stacks = "python",
    framework: Framework | None = None,
    for_s: float | None = None,
    via: str | None = None,
    deadline_s: float = 30.0,
) -> AttachReceipt:
    """Start recording *pid* into *output*; raises why that was not done."""
    if "\n" in output:
        raise UsageError("the file's name contains a line break", hint="choose another file with -o")
    try:
        output.encode()
    except UnicodeEncodeError as error:  # the process answers with the name in JSON
        raise UsageError("the file's name is not UTF-8", hint="choose another file with -o") from error
    with audit.refusals_logged("attach", [pid]):
        target = identify(host, pid)
    require_library()
    process = _require_reachable(target, via)
    apart = not sees_our_files(pid)
    if framework is not None and not process.is_python:
        raise UsageError(f"pid {pid} is not a Python process: no framework can be asked there")
    run = os.urandom(16).hex()
    fields: dict[str, Any] = {
        "verb": "start",
        "library": LIBRARY,
        "settings": {"output": output, "stacks": stacks, "run": run},
        "for_s": for_s,
        "framework": framework,
        "frameworks_file": FRAMEWORK_PAYLOAD if os.path.exists(FRAMEWORK_PAYLOAD) else None,
        "held": held_now(host, pid, deadline_s),
    }
    if apart:
        # Its own files: a name that nobody can have prepared, where it may write.
        fields["settings"]["output"] = f"vram-trace-{run}.vram"
        fields["folders"] = FOLDERS_APART
        fields["elsewhere"] = describe(pid)
        fields |= {"newest_cuda": cupti.newest_cuda(host.system.host_files().driver.module_version)}
    else:
        fields |= _cupti_fields(host, target)
    receipt = _ask_and_log(host, target, "attach", fields, via, deadline_s)
    _require_recording(receipt)
    return receipt


def detach(host: Host, pid: int, *, via: str | None = None, deadline_s: float = 30.0) -> AttachReceipt:
    """Stop recording *pid*, no matter which process began it; raises where it is not being recorded."""
    with audit.refusals_logged("detach", [pid]):
        target = identify(host, pid)
    _require_reachable(target, via)
    receipt = _ask_and_log(host, target, "detach", {"verb": "stop"}, via, deadline_s)
    if receipt.answer.outcome != "stopped":
        raise CannotRecord(f"pid {pid} is not being recorded", hint=f"`vram attach {pid}` begins")
    return receipt


def held_now(host: Host, pid: int, deadline_s: float) -> list[dict[str, Any]]:
    """What the driver charges *pid* with, by GPU; nothing where it does not say."""
    try:
        ledger = read_ledger(host, (), deadline_s)
    except VramError:
        return []
    process = processes(ledger).get(pid)
    if process is None or not process.certain:
        return []
    uuids = {gpu.index: gpu.uuid for gpu in ledger.gpus}
    return [
        {"uuid": uuids.get(gpu) or "", "nbytes": nbytes, "source": "the driver, its context included"}
        for gpu, nbytes in process.charged_by_gpu.items()
        if nbytes
    ]


def _require_reachable(target: Target, via: str | None) -> TargetProcess:
    try:
        return choose_injector(target, via, PAYLOAD)[0]
    except CallsGivenUp as error:
        raise CallsGivenUp(str(error), hint=_RUN_BEFORE) from error
    except NotReachable as error:
        raise NotReachable(str(error), hint=_RUN_INSTEAD) from error


def _ask_and_log(
    host: Host, target: Target, action: str, fields: dict[str, Any], via: str | None, deadline_s: float
) -> AttachReceipt:
    record = {"action": action, "target": to_builtins(target), "via": via}
    token = audit.log_intent(record | {"output": fields.get("settings", {}).get("output")})
    try:
        reply, answer = _ask(host, target, fields, via, deadline_s)
    except BaseException as error:
        status = "refused" if isinstance(error, Refused) else "failed"
        audit.log_outcome(token, {"status": status, "message": f"{type(error).__name__}: {error}"})
        raise
    audit.log_outcome(token, {"status": "done", "outcome": answer.outcome, "file": answer.file})
    return AttachReceipt(
        target=target,
        via=reply.via,
        answer=answer,
        stopped_s=reply.stopped_s,
        waited_s=reply.waited_s,
        apart=not sees_our_files(target.process.pid),
    )


def _ask(
    host: Host, target: Target, fields: dict[str, Any], via: str | None, deadline_s: float
) -> tuple[payload.PayloadAnswer, RecorderAnswer]:
    with open_verified(host, target):
        name = NAMING_PAYLOAD if fields.get("framework") else PAYLOAD
        reply = ask(target, name, fields, deadline_s, via=via, files=("library", "frameworks_file"))
    return reply, payload.decoded(target.process.pid, reply.body, RecorderAnswer)


def _require_recording(receipt: AttachReceipt) -> None:
    answer, pid = receipt.answer, receipt.target.process.pid
    if answer.outcome == "recording":
        return
    if answer.outcome == "already recording":
        raise CannotRecord(
            f"pid {pid} is being recorded already, into {answer.file or 'a file that does not exist yet'}",
            hint=f"`vram attach {pid} --stop` ends that",
        )
    if answer.outcome == "output":
        raise CannotRecord(
            f"pid {pid} cannot write the trace: {answer.error}",
            hint="it needs a folder to write to: mount a tmpfs at /tmp in its container"
            if receipt.apart
            else f"the file is made by the process itself, as {receipt.target.user or 'its user'}:"
            " choose another with -o",
        )
    if answer.outcome == "no recorder":
        raise CannotRecord(
            f"pid {pid} cannot load vram's recorder: {answer.error}",
            hint=f"{LIBRARY} must be readable there"
            if not receipt.apart
            else "a security module may forbid it to execute files in memory",
        )
    reason = answer.error or f"the recorder answered {answer.code}"
    raise CannotRecord(f"pid {pid} cannot be recorded: {reason}", hint=_HINTS.get(answer.code, ""))


def _cupti_fields(host: Host, target: Target) -> dict[str, Any]:
    """Where CUPTI may be for *target*, by what it was started with."""
    environment = _environment(target.process.pid)
    driver = host.system.host_files().driver.module_version
    program = [target.executable] if target.executable else []
    first = cupti.chosen(environment)
    every = cupti.candidates(program, environment, host.system.cupti(), driver)
    return {
        "cupti_first": list(first),
        "cupti": [path for path in every if path not in first],
        "newest_cuda": cupti.newest_cuda(driver),
    }


def _environment(pid: int) -> Mapping[str, str]:
    try:
        with ProcessFolder("/proc", pid) as folder:
            raw = folder.read("environ", 1 << 20) or b""
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in raw.split(b"\0") if b"=" in word)
    return {name: value for name, _, value in pairs}


# ---- until it ends by itself ----

_MAX_PAUSE_S = 30.0
_LOOK_AGAIN_S = 0.5
# What a recording takes to end after its time is over: frameworks hand over their account first.
_ENDING_S = 30.0


def wait_for_end(host: Host, receipt: AttachReceipt, for_s: float) -> bool:
    """Wait until the recording of *receipt* has ended; False where it goes on although its time is over.

    It ends by its own timer, by `vram attach --stop`, or with its process, which is asked now and then.
    """
    handle = host.signals.open(receipt.target.process.pid)
    if handle is None:
        return True
    began, pause_s = host.clock.monotonic(), 1.0
    try:
        while (spent_s := host.clock.monotonic() - began) < for_s + _ENDING_S:
            left_s = for_s + _LOOK_AGAIN_S - spent_s
            if handle.ended(min(pause_s, left_s) if left_s > 0 else _LOOK_AGAIN_S):
                return True
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            if not _is_recording(host, receipt):
                return True
    finally:
        handle.close()
    return False


def _is_recording(host: Host, receipt: AttachReceipt) -> bool:
    fields = {"verb": "status", "file": receipt.answer.file}
    try:
        _, answer = _ask(host, receipt.target, fields, receipt.via, _ENDING_S)
    except (NoSuchProcess, TargetDied, WorldChanged):  # it has ended, or is another program now
        return False
    except Refused:  # it does not answer just now
        return True
    return answer.outcome == "recording"
