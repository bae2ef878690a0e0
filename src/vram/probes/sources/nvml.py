"""What the driver's management library says: GPUs, their memory, and its process lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import Host
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation

NAME = "nvml"


def begin(host: Host, deadline_s: float) -> Iterator[Observation]:
    """Start the reading, which goes on beside us; iterate to collect it."""
    return host.nvml.read(deadline_s)


def ended_meanwhile(host: Host, observed: Iterable[Observation]) -> bool:
    """Whether a process ended between being listed and now, or was about to.

    It was alive when it was listed, so its pid is not one of those that the driver keeps
    charging after their end: another reading shows the GPU without it. Where processes come and
    go all the time no reading is the last word, and the ledger sets them apart.
    """
    return any(_is_passing(host, each) for each in observed if isinstance(each.facts, ChargeFacts))


def _is_passing(host: Host, listed: Observation) -> bool:
    process, facts = listed.process, listed.facts
    if process is None or not isinstance(facts, ChargeFacts):
        return False
    ended = process.started_at not in (None, host.proc.started_at(process.pid))
    return ended or facts.ended or facts.exiting
