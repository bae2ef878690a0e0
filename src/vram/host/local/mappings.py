"""A process's mappings of device files: how many, and how much managed memory they show."""

from __future__ import annotations

from typing import NamedTuple

# Every context maps 2 MiB of nvidia-uvm for itself (driver 580.159); larger ones are managed memory.
_OF_A_CONTEXT = 2 << 20


class Mappings(NamedTuple):
    """``managed_bytes`` is what the process may have on its GPUs, in host memory, or half and half."""

    number: int
    managed_bytes: int


def mappings_in(maps: bytes, prefixes: tuple[bytes, ...], uvm: bytes) -> Mappings:
    """Read /proc/PID/maps for files that start with *prefixes*; *uvm* is the managed memory's."""
    lines = [line.split(None, 5) for line in maps.splitlines()]
    device = [line for line in lines if line[-1].startswith(prefixes)]
    managed = (_nbytes(line[0]) for line in device if line[-1].removesuffix(b" (deleted)") == uvm)
    return Mappings(len(device), sum(nbytes for nbytes in managed if nbytes > _OF_A_CONTEXT))


def _nbytes(span: bytes) -> int:
    begin, _, end = span.partition(b"-")
    return int(end, 16) - int(begin, 16)
