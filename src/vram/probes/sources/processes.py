"""Who they are: every process that holds or is charged, and its ancestors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import Host
from vram.model.observation import Observation

NAME = "processes"


def observe(host: Host, seen: Iterable[Observation]) -> Iterator[Observation]:
    """Facts about every process that *seen* speaks of. One that is gone is simply not there."""
    waiting = sorted({each.process.pid for each in seen if each.process}, reverse=True)
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
        yield Observation(probe="proc.processes", process=process, facts=facts)
        if facts.parent is not None:
            waiting.append(facts.parent)
