"""What the driver's process list claims: living processes, pids that are gone, and clients of MPS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger.file_holders import (
    Match,
    families,
    likely_holders,
    match,
    sources,
    uncharged,
    unreadable_relatives,
)
from vram.ledger.indexed_survey import Charge, GpuObservations, IndexedSurvey, departed, holder, holders
from vram.model.ledger import Entry, Holder, OpenOnly
from vram.model.process import ProcessFacts
from vram.protected import is_mps_server
from vram.units import counted, size

# How often holders are named for dead pids that may be any of theirs: beyond it the smallest share an
# entry, since naming every process for every pid grows with the square of them.
_MAX_MENTIONS = 1 << 14
_MAX_WATCHERS = 5


class _Owners(Struct, frozen=True):
    """Who is behind one GPU's charges."""

    living: list[Charge]
    dead: list[Charge]
    sources: dict[int, int | None]
    """The processes that may have a context and no charge, and the living process whose files those are."""
    forked: dict[int, list[int]]
    """The same, found by that process."""
    matched: dict[int, Match]
    uncharged: list[int]


def charged_entries(survey: IndexedSurvey, gpu: GpuObservations) -> tuple[list[Entry], list[OpenOnly]]:
    """Entries for every charge with a figure, and who merely has the GPU open."""
    owners = _owners(survey, gpu)
    reported = [charge for charge in (*owners.living, *owners.dead) if charge.nbytes is not None]
    entries, open_only = _entries(survey, reported, owners), _open_only(survey, owners)
    if not any("mps" in charge.lists for charge in gpu.charges):
        return entries, open_only
    return with_servers(survey, gpu, entries, open_only)


def unsized_entries(survey: IndexedSurvey, gpu: GpuObservations) -> list[Entry]:
    """Entries for the charges without a figure of *gpu*, or of one instance of it: their size is unknown."""
    unsized = [charge for charge in gpu.charges if charge.nbytes is None]
    if not unsized:
        return []
    return _entries(survey, unsized, _owners(survey, survey.gpus[gpu.index]))


def _entries(survey: IndexedSurvey, charges: list[Charge], owners: _Owners) -> list[Entry]:
    """An entry for each of *charges*; of dead pids that share very many holders, one for the smallest."""
    together: dict[int, list[Charge]] = {}
    held: dict[int, _DeadOwnersMemory] = {}
    for charge in charges:
        if not _still_there(survey, charge):
            found = owners.matched[charge.process.pid]
            together.setdefault(id(found), []).append(charge)
            if id(found) not in held:
                held[id(found)] = _DeadOwnersMemory(survey, found)
    rest = {key: _too_many(same, len(held[key].holders)) for key, same in together.items()}
    left_out = {id(charge) for same in rest.values() for charge in same}
    entries = []
    for charge in charges:
        if id(charge) in left_out:
            continue
        pid = charge.process.pid
        if _still_there(survey, charge):
            entries.append(_living(survey, charge, owners.forked.get(pid, [])))
        else:
            entries.append(_dead(survey, charge, held[id(owners.matched[pid])]))
    return entries + [_joined(survey, same, held[key]) for key, same in rest.items() if same]


def _too_many(charges: list[Charge], holders: int) -> list[Charge]:
    """The smallest of the dead pids' *charges*, as many as would make each holder be named too often."""
    if len(charges) * holders <= max(_MAX_MENTIONS, len(charges)):
        return []
    most = max(1, max(_MAX_MENTIONS, len(charges)) // holders)
    return sorted(charges, key=lambda charge: -(charge.nbytes or 0))[most - 1 :]


def _owners(survey: IndexedSurvey, gpu: GpuObservations) -> _Owners:
    minor = gpu.facts.minor if gpu.facts else None
    living: list[Charge] = []
    dead: list[Charge] = []
    for charge in gpu.charges:
        (living if _still_there(survey, charge) else dead).append(charge)
    charged = [charge.process.pid for charge in living]
    named = (*charged, *(charge.process.pid for charge in gpu.unnamed))
    present = uncharged(survey, minor, named, mapped=True)
    candidates = likely_holders(present)
    found = sources(survey, candidates, minor, charged)
    forked: dict[int, list[int]] = {}
    for pid, source in found.items():
        if source is not None:
            forked.setdefault(source, []).append(pid)
    loose = [pid for pid in candidates if found[pid] is None]
    gone = [charge.process.pid for charge in dead]
    matched = match(survey, gone, families(survey, loose, minor), charged, minor)
    if not all(each.families for each in matched.values()):
        _add_unmapped(survey, minor, named, matched)
    return _Owners(living, dead, found, forked, matched, list(present))


def _add_unmapped(
    survey: IndexedSurvey, minor: int | None, named: Sequence[int], matched: dict[int, Match]
) -> None:
    """Dead pids that no other holder was found for: a process may keep their memory by descriptors alone."""
    there = uncharged(survey, minor, named, mapped=False)
    found = tuple(families(survey, likely_holders(there), minor))
    for pid, each in matched.items():
        if not each.families and found:
            matched[pid] = Match(found, sharing="one" if len(found) > 1 else None)


def _still_there(survey: IndexedSurvey, charge: Charge) -> bool:
    """Whether the listed pid still is the process that was charged.

    A process that lost its memory by exec, or a newcomer with a reused pid, has no device
    file open. Clients of MPS reach the GPU through their server, so for them that proves
    nothing; neither does it where we may not read files, or had no time for all of them.
    """
    pid = charge.process.pid
    if not survey.alive(pid):
        return False
    unread = survey.unfinished or not survey.may_read_files_of(pid)
    return pid in survey.files or "mps" in charge.lists or unread


def _living(survey: IndexedSurvey, charge: Charge, forked: list[int]) -> Entry:
    pid = charge.process.pid
    co_holders = holders(survey, forked)
    evidence = [_statement(charge), *_open_files(survey, pid)]
    if co_holders:
        evidence.append(f"pid {_pids(co_holders)} inherited its open device files")
    if survey.lists_other_pids:
        evidence.append(
            "inside containers this driver may list host pids, so this may be a different process"
        )
    return Entry(
        kind="process",
        nbytes=charge.nbytes,
        holder=holder(survey, charge.process, charge.lists),
        evidence=tuple(evidence),
        co_holders=co_holders,
        sharing="all" if co_holders else None,
        confidence="likely" if survey.lists_other_pids else "fact",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


class _DeadOwnersMemory:
    """Who holds the memory of one dead pid, or of several alike, described once for all of them."""

    def __init__(self, survey: IndexedSurvey, found: Match) -> None:
        self.found = found
        self.holders = holders(survey, (member for family in found.families for member in family.pids))
        self.files = [line for each in self.holders for line in _open_files(survey, each.pid)]
        self.members = sorted(member for family in found.families for member in family.pids)
        known = [survey.processes[member][1] for member in self.members if member in survey.processes]
        self.parents = {each.parent for each in known}
        self.leaders = {pid for each in known for pid in (each.group, each.session)}


def _dead(survey: IndexedSurvey, charge: Charge, held: _DeadOwnersMemory) -> Entry:
    pid, found = charge.process.pid, held.found
    evidence = [_statement(charge), gone(survey, pid)]
    if not held.holders:
        return _without_holder(survey, charge, evidence)
    return replace(
        _of_dead(survey, charge, held.holders),
        sharing=found.sharing or ("all" if len(held.holders) > 1 else None),
        evidence=(*evidence, *held.files, _link(pid, held), *_may_be_more(survey)),
        confidence="fact" if found.proof else "likely",
        proof=found.proof,
        unheld=found.unheld,
    )


def _of_dead(survey: IndexedSurvey, charge: Charge, people: tuple[Holder, ...]) -> Entry:
    """The entry of a dead pid's charge, likely held by *people*."""
    return Entry(
        kind="orphaned",
        nbytes=charge.nbytes,
        holder=people[0],
        co_holders=people[1:],
        sharing="all" if len(people) > 1 else None,
        charged_pid=charge.process.pid,
        charged_state=survey.state_of(charge.process.pid),
        confidence="likely",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )


def _joined(survey: IndexedSurvey, charges: list[Charge], held: _DeadOwnersMemory) -> Entry:
    """One entry for many dead pids with the same holders, in the name of the first of them."""
    sizes = [charge.nbytes for charge in charges if charge.nbytes is not None]
    nbytes = sum(sizes) if sizes else None
    amount = "unknown sizes" if nbytes is None else f"{size(nbytes)} together"
    first = _dead(survey, charges[0], held)
    reported = (
        f"it stands for {counted(len(charges), 'dead pid')} that the driver's lists name with {amount}:"
        f" {counted(len(held.holders), 'process')} may hold the memory of any of them"
    )
    return replace(first, nbytes=nbytes, evidence=(reported, *first.evidence), confidence="likely")


def _may_be_more(survey: IndexedSurvey) -> list[str]:
    """Processes that may not be read can be holders too; that takes nothing from those who are."""
    if not survey.unreadable.processes:
        return []
    unread = counted(survey.unreadable.processes, "process")
    return [f"the open files of {unread} are not readable; they could hold it as well"]


def _without_holder(survey: IndexedSurvey, charge: Charge, evidence: list[str]) -> Entry:
    """No visible process holds a listed, dead pid's memory: its holder is hidden, or there is none."""
    # Of another user, with open files that are closed to us, and of a session that names the dead pid.
    relatives = holders(survey, unreadable_relatives(survey, charge.process.pid))
    if relatives:
        evidence.append(
            f"{_pids(relatives)} {'is' if len(relatives) == 1 else 'are'} of its session, group or children,"
            " and the open files are not readable"
        )
        return replace(_of_dead(survey, charge, relatives), evidence=tuple(evidence))
    reason, why = out_of_sight(survey, charge.process.pid)
    dead = departed(charge.process.pid, charge.lists, visible=reason is None)
    return replace(
        _of_dead(survey, charge, (dead,)),
        kind="hidden" if reason else "orphaned",
        hidden_by=reason,
        evidence=(*evidence, why, *_with_any_file(survey)),
        confidence="likely" if reason else "unknown",
    )


def _with_any_file(survey: IndexedSurvey) -> list[str]:
    """What is said of those who have files of the driver's open and are charged on no GPU.

    A single descriptor keeps all memory of a context, be it of the GPU, of nvidiactl or of nvidia-uvm (H200).
    Programs that only watch the GPU look the same.
    """
    if survey.made_uncharged is None:
        survey.made_uncharged = sorted(_charged_nowhere(survey))
    found = survey.made_uncharged
    if not found:
        return []
    shown = ", ".join(map(str, found[:_MAX_WATCHERS])) + (", …" if len(found) > _MAX_WATCHERS else "")
    return [f"driver files are open, and nothing is charged, in pid {shown}: one descriptor can hold this"]


def _charged_nowhere(survey: IndexedSurvey) -> Iterator[int]:
    charged = {charge.process.pid for gpu in survey.gpus.values() for charge in (*gpu.charges, *gpu.unnamed)}
    for pid, facts in survey.files.items():
        if pid not in charged and any(file.kind in ("gpu", "control", "uvm") for file in facts.files):
            yield pid


def out_of_sight(survey: IndexedSurvey, pid: int) -> tuple[Literal["namespace", "permission"] | None, str]:
    """Why a listed process may be alive although we see nothing of it."""
    if not survey.host.initial_pid_namespace:
        return "namespace", "vram runs inside a PID namespace: the process may be outside it"
    if survey.host.hides_processes and pid not in survey.processes:
        return "permission", "/proc hides processes of other users (hidepid): it may be one of them"
    return None, "every readable process that has a context's files open is itself charged"


def gone(survey: IndexedSurvey, pid: int) -> str:
    """What is known of a listed process that can hold no files any more, or is not shown to us."""
    known = survey.processes.get(pid)
    if known is None:
        shown = survey.host.initial_pid_namespace and not survey.host.hides_processes
        return f"pid {pid} no longer exists" if shown else f"pid {pid} is not visible in /proc"
    if known[1].is_dead:
        return f"pid {pid} is a zombie: it has exited, and its parent {known[1].parent} has not reaped it"
    return f"pid {pid} is a different program now: it has no device file open"


def _link(pid: int, held: _DeadOwnersMemory) -> str:
    found = held.found
    if found.sharing == "one":
        who = ", ".join(map(str, held.members))
        return (
            f"each of pids {who} holds memory of a dead pid; which of them holds this is unknown"
            if found.proof
            else f"which of pids {who} holds it is unknown"
        )
    if pid in held.parents:
        link = f"its parent is {pid}"
    elif pid in held.leaders:
        link = f"its process group or session is still {pid}'s"
    else:
        link = "it was forked, its parent is dead, and no living process has the same open files"
    if found.proof:
        return link
    return f"{link}; it is not proven that it holds this memory: its files may come from another process"


def _open_only(survey: IndexedSurvey, owners: _Owners) -> list[OpenOnly]:
    distinct = {id(found): found for found in owners.matched.values()}.values()
    holding = {pid for found in distinct for family in found.families for pid in family.pids}
    return [
        OpenOnly(holder=holder(survey, survey.processes[pid][0]), inherited_from=owners.sources.get(pid))
        for pid in sorted(owners.uncharged)
        if pid not in holding and pid in survey.processes
    ]


def _statement(charge: Charge) -> str:
    if charge.nbytes is None:
        return f"the driver lists pid {charge.process.pid} but not how much it uses"
    return f"{_lists(charge)} names pid {charge.process.pid} with {size(charge.nbytes)}"


def _lists(charge: Charge) -> str:
    return f"the driver's {' and '.join(charge.lists) or 'process'} list"


def _open_files(survey: IndexedSurvey, pid: int) -> list[str]:
    facts = survey.files.get(pid)
    if facts is None:
        return []
    mappings = "" if facts.mappings is None else f" and {counted(facts.mappings, 'mapping')}"
    return [f"pid {pid} has {counted(len(facts.files), 'descriptor')}{mappings} on device files"]


def _pids(people: tuple[Holder, ...]) -> str:
    return ", ".join(str(person.pid) for person in people)


# ---- MPS: which server opened the GPU for whom ----
#
# The driver lists clients as such and does not say whose. A server serves the user that it runs as, or,
# where one server serves several users, all of them: so the client's own user's server is taken, and
# where there is but one, that one.


_SERVER = "nvidia-cuda-mps-server"


def with_servers(
    survey: IndexedSurvey, gpu: GpuObservations, entries: list[Entry], open_only: list[OpenOnly]
) -> tuple[list[Entry], list[OpenOnly]]:
    """Name the server of every MPS client; one that is charged nothing has the GPU open only."""
    servers = _servers(survey, gpu)
    by_user: dict[int | None, list[int]] = {}
    for pid, uid in servers.items():
        by_user.setdefault(uid, []).append(pid)
    placed = [replace(entry, mps_server=_server_of(survey, entry, servers, by_user)) for entry in entries]
    named = {entry.holder.pid for entry in entries if entry.holder}
    named |= {each.holder.pid for each in open_only}
    used = sorted({entry.mps_server for entry in placed if entry.mps_server is not None} - named)
    return placed, [*open_only, *(OpenOnly(holder=holder(survey, survey.processes[pid][0])) for pid in used)]


def _servers(survey: IndexedSurvey, gpu: GpuObservations) -> dict[int, int | None]:
    """Living servers on the GPU, by pid, and the user that each runs as."""
    minor = gpu.facts.minor if gpu.facts else None
    here = gpu.listed | survey.opened(minor).keys()
    return {
        pid: facts.uid
        for pid, (_, facts) in survey.processes.items()
        if pid in here and not facts.is_dead and _is_server(facts)
    }


def _is_server(facts: ProcessFacts) -> bool:
    # Other users may not read its executable: then its command line decides.
    if facts.executable is None:
        return bool(facts.argv) and facts.argv[0].rpartition("/")[2] == _SERVER
    return is_mps_server(facts)


def _server_of(
    survey: IndexedSurvey, entry: Entry, servers: dict[int, int | None], by_user: dict[int | None, list[int]]
) -> int | None:
    client = entry.holder
    if client is None or "mps" not in client.lists or client.pid in servers:
        return None
    known = survey.processes.get(client.pid)
    same_user = by_user.get(known[1].uid) if known else None
    fitting = same_user or servers
    return next(iter(fitting)) if len(fitting) == 1 else None
