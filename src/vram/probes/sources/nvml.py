"""What the driver's management library says: GPUs, their memory, and its process lists."""

from __future__ import annotations

from collections.abc import Iterable

from vram.host.ports import Host
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation

NAME = "nvml"


def ended_meanwhile(host: Host, observed: Iterable[Observation]) -> bool:
    """Whether a process ended between being listed and now, or was about to.

    It was alive when it was listed, so its pid is not one of those that the driver keeps
    charging after their end: another reading shows the GPU without it. Where processes come and
    go all the time no reading is the last word, and the ledger sets them apart.
    """
    for each in observed:
        if each.process is not None and isinstance(each.facts, ChargeFacts):
            ended = each.process.started_at not in (None, host.proc.started_at(each.process.pid))
            if ended or each.facts.ended or each.facts.exiting:
                return True
    return False
