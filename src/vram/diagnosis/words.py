"""How findings speak: of processes, of lists of them, and of text that others wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vram.ledger.jobs import HeldByJob
from vram.model.gpu import DriverFacts
from vram.model.hold import Hold
from vram.model.ledger import Holder
from vram.model.process import Job, Workload
from vram.units import duration

_COMMAND_COLUMNS = 40
_PIDS_SHOWN = 4
_RANKS_SHOWN = 16
_MEMBERS = {"Jupyter": "kernel", "vLLM": "process", "SGLang": "process", "debugpy": "program"}

RECOVERY_ADVICE = {
    "gpu-reset": "reset the GPU",
    "node-reboot": "restart the machine",
    "drain-p2p": "end what its NVLink peers do",
    "drain-and-reset": "end what its NVLink peers do, and reset the GPU",
    "recover-imex-domain": "recover the IMEX domain",
    "bus-reset": "reset the GPU's PCIe bus",
    "system-reboot": "restart the machine",
}
"""What the driver advises for a GPU that had a fault, to go on with: "it advises to …"."""


def shown(text: str) -> str:
    """*text* with every control, bidi or broken character spelled out; ordinary text as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def process(holder: Holder) -> str:
    """Name a process in a sentence: pid 1234 (python train.py, alice)."""
    command = " ".join((holder.command or "").split())  # python -c has the lines of a program here
    known = [_shortened(shown(command)), shown(holder.user or "")]
    inside = ", ".join(word for word in known if word)
    return f"pid {holder.pid} ({inside})" if inside else f"pid {holder.pid}"


def processes(holders: Sequence[Holder]) -> str:
    """Name several processes in a sentence, the first few of them where they are many."""
    names = [process(holder) for holder in holders[:_PIDS_SHOWN]]
    rest = len(holders) - len(names)
    if rest > 0:
        names.append(f"{rest} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "no process"


def pids(holders: Sequence[Holder]) -> str:
    """Name several processes for a title: "pid 7", "pid 7 and 2 more"."""
    if not holders:
        return "no process"
    return f"pid {holders[0].pid}" + (f" and {len(holders) - 1} more" if len(holders) > 1 else "")


def charged_to(ghost: Hold) -> str:
    """Who holds the memory of a dead process, for a title: "held by its forked child 8"."""
    likely = "" if ghost.certain else "likely "
    if not ghost.holders:
        return "holder unknown"
    first, more = ghost.holders[0].pid, len(ghost.holders) - 1
    if not more:
        return f"{likely}held by its {'forked ' if ghost.certain else ''}child {first}"
    link = "or" if ghost.one_of else "and"
    rest = f"{ghost.holders[1].pid}" if more == 1 else f"{more} more"
    return f"{likely}held by its children {first} {link} {rest}"


def inheriting(ghost: Hold) -> str:
    """Who holds the memory of a dead process, in a sentence."""
    return ("one of " if ghost.one_of else "") + processes(ghost.holders)


def members(job: Job, count: int, *, launcher: bool = True) -> str:
    """Several processes of a job, for a title: "2 of 8 torchrun ranks", "1 Jupyter kernel".

    Without the *launcher*: "2 of 8 ranks".
    """
    noun = _MEMBERS.get(job.by, "rank" if job.rank is not None else "worker")
    of = f" of {job.size}" if job.size is not None and job.size > count else ""
    plural = ("es" if noun.endswith("s") else "s") if count != 1 or of else ""
    return f"{count}{of} {job.by + ' ' if launcher else ''}{noun}{plural}"


def orphan_evidence(held: HeldByJob) -> Iterator[str]:
    """What proves that the launcher of a job is dead, one line for each of its processes, then for all."""
    by, rest = held.job.by, held.job.rest
    for each in held.holders:
        yield f"pid {each.pid} was started by {by}, and its parent is now pid {each.parent}"
    if rest is not None:
        few = ", ".join(map(str, rest.ranks[:_RANKS_SHOWN]))
        more = ", ..." if len(rest.ranks) > _RANKS_SHOWN else ""
        yield f"of the {held.job.local_size} ranks that {by} started here {len(rest.ranks)} live: {few}{more}"
        yield f"they, and all that they started, have used less than 1% of a CPU for {duration(rest.idle_s)}"


def belonging(workload: Workload) -> str:
    """The container, pod, job or service that a process is part of; empty where there is none."""
    if job := workload.slurm_job or workload.claimed_job:
        return f"Slurm job {shown(job)}"
    if pod := workload.pod_name or workload.pod:
        return f"Kubernetes pod {shown(pod)}"
    if workload.container:
        name = workload.container_name or workload.container[:12]
        return f"{shown(workload.runtime or 'container')} container {shown(name)}"
    if workload.notebook:
        return f"notebook {shown(workload.notebook)}"
    return f"unit {shown(workload.unit)}" if workload.unit else ""


def age(holder: Holder) -> str:
    """How long a process has been running; empty where that is unknown."""
    known = holder.age_s is not None and 0 <= holder.age_s < float("inf")
    return f"running for {duration(holder.age_s)}" if known and holder.age_s is not None else ""


def kernel_function(holder: Holder) -> str:
    """Where in the kernel a process is, to go on with: ", in uvm_spin_loop"; empty where that is unknown."""
    return f", in {shown(holder.waits_in)}" if holder.waits_in else ""


def gpus(indices: Sequence[int]) -> str:
    """Name GPUs in a sentence: GPU 0, or GPUs 0, 1, 2."""
    return f"GPU{'s' if len(indices) != 1 else ''} {', '.join(map(str, indices))}"


def evidence(*sources: Iterable[str]) -> tuple[str, ...]:
    """Join statements in order, each once, made safe to show."""
    return tuple(dict.fromkeys(shown(line) for source in sources for line in source))


def _shortened(text: str) -> str:
    return text if len(text) <= _COMMAND_COLUMNS else text[: _COMMAND_COLUMNS - 1] + "…"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def where_to_look(driver: DriverFacts | None) -> str:
    """What helps where no driver answers: one that is loaded can be reached, without one there is none."""
    if driver is not None and driver.module_version is not None:
        return "the kernel module is loaded; `vram doctor` says which part of the driver is missing here"
    return "`vram demo` shows what vram does without a GPU"
