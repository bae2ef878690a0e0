"""Clients of a DRM GPU, each counted once, by its number: however many processes have it open.

A fork inherits a client, a dup repeats it, a descriptor that is passed on shares it; the kernel
shows its figures behind every one of them. So clients come first here, and then who has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vram.ledger.indexed_survey import ClientObservation, IndexedSurvey
from vram.model.files import ClientFacts, Region

# They open device files for the session's programs and keep a copy; the memory is not theirs.
_SESSION_SERVICES = ("systemd", "systemd-logind", "elogind", "seatd")

# What amdgpu moved to where the GPU does not reach it, or has not placed yet; its figure of GTT in use
# leaves it out.
_OUT_OF_REACH = "cpu"


class Client(Struct):
    """One open file: the processes that have it, and its figures. ``certain`` False: it may be two."""

    pids: dict[int, None]
    descriptors: int
    dedicated: int | None
    shared: int
    system: int | None
    certain: bool = True

    @property
    def private(self) -> int:
        return (self.dedicated or 0) - self.shared


class ClientHolders(Struct, frozen=True):
    """Who of several processes has a client: who opened it, or the one that stands for it.

    ``inherited``: the others descend from that one; ``departed`` names who opened it
    and is gone.
    """

    first: int
    others: tuple[int, ...]
    inherited: bool = False
    departed: int | None = None


class ClientGroup(Struct):
    """What the same processes have through all their clients together."""

    pids: tuple[int, ...]
    who: ClientHolders
    clients: list[Client]

    @property
    def private(self) -> int:
        return sum(client.private for client in self.clients)

    @property
    def shared(self) -> int:
        return sum(client.shared for client in self.clients)

    @property
    def system(self) -> int:
        return sum(client.system or 0 for client in self.clients)

    @property
    def certain(self) -> bool:
        return all(client.certain for client in self.clients)

    @property
    def has_figure(self) -> bool:
        """Whether at least one figure is known."""
        return any(client.dedicated is not None or client.system is not None for client in self.clients)


def client_groups(survey: IndexedSurvey, observed: Iterable[ClientObservation]) -> list[ClientGroup]:
    """All clients, gathered by the set of processes that have them."""
    found: dict[tuple[int, ...], list[Client]] = {}
    for client in _clients(observed):
        found.setdefault(tuple(sorted(client.pids)), []).append(client)
    return [ClientGroup(pids, _choose_holders(survey, pids), clients) for pids, clients in found.items()]


def _clients(observed: Iterable[ClientObservation]) -> list[Client]:
    found: dict[object, Client] = {}
    for each in observed:
        facts, pid = each.facts, each.process.pid
        identity, certain = _identity(facts, pid)
        client = _read(facts, pid, certain)
        known = found.setdefault(identity, client)
        if known is not client:
            _add(known, client)
    return list(found.values())


def _identity(facts: ClientFacts, pid: int) -> tuple[object, bool]:
    if facts.client is not None:
        return ("client", facts.client), True
    if facts.description is not None:
        return ("file", facts.description), True
    # Nothing distinguishes its descriptors: they are taken for one, so that none is counted twice.
    return ("process", pid), False


def _read(facts: ClientFacts, pid: int, certain: bool) -> Client:
    dedicated = [region for region in facts.regions if region.dedicated]
    system = [each for each in facts.regions if not each.dedicated and each.name != _OUT_OF_REACH]
    shared = sum(min(region.shared or 0, region.nbytes or 0) for region in dedicated)
    return Client({pid: None}, 1, _sum(dedicated), shared, _sum(system), certain)


def _sum(regions: list[Region]) -> int | None:
    known = [region.nbytes for region in regions if region.nbytes is not None]
    return sum(known) if known else None


def _add(known: Client, other: Client) -> None:
    """Another descriptor of the same client; read a moment later, it may show more or less."""
    known.descriptors += 1
    known.pids |= other.pids
    if (other.dedicated or 0) > (known.dedicated or 0):
        known.dedicated, known.shared = other.dedicated, other.shared
    known.system = max((each for each in (known.system, other.system) if each is not None), default=None)


def _choose_holders(survey: IndexedSurvey, pids: tuple[int, ...]) -> ClientHolders:
    """Choose among *pids*, which have the same client open."""
    ordinary = [pid for pid in pids if not _is_session_service(survey, pid)] or list(pids)
    below = survey.ancestry.below_others(ordinary)
    heads = [pid for pid in ordinary if pid not in below]
    first = min(heads or ordinary, key=lambda pid: (_started(survey, pid), pid))
    others = tuple(pid for pid in pids if pid != first)
    if len(heads) == 1:
        return ClientHolders(first, others, inherited=len(ordinary) > 1)
    return ClientHolders(first, others, departed=_common_dead(survey, heads))


def _common_dead(survey: IndexedSurvey, heads: list[int]) -> int | None:
    """The dead process that all of *heads* come from, as their process groups and sessions show."""
    if survey.host.hides_processes:  # a process that is not shown to us may live
        return None
    sources = [
        {facts.parent, facts.group, facts.session}
        for pid in heads
        if pid in survey.processes and (facts := survey.processes[pid][1])
    ]
    common = set.intersection(*sources) if len(sources) == len(heads) > 1 else set()
    gone = sorted(pid for pid in common if pid and pid > 1 and not survey.alive(pid))
    return gone[0] if gone else None


def _is_session_service(survey: IndexedSurvey, pid: int) -> bool:
    known = survey.processes.get(pid)
    if known is None or known[1].executable_trusted is False:
        return False
    path = known[1].executable or ""
    return path.startswith(("/usr/", "/lib/")) and path.rpartition("/")[2] in _SESSION_SERVICES


def _started(survey: IndexedSurvey, pid: int) -> int:
    known = survey.processes.get(pid)
    return known[0].started_at or 0 if known else 0
