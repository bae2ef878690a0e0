"""What the driver's process list claims: living processes, and pids that are gone."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger.dead_owners import Match, match, unreadable_relatives
from vram.ledger.families import families, likely_keepers, onlookers, sources
from vram.ledger.holders import departed, holder, holders
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry, Holder, OpenOnly
from vram.units import counted, size

# How often holders are named for dead pids that may be any of theirs: beyond it the smallest share an
# entry, since naming every process for every pid grows with the square of them.
_MOST_MENTIONS = 1 << 14


class _Kin(Struct, frozen=True):
    """Who is behind one GPU's charges."""

    living: list[Charge]
    dead: list[Charge]
    sources: dict[int, int | None]
    """Everybody who may keep a context without a charge, and the living process whose files those are."""
    heirs: dict[int, list[int]]
    """The same, found by that process."""
    matched: dict[int, Match]
    onlookers: list[int]


def charged_entries(seen: Sightings, gpu: GpuSighting) -> tuple[list[Entry], list[OpenOnly]]:
    """Entries for every charge with a figure, and who merely has the GPU open."""
    kin = _kin(seen, gpu)
    told = [charge for charge in (*kin.living, *kin.dead) if charge.nbytes is not None]
    entries, open_only = _entries(seen, told, kin), _open_only(seen, kin)
    if not any("mps" in charge.lists for charge in gpu.charges):
        return entries, open_only
    from vram.ledger.mps import with_servers

    return with_servers(seen, gpu, entries, open_only)


def unsized_entries(seen: Sightings, gpu: GpuSighting) -> list[Entry]:
    """Entries for the charges without a figure of *gpu*, or of one instance of it: their size is unknown."""
    unsized = [charge for charge in gpu.charges if charge.nbytes is None]
    if not unsized:
        return []
    return _entries(seen, unsized, _kin(seen, seen.gpus[gpu.index]))


def _entries(seen: Sightings, charges: list[Charge], kin: _Kin) -> list[Entry]:
    """An entry for each of *charges*; of dead pids that share very many holders, one for the smallest."""
    together: dict[int, list[Charge]] = {}
    held: dict[int, _Held] = {}
    for charge in charges:
        if not _still_there(seen, charge):
            found = kin.matched[charge.process.pid]
            together.setdefault(id(found), []).append(charge)
            if id(found) not in held:
                held[id(found)] = _Held(seen, found)
    rest = {key: _too_many(same, len(held[key].holders)) for key, same in together.items()}
    left_out = {id(charge) for same in rest.values() for charge in same}
    entries = []
    for charge in charges:
        if id(charge) in left_out:
            continue
        pid = charge.process.pid
        if _still_there(seen, charge):
            entries.append(_living(seen, charge, kin.heirs.get(pid, [])))
        else:
            entries.append(_dead(seen, charge, held[id(kin.matched[pid])]))
    return entries + [_joined(seen, same, held[key]) for key, same in rest.items() if same]


def _too_many(charges: list[Charge], holders: int) -> list[Charge]:
    """The smallest of the dead pids' *charges*, as many as would make each holder be named too often."""
    if len(charges) * holders <= max(_MOST_MENTIONS, len(charges)):
        return []
    most = max(1, max(_MOST_MENTIONS, len(charges)) // holders)
    return sorted(charges, key=lambda charge: -(charge.nbytes or 0))[most - 1 :]


def _kin(seen: Sightings, gpu: GpuSighting) -> _Kin:
    minor = gpu.facts.minor if gpu.facts else None
    living: list[Charge] = []
    dead: list[Charge] = []
    for charge in gpu.charges:
        (living if _still_there(seen, charge) else dead).append(charge)
    charged = [charge.process.pid for charge in living]
    present = onlookers(seen, minor, (*charged, *(charge.process.pid for charge in gpu.unnamed)))
    candidates = likely_keepers(present)
    found = sources(seen, candidates, minor, charged)
    heirs: dict[int, list[int]] = {}
    for pid, source in found.items():
        if source is not None:
            heirs.setdefault(source, []).append(pid)
    loose = [pid for pid in candidates if found[pid] is None]
    matched = match(seen, [charge.process.pid for charge in dead], families(seen, loose, minor), charged)
    return _Kin(living, dead, found, heirs, matched, list(present))


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


def _living(seen: Sightings, charge: Charge, heirs: list[int]) -> Entry:
    pid = charge.process.pid
    co_holders = holders(seen, heirs)
    evidence = [_statement(charge), *_open_files(seen, pid)]
    if co_holders:
        evidence.append(f"pid {_pids(co_holders)} inherited its open device files")
    if seen.lists_other_pids:
        evidence.append("inside of containers this driver may list pids of the host: it could be another one")
    return Entry(
        kind="process",
        nbytes=charge.nbytes,
        holder=holder(seen, charge.process, charge.lists),
        evidence=tuple(evidence),
        co_holders=co_holders,
        sharing="all" if co_holders else None,
        confidence="likely" if seen.lists_other_pids else "fact",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


class _Held:
    """Who holds the memory of one dead pid, or of several alike, put into words once for all of them."""

    def __init__(self, seen: Sightings, found: Match) -> None:
        self.found = found
        self.holders = holders(seen, (member for family in found.families for member in family.pids))
        self.files = [line for each in self.holders for line in _open_files(seen, each.pid)]
        self.members = sorted(member for family in found.families for member in family.pids)
        known = [seen.processes[member][1] for member in self.members if member in seen.processes]
        self.parents = {each.parent for each in known}
        self.leaders = {pid for each in known for pid in (each.group, each.session)}


def _dead(seen: Sightings, charge: Charge, held: _Held) -> Entry:
    pid, found = charge.process.pid, held.found
    evidence = [_statement(charge), gone(seen, pid)]
    if not held.holders:
        return _unkept(seen, charge, evidence)
    return Entry(
        kind="orphaned",
        nbytes=charge.nbytes,
        holder=held.holders[0],
        co_holders=held.holders[1:],
        sharing=found.sharing or ("all" if len(held.holders) > 1 else None),
        charged_pid=pid,
        charged_state=_state(seen, pid),
        evidence=(*evidence, *held.files, _link(pid, held), *_may_be_more(seen)),
        confidence="fact" if found.certain else "likely",
        unheld=found.unheld,
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def _joined(seen: Sightings, charges: list[Charge], held: _Held) -> Entry:
    """One entry for many dead pids with the same holders, in the name of the first of them."""
    sizes = [charge.nbytes for charge in charges if charge.nbytes is not None]
    nbytes = sum(sizes) if sizes else None
    amount = "unknown sizes" if nbytes is None else f"{size(nbytes)} together"
    first = _dead(seen, charges[0], held)
    told = (
        f"it stands for {counted(len(charges), 'dead pid')} that the driver's lists name with {amount}:"
        f" {counted(len(held.holders), 'process')} may hold the memory of any of them"
    )
    return replace(first, nbytes=nbytes, evidence=(told, *first.evidence), confidence="likely")


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
        nbytes=charge.nbytes,
        holder=departed(charge.process.pid, charge.lists, visible=reason is None),
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
        nbytes=charge.nbytes,
        holder=keeping[0],
        co_holders=keeping[1:],
        sharing="all" if len(keeping) > 1 else None,
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


def _link(pid: int, held: _Held) -> str:
    found = held.found
    if found.sharing == "one":
        who = ", ".join(map(str, held.members))
        return (
            f"each of pids {who} holds memory of a dead pid; which of them holds this is unknown"
            if found.certain
            else f"which of pids {who} holds it is unknown"
        )
    if pid in held.parents:
        link = f"its parent is {pid}"
    elif pid in held.leaders:
        link = f"its process group or session is still {pid}'s"
    else:
        link = "it was forked, its parent is gone, and no living process has the same open files"
    if found.certain:
        return link
    return f"{link}; that it holds this memory is not proven: it may have the files from somebody else"


def _open_only(seen: Sightings, kin: _Kin) -> list[OpenOnly]:
    distinct = {id(found): found for found in kin.matched.values()}.values()
    keeping = {pid for found in distinct for family in found.families for pid in family.pids}
    return [
        OpenOnly(holder=holder(seen, seen.processes[pid][0]), inherited_from=kin.sources.get(pid))
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
