"""Who they are: every process that holds or is charged, and the names of its ancestors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from vram.host.ports import Host
from vram.model.files import ClientFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation
from vram.model.parents import is_adopter, is_no_launcher
from vram.model.process import ProcessFacts, ProcessRef

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
    looked_up: _Known = {}
    yield from _with_ancestors(host, meant, meant, looked_up, leaders_of=sharing)
    for job in _jobs_not_whole(looked_up):
        rest = host.proc.rest_of_job(job)
        if rest is not None:
            yield from (Observation(probe="proc.jobs", process=process, facts=rest) for process, _ in job)
    dead = {pid for pid in charged if pid not in looked_up or looked_up[pid][1].is_dead}
    if not dead:
        return
    uncharged = meant - charged
    wanted = {looked_up[pid][1].session or 0 for pid in uncharged if pid in looked_up} - {0}
    if any(isinstance(each.facts, UnreadableFacts) for each in observed):
        relatives = set(host.proc.relatives(dead))
        meant |= relatives
        wanted |= relatives
    yield from _with_ancestors(host, wanted, meant, looked_up)


_Known = dict[int, tuple[ProcessRef, ProcessFacts]]


def _jobs_not_whole(known: _Known) -> Iterator[list[tuple[ProcessRef, ProcessFacts]]]:
    """Jobs of which fewer ranks hold something than one launcher started here, where that may be dead.

    At least two, with one parent that is no launcher: nothing but their launcher gives two processes the
    environment of two ranks. Who was adopted by an init has lost its launcher whatever the others do.
    """
    jobs: dict[object, list[tuple[ProcessRef, ProcessFacts]]] = {}
    for process, facts in known.values():
        claim = facts.launch
        if claim is not None and claim.direct and (claim.local_size or 0) > 2 and not facts.is_dead:
            jobs.setdefault((facts.uid, claim.by, claim.job, claim.local_size), []).append((process, facts))
    for job in jobs.values():
        parents = {facts.parent or 0 for _, facts in job}
        parent = known.get(parents.pop()) if len(parents) == 1 else None
        ranks = {facts.launch.rank for _, facts in job if facts.launch is not None}
        local_size = next(facts.launch.local_size or 0 for _, facts in job if facts.launch is not None)
        was_adopted = parent is not None and is_no_launcher(parent[1]) and not is_adopter(*parent)
        if was_adopted and 2 <= len(ranks) < local_size:
            yield job


def _with_ancestors(
    host: Host,
    pids: Iterable[int],
    meant: Collection[int],
    looked_up: _Known,
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
        process, facts = looked_up[pid] = found
        # Arguments carry secrets, and a snapshot carries them on: an ancestor's name is enough.
        shown = facts if pid in meant else replace(facts, argv=())
        yield Observation(probe="proc.processes", process=process, facts=shown)
        if facts.parent is not None:
            waiting.append(facts.parent)
        if pid in leaders_of:
            waiting += [leader for leader in (facts.group, facts.session) if leader]
