"""Remedies, from harmless to harmful, as text and as commands that can be pasted.

Nothing that a process chose for itself (name, path, environment) enters a command: only
pids, GPU numbers, and container and job ids that pass a strict pattern.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from vram.diagnosis import words
from vram.ledger.processes import is_stuck
from vram.model.finding import Finding, Harm, Remedy
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.model.observation import NO_INTEROP, NO_POWERSHELL, HostFacts, ProbeRun
from vram.model.windows import WslFacts
from vram.protected import role

MAX_PIDS = 16
"""So many pids a suggested command names at most."""

# sudo searches its own path, where a program from a virtual environment is not.
SUDO_VRAM = 'sudo "$(command -v vram)"'
AS_ROOT = f"{SUDO_VRAM} why"
KERNEL_LOG = "sudo dmesg --ctime | grep -iE 'xid|nvrm'"
_OTHERS_LOG = {
    driver: f"sudo dmesg --ctime | grep -iE '{words}'"
    for driver, words in {"amdgpu": "amdgpu|kfd", "i915": "i915", "xe": r"\bxe\b"}.items()
}

_HARMS: tuple[Harm, ...] = ("none", "interrupts", "loses-work", "affects-others")
_CONTAINER_ID = r"[0-9a-f]{12,64}"  # few answers need these: compiled when they are used
_JOB_ID = r"[0-9]{1,10}"
_CONTAINER_STOP = {"docker": "docker stop", "podman": "podman stop"}


def ordered(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Sort by harm, else keep the order; of two with the same command the later one stays."""
    distinct = {remedy.command or remedy.text: remedy for remedy in remedies}
    return tuple(sorted(distinct.values(), key=lambda remedy: _HARMS.index(remedy.harm)))


def look(holders: Sequence[Holder], text: str = "Check what it is before you act.") -> tuple[Remedy, ...]:
    """Show the processes themselves: harmless."""
    if not holders:
        return ()
    command = f"ps -o pid,ppid,user,stat,lstart,args -p {_pids(holders, ',')}"
    return (for_processes(holders, step="look", text=text, command=command),)


def see_more(host: HostFacts) -> Remedy:
    """Run again with the permission to read every process."""
    if host.uid == 0:
        text = "Run it on the host, outside the container: here even root lacks some permissions."
        return Remedy(step="look", target="host", text=text)
    text = "Run it as root, which can read the open files of every process."
    return Remedy(step="look", target="host", text=text, command=AS_ROOT)


def kernel_log(target: str, drivers: Collection[str] = ("nvidia",), pids: tuple[int, ...] = ()) -> Remedy:
    """Read what the driver logged; *drivers* are those of the GPUs meant."""
    text = "Read the driver's messages in the kernel log"
    other = next((_OTHERS_LOG[each] for each in sorted(drivers) if each in _OTHERS_LOG), None)
    if other and "nvidia" not in drivers:
        return Remedy(step="look", target=target, text=f"{text}.", command=other, pids=pids)
    text += "; an Xid line names the fault."
    return Remedy(step="look", target=target, text=text, command=KERNEL_LOG, pids=pids)


def drivers(ledger: Ledger, gpus: Collection[int]) -> set[str]:
    """The kernel's drivers of those GPUs."""
    return {gpu.driver for gpu in ledger.gpus if gpu.index in gpus}


def end(
    host: HostFacts, holders: Sequence[Holder], *, certain: bool = True, one_of: bool = False
) -> tuple[Remedy, ...]:
    """End every holder, gently; where one of them must not or cannot be ended, say that instead.

    They share the bytes: ending some of them returns nothing, so no command is given
    unless all of them may end. *certain* False means that the pids are not beyond doubt; inside
    a PID namespace they may then name other processes. *one_of* means that only one of them has the
    bytes: whom to end must be found out first.
    """
    if not holders:
        return ()
    kept = [_kept(each, part) for each in holders if (part := role(each.pid, each))]
    if kept:
        return tuple(kept)
    if any(is_stuck(holder) for holder in holders):
        return (_wait(holders),)
    if one_of and len(holders) > 1:
        return look(holders, "Find out which one to terminate: only one of them holds the memory.")
    if any(holder.executable is None for holder in holders) or not (certain or _is_here(host)):
        return (_find_out(host, holders),)
    return (*_ask(host, holders), _terminate(host, holders), *_stop_workloads(holders))


def end_job(host: HostFacts, holders: Sequence[Holder]) -> tuple[Remedy, ...]:
    """End all processes of a job whose launcher is dead; where one must not be ended, say that instead."""
    usual = end(host, holders)
    if not any(each.step == "end" for each in usual):
        return usual
    look = f"ps -o pid,ppid,user,stat,etime,time,args -p {_pids(holders[:MAX_PIDS], ',')}"
    text = "Check whether it still works: CPU time that grows."
    whom = "it" if len(holders) == 1 else _all(holders)
    end_text = f"Terminate {whom}. Unsaved work is lost."
    vram = _vram(host, holders)
    return (
        for_processes(holders, step="look", text=text, command=look),
        for_processes(
            holders,
            step="end",
            text=end_text,
            command=f"{vram} kill --job {holders[0].pid}",
            harm="loses-work",
        ),
    )


def free(holders: Sequence[Holder]) -> Remedy:
    """Memory whose owner is dead: one command returns it, and no work is lost."""
    whom = "its holder" if len(holders) == 1 else _all(holders)
    text = f"Free it: this terminates {whom}. The owner is dead and nobody uses this memory."
    return for_processes(holders, step="free", text=text, command="vram free")


def resume(host: HostFacts, holder: Holder) -> Remedy:
    """Continue a stopped process."""
    text = "Resume it: it is stopped (Ctrl-Z), and `vram free` never terminates a stopped process."
    sudo = "sudo " if host.uid != 0 and holder.user != host.user else ""
    command = f"{sudo}kill -CONT {holder.pid}"
    return for_processes([holder], step="resume", text=text, command=command)


def _is_here(host: HostFacts) -> bool:
    """Whether pids mean what they seem to; under WSL2 they are read from this side's open files."""
    return host.initial_pid_namespace or host.wsl_facts is not None


def trim_or_park(
    host: HostFacts,
    holder: Holder,
    *,
    certain: bool = True,
    drivers: Collection[str] = ("nvidia",),
    parks: bool = True,
    trims: bool = True,
) -> tuple[Remedy, ...]:
    """Free memory and let the process live: what it caches, or all of it for a while.

    *drivers* are those of the GPUs that it uses: only NVIDIA's can park, and of the others only
    AMD's has a framework that answers to the same calls. *parks* False: not even NVIDIA's can, as
    under MIG and MPS. *trims* False: there is nothing to trim, as where all of it is a context.
    """
    yours = host.uid == 0 or holder.user == host.user
    known = holder.executable is not None and (certain or _is_here(host))
    if not yours or not known or role(holder.pid, holder):
        return ()
    if host.wsl_facts is not None:  # parking is the Linux kernel driver's, and here it is Windows'
        return (_trim(holder),)
    if "nvidia" not in drivers:
        text = "If it is a Python program with PyTorch for ROCm: release its unused cached memory."
        rocm = for_processes([holder], step="trim", text=text, command=f"vram trim {holder.pid}")
        return (rocm,) if "amdgpu" in drivers else ()
    park = "Move its GPU memory to host memory; the process is paused until `vram unpark`."
    ways = (
        _trim(holder),
        for_processes([holder], step="park", text=park, command=f"vram park {holder.pid}", harm="interrupts"),
    )
    return tuple(way for way in ways if (parks or way.step != "park") and (trims or way.step != "trim"))


def without_trim(findings: Iterable[Finding], pid: int) -> tuple[Finding, ...]:
    """*findings* for a process that reported that it caches nothing: trimming it would free nothing."""
    return tuple(
        replace(
            each,
            remedies=tuple(way for way in each.remedies if way.step != "trim" or way.pids != (pid,)),
        )
        for each in findings
    )


def park_together(host: HostFacts, holders: Sequence[Holder], *, certain: bool = True) -> tuple[Remedy, ...]:
    """Move several small processes into host memory, contexts included, where all of them may be parked."""
    may = [
        each
        for each in holders
        if (host.uid == 0 or each.user == host.user)
        and each.executable is not None
        and "mps" not in each.lists
        and not role(each.pid, each)
    ]
    known = certain or _is_here(host)
    if not may or len(may) < len(holders) or len(may) > MAX_PIDS or not known or host.wsl_facts is not None:
        return ()
    text = "Move them to host memory, contexts included; they are paused until `vram unpark`."
    command = f"vram park {_pids(may, ' ')}"
    return (for_processes(may, step="park", text=text, command=command, harm="interrupts"),)


def _trim(holder: Holder) -> Remedy:
    text = "Release its unused cached memory; it keeps running."
    return for_processes([holder], step="trim", text=text, command=f"vram trim {holder.pid}")


def reset(gpu: GpuLedger, why: str) -> Remedy:
    """Reset a GPU that no process uses; one that is in use, or might be, has to be emptied first."""
    target = f"gpu {gpu.index}"
    idle = gpu.status == "ok" and gpu.total_bytes is not None and not gpu.open_only
    if idle and all(entry.kind_facts.used is False for entry in gpu.entries):
        text = f"{why} Nobody uses this GPU now; a reset kills anything that starts on it in the meantime."
        command = f"{SUDO_VRAM} reset {gpu.index} --yes"
        return Remedy(step="reset", target=target, text=text, command=command, harm="affects-others")
    text = f"{why} Let every process on this GPU finish first; a reset while one runs is refused or harmful."
    return Remedy(step="drain", target=target, text=text, harm="affects-others")


def _kept(holder: Holder, part: str) -> Remedy:
    text = f"Do not kill pid {holder.pid}: it is {part}. If it must go, restart that service."
    return for_processes([holder], step="keep", text=text)


def _wait(holders: Sequence[Holder]) -> Remedy:
    text = "Wait, then run it again: a process waiting in the kernel or exiting ignores signals."
    return for_processes(holders, step="wait", text=text, command="vram why")


def _find_out(host: HostFacts, holders: Sequence[Holder]) -> Remedy:
    text = "Find out what this process is before you kill it: its program is not visible from here."
    if host.uid != 0:
        return for_processes(holders, step="look", text=text, command=AS_ROOT)
    return look(holders, text)[0]


def _ask(host: HostFacts, holders: Sequence[Holder]) -> tuple[Remedy, ...]:
    owners = dict.fromkeys(words.shown(h.user) for h in holders if h.user and h.user != host.user)
    if not owners:
        return ()
    text = f"Ask {', '.join(owners)} to save their work and release the memory."
    return (for_processes(holders, step="ask", text=text),)


def _terminate(host: HostFacts, holders: Sequence[Holder]) -> Remedy:
    if len(holders) == 1:
        text = "Terminate it; the memory returns. Unsaved work is lost."
    else:
        text = f"Terminate {_all(holders)}; the memory returns when the last one exits. Unsaved work is lost."
    harm: Harm = "loses-work"
    if any("mps" in holder.lists for holder in holders):
        text += " It is an MPS client: killing it while the GPU runs its work can break the other clients."
        harm = "affects-others"
    command = f"{_vram(host, holders)} kill {_pids(holders, ' ')}"
    return for_processes(holders, step="end", text=text, command=command, harm=harm)


def _vram(host: HostFacts, holders: Sequence[Holder]) -> str:
    """How to call ourselves with enough rights for these processes."""
    return SUDO_VRAM if host.uid != 0 and any(holder.user != host.user for holder in holders) else "vram"


def _stop_workloads(holders: Sequence[Holder]) -> tuple[Remedy, ...]:
    found: dict[str, Remedy] = {}
    for holder in holders:
        command = _stop_command(holder)
        if command:
            whole = words.belonging(holder.workload)
            text = f"Stop the whole {whole}, with everything in it, if it restarts the process."
            found[command] = Remedy(
                step="end",
                target=whole,
                text=text,
                command=command,
                harm="affects-others",
                pids=(holder.pid,),
            )
    return tuple(found.values())


def _stop_command(holder: Holder) -> str:
    work = holder.workload
    if work.slurm_job:
        return f"scancel {work.slurm_job}" if re.fullmatch(_JOB_ID, work.slurm_job) else ""
    if work.pod or not re.fullmatch(_CONTAINER_ID, work.container or ""):
        return ""
    stop = _CONTAINER_STOP.get(work.runtime or "")
    return f"{stop} {work.container}" if stop else ""


def _pids(holders: Sequence[Holder], separator: str) -> str:
    return separator.join(str(holder.pid) for holder in holders)


def _all(holders: Sequence[Holder]) -> str:
    return "both" if len(holders) == 2 else f"all {len(holders)}"


def for_processes(
    holders: Sequence[Holder], *, step: str, text: str, command: str = "", harm: Harm = "none"
) -> Remedy:
    """A remedy that acts on, or looks at, these processes."""
    pids = tuple(holder.pid for holder in holders)
    target = f"pid {_pids(holders, ', ')}"
    return Remedy(step=step, target=target, text=text, command=command, harm=harm, pids=pids)


# ---- how Windows can be asked for its own programs, where it was not ----

_PATIENCE = "vram why --deadline 20s"
_REGISTER = "winmgmt /resyncperf"
_INTEROP = "Let vram query Windows: set enabled=true under [interop] in /etc/wsl.conf and restart WSL."
_AUTOMOUNT = (
    "Let vram find powershell.exe: put its folder on PATH, or set enabled=true under [automount] in"
    " /etc/wsl.conf and restart WSL."
)


def ask_windows(facts: WslFacts, asked: ProbeRun | None, target: str) -> Remedy:
    """How Windows can be asked about *target*; *asked* is how asking ended this time."""
    status, code = (asked.status, asked.code) if asked else (None, None)
    step, command = "set", ""
    if facts.container:
        text = "Run vram in the distribution itself: a container cannot query Windows."
    elif not facts.interop or code == NO_INTEROP:
        text = _INTEROP
    elif code == NO_POWERSHELL:
        text = _AUTOMOUNT
    elif status == "denied":
        text = "Run vram as a user who may start powershell.exe: the mount options of drive C decide."
    elif status in ("failed", "unsupported"):
        text, command = "Register Windows' performance counters again, as a Windows administrator.", _REGISTER
    else:
        step, text, command = "look", "Run it again with more time for Windows to answer.", _PATIENCE
    return Remedy(step=step, target=target, text=text, command=command)
