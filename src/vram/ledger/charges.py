"""What the driver's process list claims: living processes, and pids that are gone."""

from __future__ import annotations

from typing import Literal

from vram.ledger.families import Family, families, keepers, match, source_of
from vram.ledger.holders import departed, holder, holders
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Bystander, Entry, Holder
from vram.units import counted, size


def charged_entries(seen: Sightings, gpu: GpuSighting) -> tuple[list[Entry], list[Bystander]]:
    """Entries for every charge with a figure, and who merely has the GPU open."""
    minor = gpu.facts.minor if gpu.facts else None
    living = [charge for charge in gpu.charges if _still_there(seen, charge)]
    dead = [charge for charge in gpu.charges if charge not in living]
    candidates = keepers(seen, minor, [charge.process.pid for charge in living])
    sources = {pid: source_of(seen, pid, minor, [c.process.pid for c in living]) for pid in candidates}
    loose = [pid for pid in candidates if sources[pid] is None]
    matched = match(seen, [c.process.pid for c in dead], families(seen, loose, minor))
    entries = [_living(seen, charge, sources) for charge in living if charge.nbytes is not None]
    entries += [
        _dead(seen, charge, *matched[charge.process.pid]) for charge in dead if charge.nbytes is not None
    ]
    bystanders = _bystanders(seen, sources, matched)
    if not any("mps" in charge.lists for charge in gpu.charges):
        return entries, bystanders
    from vram.ledger.mps import with_servers

    return with_servers(seen, gpu, entries, bystanders)


def _still_there(seen: Sightings, charge: Charge) -> bool:
    """Whether the listed pid still is the process that was charged.

    A process that lost its memory by exec, or a newcomer with a reused pid, has no device
    file open. Clients of MPS reach the GPU through their server, so for them that proves
    nothing; neither does it where we may not look.
    """
    pid = charge.process.pid
    if not seen.alive(pid):
        return False
    return pid in seen.files or "mps" in charge.lists or not seen.may_read_files_of(pid)


def _living(seen: Sightings, charge: Charge, sources: dict[int, int | None]) -> Entry:
    pid = charge.process.pid
    sharers = holders(seen, (child for child, source in sources.items() if source == pid))
    evidence = [f"{_lists(charge)} names pid {pid} with {size(charge.nbytes or 0)}", *_open_files(seen, pid)]
    if sharers:
        evidence.append(f"pid {_pids(sharers)} inherited its open device files")
    if seen.lists_other_pids:
        evidence.append("inside of containers this driver may list pids of the host: it could be another one")
    return Entry(
        kind="process",
        nbytes=charge.nbytes or 0,
        holder=holder(seen, charge.process, charge.lists),
        evidence=tuple(evidence),
        sharers=sharers,
        confidence="likely" if seen.lists_other_pids else "fact",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def _dead(seen: Sightings, charge: Charge, found: list[Family], certain: bool) -> Entry:
    pid = charge.process.pid
    keeping = holders(seen, (member for family in found for member in family.pids))
    evidence = [f"{_lists(charge)} names pid {pid} with {size(charge.nbytes or 0)}", gone(seen, pid)]
    if not keeping:
        return _unkept(seen, charge, evidence)
    evidence += [line for keeper in keeping for line in _open_files(seen, keeper.pid)]
    evidence.append(_link(seen, pid, found, certain))
    return Entry(
        kind="orphaned",
        nbytes=charge.nbytes or 0,
        holder=keeping[0],
        sharers=keeping[1:],
        charged_pid=pid,
        charged_state=_state(seen, pid),
        evidence=tuple(evidence),
        confidence="fact" if certain else "likely",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def _unkept(seen: Sightings, charge: Charge, evidence: list[str]) -> Entry:
    """Nobody in sight keeps a listed, dead pid's memory: it is out of our sight, or lost."""
    reason, why = out_of_sight(seen, charge.process.pid)
    evidence.append(why)
    return Entry(
        kind="hidden" if reason else "orphaned",
        nbytes=charge.nbytes or 0,
        holder=departed(charge.process.pid, charge.lists, in_sight=reason is None),
        charged_pid=charge.process.pid,
        charged_state=_state(seen, charge.process.pid),
        hidden_by=reason,
        evidence=tuple(evidence),
        confidence="likely" if reason else "unknown",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def out_of_sight(seen: Sightings, pid: int) -> tuple[Literal["namespace", "permission"] | None, str]:
    """Why a listed process may be alive although we see nothing of it."""
    if not seen.host.initial_pid_namespace:
        return "namespace", "this is a PID namespace of its own: the process may live outside it"
    if seen.host.hides_processes and pid not in seen.processes:
        return "permission", "/proc shows us no processes of other users (hidepid): it may be one of them"
    return None, "no readable process has the GPU's files open without a charge of its own"


def _state(seen: Sightings, pid: int) -> str | None:
    known = seen.processes.get(pid)
    return known[1].state if known else None


def gone(seen: Sightings, pid: int) -> str:
    """What is known of a listed process that can hold no files any more, or is not shown to us."""
    known = seen.processes.get(pid)
    if known is None:
        shown = seen.host.initial_pid_namespace and not seen.host.hides_processes
        return f"pid {pid} does not exist any more" if shown else f"/proc shows us no pid {pid}"
    if known[1].is_dead:
        return f"pid {pid} is a zombie: it has ended, and its parent {known[1].parent} has not collected it"
    return f"pid {pid} is another program now: it has no device file open"


def _link(seen: Sightings, pid: int, found: list[Family], certain: bool) -> str:
    members = [member for family in found for member in family.pids]
    facts = [seen.processes[member][1] for member in members if member in seen.processes]
    if any(each.parent == pid for each in facts):
        return f"its parent is {pid}"
    if any(pid in (each.group, each.session) for each in facts):
        return f"its process group or session is still {pid}'s"
    if certain:
        return "nobody else has the GPU's files open without a charge of its own"
    return "its pid follows the dead one's; other processes could be the keeper too"


def _bystanders(
    seen: Sightings, sources: dict[int, int | None], matched: dict[int, tuple[list[Family], bool]]
) -> list[Bystander]:
    keeping = {pid for found, _ in matched.values() for family in found for pid in family.pids}
    return [
        Bystander(holder=holder(seen, seen.processes[pid][0]), inherited_from=source)
        for pid, source in sorted(sources.items())
        if pid not in keeping and pid in seen.processes
    ]


def _lists(charge: Charge) -> str:
    return f"the driver's {' and '.join(charge.lists) or 'process'} list"


def _open_files(seen: Sightings, pid: int) -> list[str]:
    facts = seen.files.get(pid)
    if facts is None:
        return []
    mappings = "" if facts.mappings is None else f" and {counted(facts.mappings, 'mapping')}"
    return [f"pid {pid} has {counted(len(facts.files), 'descriptor')}{mappings} on device files"]


def _pids(people: tuple[Holder, ...]) -> str:
    return ", ".join(str(person.pid) for person in people)
