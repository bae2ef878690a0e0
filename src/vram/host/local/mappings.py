"""A process's mappings of device files: how many, and how much managed memory they show."""

from __future__ import annotations

from typing import NamedTuple

from vram.payloads.procfs import map_lines

# Every context maps 2 MiB of nvidia-uvm for itself (driver 580.159); larger ones are managed memory.
_OF_A_CONTEXT = 2 << 20


class Mappings(NamedTuple):
    """``managed_bytes`` is what the process may have on its GPUs, in host memory, or half and half."""

    number: int
    managed_bytes: int


def mappings_in(maps: bytes, prefixes: tuple[bytes, ...], uvm: bytes) -> Mappings:
    """Read /proc/PID/maps for files that start with *prefixes*; *uvm* is the managed memory's."""
    device = [line for line in map_lines(maps, prefixes) if line.path.startswith(prefixes)]
    managed = (line.nbytes for line in device if line.path == uvm)
    return Mappings(len(device), sum(nbytes for nbytes in managed if nbytes > _OF_A_CONTEXT))
