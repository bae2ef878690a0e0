"""Clients of a DRM GPU, each counted once: by its number, whoever has it open, however often.

A fork inherits a client, a dup repeats it, a descriptor that is passed on shares it; the kernel
shows its figures behind every one of them. So clients come first here, and then who has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vram.ledger.sightings import ClientSighting, Sightings
from vram.model.drm import ClientFacts, Region

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


class ClientGroup(Struct):
    """What the same processes have through all their clients together."""

    pids: tuple[int, ...]
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
    def is_told(self) -> bool:
        """Whether at least one figure is known."""
        return any(client.dedicated is not None or client.system is not None for client in self.clients)


def claims(sightings: Iterable[ClientSighting]) -> list[ClientGroup]:
    """Everybody's clients, gathered by the set of processes that have them."""
    found: dict[tuple[int, ...], ClientGroup] = {}
    for client in _clients(sightings):
        pids = tuple(sorted(client.pids))
        found.setdefault(pids, ClientGroup(pids, [])).clients.append(client)
    return list(found.values())


def _clients(sightings: Iterable[ClientSighting]) -> list[Client]:
    found: dict[object, Client] = {}
    for sighting in sightings:
        facts, pid = sighting.facts, sighting.process.pid
        identity, certain = _identity(facts, pid)
        seen = _read(facts, pid, certain)
        known = found.setdefault(identity, seen)
        if known is not seen:
            _add(known, seen)
    return list(found.values())


def _identity(facts: ClientFacts, pid: int) -> tuple[object, bool]:
    if facts.client is not None:
        return ("client", facts.client), True
    if facts.description is not None:
        return ("file", facts.description), True
    # Nothing tells its descriptors apart: they are taken for one, so that none is counted twice.
    return ("process", pid), False


def _read(facts: ClientFacts, pid: int, certain: bool) -> Client:
    dedicated = [region for region in facts.regions if region.dedicated]
    system = [each for each in facts.regions if not each.dedicated and each.name != _OUT_OF_REACH]
    shared = sum(min(region.shared or 0, region.nbytes or 0) for region in dedicated)
    return Client({pid: None}, 1, _sum(dedicated), shared, _sum(system), certain)


def _sum(regions: list[Region]) -> int | None:
    known = [region.nbytes for region in regions if region.nbytes is not None]
    return sum(known) if known else None


def _add(known: Client, seen: Client) -> None:
    """Another descriptor of the same client; read a moment later, it may tell more or less."""
    known.descriptors += 1
    known.pids |= seen.pids
    if (seen.dedicated or 0) > (known.dedicated or 0):
        known.dedicated, known.shared = seen.dedicated, seen.shared
    known.system = max((each for each in (known.system, seen.system) if each is not None), default=None)


class Keeping(Struct, frozen=True):
    """Who of several processes has a client: its opener, or the one that stands for it.

    ``inherited`` tells that the others descend from the opener; ``departed`` names who opened it
    and is gone.
    """

    first: int
    others: tuple[int, ...]
    inherited: bool = False
    departed: int | None = None


def keeping(seen: Sightings, pids: tuple[int, ...]) -> Keeping:
    """Choose among *pids*, which have the same client open."""
    ordinary = [pid for pid in pids if not _is_session_service(seen, pid)] or list(pids)
    below = seen.ancestry.below_others(ordinary)
    heads = [pid for pid in ordinary if pid not in below]
    first = min(heads or ordinary, key=lambda pid: (_started(seen, pid), pid))
    others = tuple(pid for pid in pids if pid != first)
    if len(heads) == 1:
        return Keeping(first, others, inherited=len(ordinary) > 1)
    return Keeping(first, others, departed=_common_dead(seen, heads))


def _common_dead(seen: Sightings, heads: list[int]) -> int | None:
    """The dead process that all of *heads* come from, as their process groups and sessions tell."""
    if seen.host.hides_processes:  # whoever is not shown to us may live
        return None
    sources = [
        {facts.parent, facts.group, facts.session}
        for pid in heads
        if pid in seen.processes and (facts := seen.processes[pid][1])
    ]
    common = set.intersection(*sources) if len(sources) == len(heads) > 1 else set()
    gone = sorted(pid for pid in common if pid and pid > 1 and not seen.alive(pid))
    return gone[0] if gone else None


def _is_session_service(seen: Sightings, pid: int) -> bool:
    known = seen.processes.get(pid)
    if known is None or known[1].executable_trusted is False:
        return False
    path = known[1].executable or ""
    return path.startswith(("/usr/", "/lib/")) and path.rpartition("/")[2] in _SESSION_SERVICES


def _started(seen: Sightings, pid: int) -> int:
    known = seen.processes.get(pid)
    return known[0].started_at or 0 if known else 0
