"""What memory a GPU of Intel has, and how much of it is in use: as far as the kernel tells.

xe's regions are in the root of the cgroups (dmem, Documentation/admin-guide/cgroup-v2.rst). Some
builds of xe tell the size of each tile in sysfs too; i915 tells neither. The size of the PCI window
would be no answer: it is 256 MiB where it cannot be made larger, and a power of two beyond the
card's memory where it can.
"""

from __future__ import annotations

import os
import re

from vram.host.local.sysfs import Reading, asleep, listing, read_nbytes, read_word

_TILE = re.compile(r"tile\d{1,2}")
_REGION = re.compile(rb"^drm/([0-9a-f:.]{12,20})/vram\d{0,2} (\d{1,18})$", re.MULTILINE)


def memory(root: str, address: str, driver: str, folder: str) -> tuple[Reading, int | None]:
    """The card's size, and what is in use of it."""
    capacity = _regions(f"{root}/fs/cgroup/dmem.capacity", address)
    if capacity:
        return Reading(capacity), _regions(f"{root}/fs/cgroup/dmem.current", address)
    return _tiles(driver, folder), None


def _regions(path: str, address: str) -> int | None:
    found = _REGION.findall(read_word(path) or b"")
    ours = [int(nbytes) for place, nbytes in found if place.decode() == address]
    return sum(ours) if ours else None


def _tiles(driver: str, folder: str) -> Reading:
    untold = Reading(None, "unsupported", f"{driver} does not tell how much memory the card has")
    tiles = sorted(name for name in listing(folder) or () if _TILE.fullmatch(name))
    files = [f"{folder}/{tile}/physical_vram_size_bytes" for tile in tiles]
    if not files or not all(map(os.path.exists, files)):
        return untold
    if asleep(folder):
        return Reading(None, "unsupported", "the card sleeps, and asking for its size would wake it")
    parts = [read_nbytes(file) for file in files]
    unknown = next((part for part in parts if part.nbytes is None), None)
    return unknown or Reading(sum(part.nbytes or 0 for part in parts))
