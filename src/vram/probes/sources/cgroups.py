"""What the kernel counts for each control group on NVIDIA's GPUs, where it does: Linux 6.14, driver 615."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import Host
from vram.model.gpu import GpuFacts
from vram.model.observation import Observation

NAME = "cgroups"


def observe(host: Host, observed: Iterable[Observation]) -> Iterator[Observation]:
    """A statement for each group that has memory or a limit on a GPU that was read."""
    addresses = {
        _plain(each.facts.bus_id): each.gpu
        for each in observed
        if isinstance(each.facts, GpuFacts) and each.facts.bus_id
    }
    for use in host.cgroups.device_memory():
        gpu = addresses.get(_plain(use.address))
        if gpu is not None:
            yield Observation(probe="cgroups.dmem", gpu=gpu, nbytes=use.nbytes, facts=use.facts)


def _plain(address: str) -> str:
    """Without the zeros before the domain, of which there are four or eight."""
    return address.lower().lstrip("0")
