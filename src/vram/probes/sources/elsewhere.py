"""Where else memory may be held: read only where it can prove that bytes are the driver's own reserve.

Reading all descriptors of all processes costs many times what the scan for device files does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from vram.host.ports import Host
from vram.model.files import ElsewhereFacts, FilesFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts, MemoryFacts
from vram.model.ledger import MAX_CONTEXT_OVERHEAD, MAX_PREALLOCATED, MIN_PREALLOCATED
from vram.model.observation import HostFacts, Observation

NAME = "elsewhere"

# What is not read by then proves nothing, and a reading must not wait for it.
_MAX_S = 0.5


def is_needed(me: HostFacts, observed: Iterable[Observation]) -> bool:
    """Whether bytes that no process accounts for may be the reserve, and we see enough to prove it."""
    observed = list(observed)
    if me.uid != 0 or not me.initial_pid_namespace or me.hides_processes or not _is_whole(observed):
        return False
    explained = sum(each.nbytes or 0 for each in observed if each.probe in ("driver.exports", "proc.dmabuf"))
    managed = sum(each.facts.managed_bytes or 0 for each in observed if isinstance(each.facts, FilesFacts))
    return any(
        contexts
        and MIN_PREALLOCATED
        < missing - contexts * MAX_CONTEXT_OVERHEAD
        <= MAX_PREALLOCATED + explained + managed
        for missing, contexts in _missing(observed)
    )


def _missing(observed: Iterable[Observation]) -> Iterable[tuple[int, int]]:
    """Bytes of each GPU that are charged to no process, and how many contexts it has."""
    missing: Counter[int | None] = Counter()
    contexts: Counter[int | None] = Counter()
    for each in observed:
        if isinstance(each.facts, MemoryFacts):
            # Where the machine's memory is the GPU's, what no process is charged for is no reserve.
            missing[each.gpu] += 0 if each.facts.system else each.facts.used
        elif isinstance(each.facts, ChargeFacts):
            missing[each.gpu] -= each.nbytes or 0
            contexts[each.gpu] += 1
    return ((nbytes, contexts[gpu]) for gpu, nbytes in missing.items())


def _is_whole(observed: Iterable[Observation]) -> bool:
    return not any(
        isinstance(each.facts, UnreadableFacts) or (each.probe == "proc.files" and each.status != "ok")
        for each in observed
    )


def observe(host: Host, deadline_s: float, *, all_asked: bool) -> Iterator[Observation]:
    """One statement: everywhere that memory may be held and no open file shows it.

    *all_asked*: every descriptor that can be an exported allocation was asked.
    """
    found = host.files.elsewhere(min(deadline_s, _MAX_S))
    if not all_asked:
        found = (*found, "untried")
    yield Observation(probe="proc.elsewhere", facts=ElsewhereFacts(tuple(found)))
