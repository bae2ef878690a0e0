"""``vram slurm``: a line for each process that was ended, each piece of memory that is held, the verdict."""

from __future__ import annotations

from textwrap import fill

from vram.model.slurm import EndedProcess, Evidence, HookResult, JobHolder, Whose
from vram.report.escape import inert
from vram.report.json import encode
from vram.units import counted, size

_MAX_LENGTH = 120
_BY: dict[Evidence | None, str] = {
    "cgroup": "by its control group",
    "environment": "by its environment",
    "step": "by its step",
    None: "",
}
_WHOSE: dict[Whose, str] = {
    "job": "left by {job}",
    "ended-job": "left by {job}",
    "running-job": "of {job}, which runs",
    "user": "of the job's user, outside every job",
    "other": "of no job",
    "system": "a part of the system",
    "unknown": "its owner is unknown",
}
_VERDICT = {
    "epilog": {"clean": "nothing of the job is held", "held": "memory of the job is still held"},
    "prolog": {"clean": "ready", "held": "not ready"},
    "health": {"clean": "healthy", "held": "memory of ended jobs is held"},
}


def json(result: HookResult) -> bytes:
    return encode(result)


def text(result: HookResult, width: int | None = None) -> str:
    """The result for people; lines are broken at *width*, and left whole for logs."""
    lines = [
        *map(_ended, result.ended),
        *map(_held, result.held),
        *result.reasons,
    ]
    whole = [inert(line) for line in (*lines, _verdict(result))]
    if width is None:
        return "".join(f"{line}\n" for line in whole)
    return "".join(f"{fill(line, width, subsequent_indent='  ')}\n" for line in whole)


def drain_reason(result: HookResult) -> str:
    """One line for `scontrol ... Reason=`: plain characters, and short."""
    held = [piece for piece in result.held if piece.nbytes]
    what = "; ".join(result.reasons) or "GPU memory is held"
    if held:
        nbytes = sum(piece.nbytes or 0 for piece in held)
        gpus = ",".join(str(gpu) for gpu in sorted({piece.gpu for piece in held}))
        what = f"{size(nbytes)} held on GPU {gpus} by no running job"
    kept = "".join(
        char if char.isascii() and (char.isalnum() or char in " .,:;/+-()") else "_" for char in what
    )
    return f"vram: {kept}"[:_MAX_LENGTH]


def _ended(each: EndedProcess) -> str:
    what = "ended" if each.status in ("done", "not-needed") else "not ended"
    who = ", ".join(filter(None, (each.user, f"job {each.left_by} {_BY[each.by]}".strip())))
    return f"{what} pid {each.pid} ({who}): {_short(each.command)}: {each.message}"


def _held(piece: JobHolder) -> str:
    amount = "unknown size" if piece.nbytes is None else size(piece.nbytes)
    where = f"GPU {piece.gpu}: {amount}"
    whose = _WHOSE[piece.whose].format(job=f"job {piece.job_of_process}")
    if piece.whose == "unknown" and piece.job_of_process:
        whose = f"of job {piece.job_of_process}, as it says, whose end was not seen here"
    note = f"; {piece.note}" if piece.note else ""
    if piece.pid is None:
        return f"{where}: {whose}{note}"
    who = f"pid {piece.pid}" + (f" of {piece.user}" if piece.user else "")
    return f"{where} held by {who} ({_short(piece.command or '')}), {whose}{note}"


def _verdict(result: HookResult) -> str:
    job = f"job {result.job.job}: " if result.job else ""
    gpus = f"{counted(len(result.gpus), 'GPU')} read" if result.gpus else "no GPU read"
    freed = f", {size(result.freed_bytes)} freed" if result.freed_bytes else ""
    said = "unknown" if result.verdict == "unknown" else _VERDICT[result.hook][result.verdict]
    shown = ", nothing was touched" if result.dry_run and result.hook != "health" else ""
    return f"{job}{said}; {gpus}{freed}{shown}"


def _short(command: str) -> str:
    return command if len(command) <= _MAX_LENGTH else command[: _MAX_LENGTH - 1] + "…"
