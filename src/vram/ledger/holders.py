"""From a pid to what is known of the process; and what of a ledger concerns one process."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from vram.ledger.indexed_survey import IndexedSurvey
from vram.model.finding import Finding
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.process import ProcessRef


def holder(survey: IndexedSurvey, process: ProcessRef, lists: tuple[str, ...] = ()) -> Holder:
    """Describe *process* as far as /proc let us see it."""
    key = (process.pid, lists)
    made = survey.made_holders.get(key)
    if made is None:
        made = survey.made_holders[key] = _described(survey, process, lists)
    return made


def _described(survey: IndexedSurvey, process: ProcessRef, lists: tuple[str, ...]) -> Holder:
    known = survey.processes.get(process.pid)
    if known is None:
        return departed(process.pid, lists)
    ref, facts = known
    files = survey.files.get(process.pid)
    return Holder(
        pid=ref.pid,
        started_at=ref.started_at,
        user=facts.user,
        command=" ".join(facts.argv) or facts.command,
        alive=not facts.is_dead,
        age_s=facts.age_s,
        state=facts.state,
        exiting=facts.exiting,
        parent=facts.parent,
        executable=facts.executable,
        executable_deleted=facts.executable_deleted,
        executable_trusted=facts.executable_trusted,
        kernel_thread=facts.kernel_thread,
        descriptors=len(files.files) if files else None,
        lists=lists,
        workload=facts.workload,
        inner_pid=facts.namespace_pids[-1] if len(facts.namespace_pids) > 1 else None,
        uid=facts.uid,
    )


def departed(pid: int, lists: tuple[str, ...] = (), *, visible: bool = True) -> Holder:
    """A process that is gone, or out of sight. Whoever has its pid now is somebody else, and unmentioned."""
    return Holder(
        pid=pid, started_at=None, user=None, command=None, alive=False, lists=lists, visible=visible
    )


def holders(survey: IndexedSurvey, pids: Iterable[int]) -> tuple[Holder, ...]:
    """Describe *pids*, each once, in ascending order."""
    return tuple(
        holder(survey, survey.processes[pid][0]) for pid in sorted(set(pids)) if pid in survey.processes
    )


# ---- what of a ledger concerns one process ----


def concerning(ledger: Ledger, pid: int) -> Ledger:
    """Return *ledger* with only the entries of *pid*, on the GPUs where it has any."""
    gpus = (_narrowed(gpu, pid) for gpu in ledger.gpus)
    return replace(ledger, gpus=tuple(gpu for gpu in gpus if _is_there(gpu)))


def findings_about(findings: Iterable[Finding], ledger: Ledger, pid: int) -> tuple[Finding, ...]:
    """The findings that name *pid*, or who holds what it is charged with: no finding names a dead one."""
    charged = (entry for gpu in ledger.gpus for entry in gpu.accounted if entry.charged_pid == pid)
    wanted = {pid}.union(*map(pids_of, charged))
    return tuple(each for each in findings if not wanted.isdisjoint(each.pids))


def pids_of(entry: Entry) -> set[int]:
    """Everybody whom an entry names: its holder, co-holders, and the pid that the driver charges."""
    named = {each.pid for each in entry.holders}
    return named | ({entry.charged_pid} if entry.charged_pid is not None else set())


def _narrowed(gpu: GpuLedger, pid: int) -> GpuLedger:
    system = gpu.system
    if system is not None:
        system = replace(system, entries=_theirs(system.entries, pid), used_bytes=None)
    return replace(
        gpu,
        entries=_theirs(gpu.entries, pid),
        open_only=tuple(each for each in gpu.open_only if each.holder.pid == pid),
        system=system if system is not None and system.entries else None,
        notes=(),
    )


def _theirs(entries: Iterable[Entry], pid: int) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if pid in pids_of(entry))


def _is_there(gpu: GpuLedger) -> bool:
    return bool(gpu.entries or gpu.open_only or gpu.system)
