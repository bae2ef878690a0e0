"""ROCm's list of processes in sysfs, by GPU: what the kernel's compute driver charges them with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from vram.host.local.sysfs import Reading, read_nbytes, read_word
from vram.host.ports import ComputeCharge

_PROPERTY = re.compile(rb"^(location_id|domain) (\d{1,10})$", re.MULTILINE)
_USED = re.compile(r"vram_(\d{1,10})")


def charges(root: str, addresses: Sequence[str]) -> list[ComputeCharge]:
    """Every process that ROCm lists, with its bytes on each GPU of *addresses*.

    The list shows the pids of the host, whatever namespace it is read in.
    """
    folder = f"{root}/class/kfd/kfd"
    gpus = _gpus(f"{folder}/topology/nodes", addresses)
    found: dict[tuple[int, str], Reading] = {}
    for pid in sorted(int(name) for name in _names(f"{folder}/proc") if name.isdigit() and len(name) < 11):
        for number, used in _figures(f"{folder}/proc/{pid}"):
            if number in gpus:
                key = (pid, gpus[number])
                found[key] = _sum(found.get(key, Reading(0)), used)
    return [ComputeCharge(pid, address, *used) for (pid, address), used in found.items()]


def _figures(process: str) -> Iterator[tuple[int, Reading]]:
    """A process's figures; where it has several contexts, each has a folder with its own."""
    for name in _names(process):
        used = _USED.fullmatch(name)
        if used:
            yield int(used[1]), read_nbytes(f"{process}/{name}")
        elif name.startswith("context_"):
            yield from _figures(f"{process}/{name}")


def _sum(one: Reading, other: Reading) -> Reading:
    if other.status == "unsupported":  # gone between being listed and being read: it has ended
        return one
    if one.nbytes is None or other.nbytes is None:
        return one if one.nbytes is None else other
    return Reading(one.nbytes + other.nbytes)


def _gpus(folder: str, addresses: Sequence[str]) -> dict[int, str]:
    """Which PCI address each of the list's own GPU numbers means."""
    found = {}
    for node in _names(folder):
        number = read_word(f"{folder}/{node}/gpu_id") or b""
        raw = read_word(f"{folder}/{node}/properties") or b""
        told = {key: int(value) for key, value in _PROPERTY.findall(raw)}
        if number.isdigit() and int(number) and b"location_id" in told:
            address = _address(told.get(b"domain", 0), told[b"location_id"])
            # A partition of a GPU has its own number where the function of the device stands.
            whole = (each for each in addresses if each.rpartition(".")[0] == address.rpartition(".")[0])
            found[int(number)] = address if address in addresses else next(whole, address)
    return found


def _address(domain: int, location: int) -> str:
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
