"""From a pid to the person's answer: who that is, alive or not."""

from __future__ import annotations

from collections.abc import Iterable

from vram.ledger.sightings import Sightings
from vram.model.ledger import Holder
from vram.model.process import ProcessRef


def holder(seen: Sightings, process: ProcessRef, lists: tuple[str, ...] = ()) -> Holder:
    """Describe *process* as far as /proc let us see it."""
    key = (process.pid, lists)
    made = seen.made_holders.get(key)
    if made is None:
        made = seen.made_holders[key] = _described(seen, process, lists)
    return made


def _described(seen: Sightings, process: ProcessRef, lists: tuple[str, ...]) -> Holder:
    known = seen.processes.get(process.pid)
    if known is None:
        return departed(process.pid, lists)
    ref, facts = known
    files = seen.files.get(process.pid)
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
    )


def departed(pid: int, lists: tuple[str, ...] = (), *, visible: bool = True) -> Holder:
    """A process that is gone, or out of sight. Whoever has its pid now is somebody else, and unmentioned."""
    return Holder(
        pid=pid, started_at=None, user=None, command=None, alive=False, lists=lists, visible=visible
    )


def holders(seen: Sightings, pids: Iterable[int]) -> tuple[Holder, ...]:
    """Describe *pids*, each once, in ascending order."""
    return tuple(holder(seen, seen.processes[pid][0]) for pid in sorted(set(pids)) if pid in seen.processes)
