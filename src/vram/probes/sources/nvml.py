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


def ended_meanwhile(host: Host, seen: Iterable[Observation]) -> bool:
    """Whether a process ended between being listed and now.

    It was alive when it was listed, so its pid is not one of those that the driver keeps
    charging after their end; only another reading can tell them apart.
    """
    listed = [each.process for each in seen if isinstance(each.facts, ChargeFacts)]
    return any(each and each.started_at not in (None, host.proc.started_at(each.pid)) for each in listed)
