"""Holders and entries in words: who, since when, where from. Plain strings, not yet escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vram.ledger.jobs import job_of
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.model.parking import Parked
from vram.model.process import ParkedProcess, Workload
from vram.model.windows import WindowsProcess
from vram.report.escape import inert
from vram.units import counted, duration, size

if TYPE_CHECKING:
    from vram.diagnosis.verdict import GpuVerdict
    from vram.model.change import WatchedGpu

_FIRST_WORDS = 160
"""How many characters are shown of a command that is a program of several lines."""
_FEW_PIDS = 8
_STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "zombie",
    "X": "dead",
    "D": "waiting in the kernel",
}


def gpu_label(gpu: GpuLedger | GpuVerdict | WatchedGpu) -> str:
    """Return how a GPU, or one MIG instance of it, is called in front of its name."""
    return f"GPU {gpu.index}" if gpu.mig is None else f"MIG {gpu.mig}"


def memory_figures(entries: Sequence[Entry], total: int | None) -> str:
    """Return used, free and total; memory that no MIG instance was given is neither of both."""
    if total is None:
        return ""
    if total == 0:
        return "no memory of its own"
    sums = {
        kind: known_bytes(e for e in entries if e.kind == kind)
        for kind in ("free", "unreported", "unassigned")
    }
    used = size(total - sum(sums.values()))
    if sums["unreported"]:
        return f"{used} used at least · {size(total)} total"
    unassigned = f" · {size(sums['unassigned'])} unassigned" if sums["unassigned"] else ""
    return f"{used} used · {size(sums['free'])} free{unassigned} · {size(total)} total"


def identity(holder: Holder, *, origin: bool = True) -> list[str]:
    """Return who a holder is, in parts: pid, user, age, what started it, and what is odd about it."""
    inside = f" ({holder.inner_pid} inside)" if holder.inner_pid is not None else ""
    parts = [f"pid {holder.pid}{inside}"]
    if holder.user:
        parts.append(holder.user)
    if not holder.alive:
        parts.append("dead" if holder.visible else "not visible from here")
    elif holder.age_s is not None:
        parts.append(duration(holder.age_s))
    started_by = workload(holder.workload) if origin else ""
    if started_by:
        parts.append(started_by)
    notebook = holder.workload.notebook
    if notebook and started_by != f"notebook {notebook}":
        parts.append(f"notebook {notebook}")
    return parts + oddities(holder)


def membership(ledger: Ledger, pid: int) -> str:
    """Return what a process was launched as a part of: its rank, the others, the launcher; else ""."""
    held = job_of(ledger, pid)
    if held is None:
        return ""
    job = held.job
    if pid == job.launcher and pid not in held.pids:
        return f"launched {counted(len(held.pids), 'process')} that hold GPU memory, by {job.by}"
    own = next(each.job for each in held.holders if each.pid == pid)
    rank = f"rank {own.rank} of {own.size}" if own and own.rank is not None else f"a part of a {job.by} job"
    words = [f"{rank} in a {job.by} job" if rank.startswith("rank") else rank]
    others = [str(each) for each in held.pids if each != pid]
    if others:
        more = f" and {len(others) - _FEW_PIDS} more" if len(others) > _FEW_PIDS else ""
        words.append(f"with pid {', '.join(others[:_FEW_PIDS])}{more}")
    if held.missing_ranks:
        few = ", ".join(map(str, held.missing_ranks[:_FEW_PIDS]))
        words.append(f"not on a GPU: rank {few}{', ...' if len(held.missing_ranks) > _FEW_PIDS else ''}")
    if job.is_orphan:
        words.append("launcher dead")
    elif job.launcher is not None:
        words.append(f"launcher pid {job.launcher}")
    return "; ".join(words)


def oddities(holder: Holder) -> list[str]:
    """Return what makes a living holder unusual."""
    words = []
    if holder.exiting:
        words.append("exiting")
    elif holder.state in _STATES:
        words.append(_STATES[holder.state])
    if holder.executable_deleted:
        words.append("executable deleted")
    return words


def workload(origin: Workload, *, full: bool = False) -> str:
    """Name what started a process: the most specific of job, pod, container, notebook and unit."""
    for name in (job(origin), pod(origin, full=full), container(origin, full=full)):
        if name:
            return name
    return f"notebook {origin.notebook}" if origin.notebook else origin.unit or ""


def job(origin: Workload) -> str:
    """Name the Slurm job, as the kernel knows it or as the process itself says."""
    number = origin.slurm_job or origin.claimed_job
    if not number:
        return ""
    step = f".{origin.slurm_step}" if origin.slurm_step else ""
    name = f" ({origin.job_name})" if origin.job_name else ""
    return f"slurm {number}{step}{name}"


def pod(origin: Workload, *, full: bool = False) -> str:
    """Name the pod, by its name where that is known."""
    if not (origin.pod or origin.pod_name):
        return ""
    number = f" ({origin.pod})" if full and origin.pod and origin.pod_name else ""
    return f"pod {origin.pod_name or origin.pod}{number}"


def container(origin: Workload, *, full: bool = False) -> str:
    """Name the container, by its name where that is known."""
    if not origin.container:
        return ""
    number = origin.container if full else origin.container[:12]
    named = f"{origin.container_name} ({number})" if origin.container_name and full else origin.container_name
    return f"{origin.runtime or 'container'} {named or number}"


def windows_process(process: WindowsProcess) -> list[str]:
    """Return who a Windows process is, in parts."""
    return [f"Windows pid {process.pid}", process.name or "name unknown"]


def command(holder: Holder) -> str:
    """Return the command line in one line, or a word where it is unknown."""
    return one_line(holder.command or "") or ("" if not holder.alive else "command not readable")


def without_folder(command: str) -> str:
    """Return *command* without the folder of its program."""
    program, blank, rest = command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def one_line(command: str) -> str:
    """Return the first words of a *command* that has several lines; any other one as it is.

    Those lines are a program (python -c, bash -c): its first words tell it from others, and JSON has it all.
    """
    if "\n" not in command:
        return command
    # The path of an interpreter in a virtual environment is no word of the program, however long it is.
    program, blank, words = " ".join(command.split()).partition(" ")
    if len(words) > _FIRST_WORDS:
        words = words[:_FIRST_WORDS].rpartition(" ")[0] + " …"
    return f"{program}{blank}{words}"


def sharing(entry: Entry) -> str:
    """Say who else holds the same bytes, or may, and when they return; or who opened the GPU."""
    if not entry.co_holders:
        return f"client of MPS server pid {entry.mps_server}" if entry.mps_server is not None else ""
    pids = ", ".join(str(co_holder.pid) for co_holder in entry.co_holders[:6])
    more = f" and {len(entry.co_holders) - 6} more" if len(entry.co_holders) > 6 else ""
    noun = "pid" if len(entry.co_holders) == 1 else "pids"
    if entry.sharing == "together":
        return f"{noun} {pids}{more} together"
    if entry.sharing == "one":
        return f"or held by {noun} {pids}{more}: unknown which"
    if entry.medium == "shared":
        return f"shared with {noun} {pids}{more}, each of which holds a part"
    return f"also held by {noun} {pids}{more}: returns when the last one releases it"


def percent(nbytes: int, total: int) -> str:
    """Return a share that never rounds something to nothing, nor nearly all to all."""
    share = 100 * nbytes / total if total else 0.0
    if 0 < share < 0.05:
        return "<0.1%"
    if 99.95 <= share < 100:
        return ">99.9%"
    return f"{share:.1f}%"


def parked_process(process: ParkedProcess) -> str:
    """Return who is parked, how much of it lies in host memory, and until when."""
    user = f" · {process.user}" if process.user else ""
    if process.asleep:
        state = "asleep until it is wanted"
    elif process.lent_to is not None:
        state = f"lent to pid {process.lent_to}"
    else:
        state = f"paused until `vram unpark {process.pid}`"
    return f"pid {process.pid}{user} · {size(process.nbytes)} · {state}"


# ---- what came of parking and unparking ----


def parked_sentence(entry: Parked) -> str:
    moved = f"{size(entry.nbytes)} moved from {_gpus(entry)} to host memory"
    return f"parked pid {entry.target.process.pid} ({_name(entry)}): {moved}"


def unparked_sentence(entry: Parked) -> str:
    what = f", {size(entry.nbytes)} on {_gpus(entry)}" if entry.shares else ""
    return f"pid {entry.target.process.pid} ({_name(entry)}) is running again{what}"


def _name(entry: Parked) -> str:
    command = inert(one_line(entry.target.command))
    return command if len(command) <= 40 else command[:39] + "…"


def _gpus(entry: Parked) -> str:
    return "GPU " + ", ".join(str(share.gpu) for share in entry.shares)
