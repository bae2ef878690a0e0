"""What the driver's management library says: GPUs, their memory, and its process lists."""

from __future__ import annotations

from collections.abc import Iterator

from vram.host.ports import Host
from vram.model.observation import Observation

NAME = "nvml"


def begin(host: Host, deadline_s: float) -> Iterator[Observation]:
    """Start the reading, which goes on beside us; iterate to collect it."""
    return host.nvml.read(deadline_s)
