"""Who they are: every process that holds or is charged, and the names of its ancestors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from vram.host.ports import Host
from vram.model.drm import ClientFacts
from vram.model.observation import Observation

NAME = "processes"


def observe(host: Host, seen: Iterable[Observation]) -> Iterator[Observation]:
    """Facts about every process that *seen* speaks of. One that is gone is simply not there.

    Who shares an open DRM file is told by no driver's list: there the leaders of process groups
    and sessions are looked up too, since they may be where it came from.
    """
    seen = list(seen)
    sharing = {each.process.pid for each in seen if each.process and isinstance(each.facts, ClientFacts)}
    meant = {each.process.pid for each in seen if each.process}
    waiting = sorted(meant, reverse=True)
    known: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid in known:
            continue
        known.add(pid)
        found = host.proc.facts(pid)
        if found is None:
            continue
        process, facts = found
        # Arguments carry secrets, and a snapshot carries them on: an ancestor's name is enough.
        shown = facts if pid in meant else replace(facts, argv=())
        yield Observation(probe="proc.processes", process=process, facts=shown)
        if facts.parent is not None:
            waiting.append(facts.parent)
        if pid in sharing:
            waiting += [leader for leader in (facts.group, facts.session) if leader]
