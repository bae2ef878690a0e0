"""What the driver's process list claims: living processes, and pids that are gone."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.ledger.dead_owners import Match, match, unreadable_relatives
from vram.ledger.families import families, keepers, onlookers, source_of
from vram.ledger.holders import departed, holder, holders
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Bystander, Entry, Holder
from vram.units import counted, size


class _Kin(Struct, frozen=True):
    """Who is behind one GPU's charges."""

    living: list[Charge]
    dead: list[Charge]
    sources: dict[int, int | None]
    """Everybody who may keep a context without a charge, and the living process whose files those are."""
    matched: dict[int, Match]
    onlookers: list[int]


def charged_entries(seen: Sightings, gpu: GpuSighting) -> tuple[list[Entry], list[Bystander]]:
    """Entries for every charge with a figure, and who merely has the GPU open."""
    kin = _kin(seen, gpu)
    told = [charge for charge in (*kin.living, *kin.dead) if charge.nbytes is not None]
    entries = [_entry(seen, charge, kin) for charge in told]
    bystanders = _bystanders(seen, kin)
    if not any("mps" in charge.lists for charge in gpu.charges):
        return entries, bystanders
    from vram.ledger.mps import with_servers

    return with_servers(seen, gpu, entries, bystanders)


def untold_entries(seen: Sightings, gpu: GpuSighting) -> list[Entry]:
    """Entries of no bytes yet for the charges without a figure of *gpu*, or of one instance of it."""
    untold = [charge for charge in gpu.charges if charge.nbytes is None]
    if not untold:
        return []
    kin = _kin(seen, seen.gpus[gpu.index])
    return [_entry(seen, charge, kin) for charge in untold]


def _kin(seen: Sightings, gpu: GpuSighting) -> _Kin:
    minor = gpu.facts.minor if gpu.facts else None
    living = [charge for charge in gpu.charges if _still_there(seen, charge)]
    dead = [charge for charge in gpu.charges if charge not in living]
    charged = [charge.process.pid for charge in living]
    candidates = keepers(seen, minor, charged)
    sources = {pid: source_of(seen, pid, minor, charged) for pid in candidates}
    loose = [pid for pid in candidates if sources[pid] is None]
    matched = match(seen, [charge.process.pid for charge in dead], families(seen, loose, minor), charged)
    return _Kin(living, dead, sources, matched, list(onlookers(seen, minor, charged)))


def _entry(seen: Sightings, charge: Charge, kin: _Kin) -> Entry:
    if charge in kin.living:
        return _living(seen, charge, kin.sources)
    return _dead(seen, charge, kin.matched[charge.process.pid])


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
    evidence = [_statement(charge), *_open_files(seen, pid)]
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


def _dead(seen: Sightings, charge: Charge, found: Match) -> Entry:
    pid = charge.process.pid
    keeping = holders(seen, (member for family in found.families for member in family.pids))
    evidence = [_statement(charge), gone(seen, pid)]
    if not keeping:
        return _unkept(seen, charge, evidence)
    evidence += [line for keeper in keeping for line in _open_files(seen, keeper.pid)]
    evidence.append(_link(seen, pid, found))
    evidence += _may_be_more(seen)
    return Entry(
        kind="orphaned",
        nbytes=charge.nbytes or 0,
        holder=keeping[0],
        sharers=keeping[1:],
        charged_pid=pid,
        charged_state=_state(seen, pid),
        evidence=tuple(evidence),
        confidence="fact" if found.certain else "likely",
        either=found.either,
        held_elsewhere=found.held_elsewhere,
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def _may_be_more(seen: Sightings) -> list[str]:
    """Processes that may not be read can be holders too; that takes nothing from those who are."""
    if not seen.unreadable.processes:
        return []
    return [f"{counted(seen.unreadable.processes, 'process')} may not be read, and could hold it as well"]


def _unkept(seen: Sightings, charge: Charge, evidence: list[str]) -> Entry:
    """Nobody in sight keeps a listed, dead pid's memory: it is out of our sight, or lost."""
    relatives = unreadable_relatives(seen, charge.process.pid)
    if relatives:
        return _unreadable(seen, charge, evidence, relatives)
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


def _unreadable(seen: Sightings, charge: Charge, evidence: list[str], relatives: list[int]) -> Entry:
    """Processes of another user whose open files are closed to us, and whose session names the dead pid."""
    pid = charge.process.pid
    keeping = holders(seen, relatives)
    evidence.append(
        f"{_pids(keeping)} {'is' if len(keeping) == 1 else 'are'} of its session, group or children, and the"
        " open files may not be read"
    )
    return Entry(
        kind="orphaned",
        nbytes=charge.nbytes or 0,
        holder=keeping[0],
        sharers=keeping[1:],
        charged_pid=pid,
        charged_state=_state(seen, pid),
        evidence=tuple(evidence),
        confidence="likely",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def out_of_sight(seen: Sightings, pid: int) -> tuple[Literal["namespace", "permission"] | None, str]:
    """Why a listed process may be alive although we see nothing of it."""
    if not seen.host.initial_pid_namespace:
        return "namespace", "this is a PID namespace of its own: the process may live outside it"
    if seen.host.hides_processes and pid not in seen.processes:
        return "permission", "/proc shows us no processes of other users (hidepid): it may be one of them"
    return None, "no readable process without a charge of its own has a context's files open"


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


def _link(seen: Sightings, pid: int, found: Match) -> str:
    members = sorted(member for family in found.families for member in family.pids)
    who = ", ".join(map(str, members))
    facts = [seen.processes[member][1] for member in members if member in seen.processes]
    if found.either:
        return (
            f"each of pids {who} holds memory of a dead pid; which of them holds this is unknown"
            if found.certain
            else f"which of pids {who} holds it is unknown"
        )
    if any(each.parent == pid for each in facts):
        link = f"its parent is {pid}"
    elif any(pid in (each.group, each.session) for each in facts):
        link = f"its process group or session is still {pid}'s"
    else:
        link = "it was forked, its parent is gone, and no living process has the same open files"
    if found.certain:
        return link
    return f"{link}; that it holds this memory is not proven: it may have the files from somebody else"


def _bystanders(seen: Sightings, kin: _Kin) -> list[Bystander]:
    keeping = {pid for found in kin.matched.values() for family in found.families for pid in family.pids}
    return [
        Bystander(holder=holder(seen, seen.processes[pid][0]), inherited_from=kin.sources.get(pid))
        for pid in sorted(kin.onlookers)
        if pid not in keeping and pid in seen.processes
    ]


def _statement(charge: Charge) -> str:
    if charge.nbytes is None:
        return f"the driver lists pid {charge.process.pid} and does not say how much it uses"
    return f"{_lists(charge)} names pid {charge.process.pid} with {size(charge.nbytes)}"


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
