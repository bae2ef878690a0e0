"""Who they are: every process that holds or is charged, and the names of its ancestors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from vram.host.ports import Host
from vram.model.files import ClientFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation
from vram.model.process import ProcessFacts

NAME = "processes"


def observe(host: Host, observed: Iterable[Observation]) -> Iterator[Observation]:
    """Facts about every process that *observed* speaks of, and its ancestors. One that is gone is not there.

    No driver's list says who shares an open DRM file: there the leaders of process groups
    and sessions are looked up too, since they may be where it came from. So they are where the list
    names a pid that is gone, and with them, where not every process may be read, those of the dead
    pid's session and group: every user may read their parents and sessions.
    """
    observed = list(observed)
    sharing = {each.process.pid for each in observed if each.process and isinstance(each.facts, ClientFacts)}
    meant = {each.process.pid for each in observed if each.process}
    charged = {each.process.pid for each in observed if each.process and isinstance(each.facts, ChargeFacts)}
    looked_up: dict[int, ProcessFacts] = {}
    yield from _with_ancestors(host, meant, meant, looked_up, leaders_of=sharing)
    dead = {pid for pid in charged if pid not in looked_up or looked_up[pid].is_dead}
    if not dead:
        return
    uncharged = meant - charged
    wanted = {looked_up[pid].session or 0 for pid in uncharged if pid in looked_up} - {0}
    if any(isinstance(each.facts, UnreadableFacts) for each in observed):
        relatives = set(host.proc.relatives(dead))
        meant |= relatives
        wanted |= relatives
    yield from _with_ancestors(host, wanted, meant, looked_up)


def _with_ancestors(
    host: Host,
    pids: Iterable[int],
    meant: Collection[int],
    looked_up: dict[int, ProcessFacts],
    leaders_of: Collection[int] = (),
) -> Iterator[Observation]:
    """Those of *pids* that are not in *looked_up* yet, and who is above them."""
    waiting = sorted(pids, reverse=True)
    asked: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid in asked or pid in looked_up:
            continue
        asked.add(pid)
        found = host.proc.facts(pid)
        if found is None:
            continue
        process, facts = found
        looked_up[pid] = facts
        # Arguments carry secrets, and a snapshot carries them on: an ancestor's name is enough.
        shown = facts if pid in meant else replace(facts, argv=())
        yield Observation(probe="proc.processes", process=process, facts=shown)
        if facts.parent is not None:
            waiting.append(facts.parent)
        if pid in leaders_of:
            waiting += [leader for leader in (facts.group, facts.session) if leader]
