"""ROCm's list of processes in sysfs, by GPU: what the kernel's compute driver charges them with.

The figures are called vram on every GPU. Where a processor's GPU has less memory of its own than it
may use of the machine's, kernels since about 6.10 give ROCm the machine's (apu_prefer_gtt in amdgpu).
The topology then tells a memory larger than the GPU's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vram.host.local.sysfs import Reading, read_nbytes, read_word
from vram.host.ports import ComputeCharge

_PROPERTY = re.compile(rb"^(location_id|domain) (\d{1,10})$", re.MULTILINE)
_BANK = re.compile(rb"^size_in_bytes (\d{1,19})$", re.MULTILINE)
_USED = re.compile(r"vram_(\d{1,10})")


class _Gpu(NamedTuple):
    """A GPU of ROCm's, and whether its memory there is the machine's."""

    address: str
    system: bool


def charges(root: str, own: Mapping[str, int | None]) -> list[ComputeCharge]:
    """Every process that ROCm lists, with its bytes on each GPU of *own*: addresses, and their memory.

    The list shows the pids of the host, whatever namespace it is read in.
    """
    folder = f"{root}/class/kfd/kfd"
    gpus = _gpus(f"{folder}/topology/nodes", own)
    found: dict[tuple[int, _Gpu], Reading] = {}
    for pid in sorted(int(name) for name in _names(f"{folder}/proc") if name.isdigit() and len(name) < 11):
        for number, used in _figures(f"{folder}/proc/{pid}"):
            if number in gpus:
                key = (pid, gpus[number])
                found[key] = _sum(found.get(key, Reading(0)), used)
    return [ComputeCharge(pid, gpu.address, *used, gpu.system) for (pid, gpu), used in found.items()]


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


def _gpus(folder: str, own: Mapping[str, int | None]) -> dict[int, _Gpu]:
    """Which GPU each of the list's own numbers means."""
    found = {}
    for node in _names(folder):
        number = read_word(f"{folder}/{node}/gpu_id") or b""
        raw = read_word(f"{folder}/{node}/properties") or b""
        told = {key: int(value) for key, value in _PROPERTY.findall(raw)}
        if number.isdigit() and int(number) and b"location_id" in told:
            address = _whole(_address(told.get(b"domain", 0), told[b"location_id"]), own)
            size = own.get(address)
            found[int(number)] = _Gpu(address, size is not None and _memory(f"{folder}/{node}") > size)
    return found


def _whole(address: str, own: Mapping[str, int | None]) -> str:
    """A partition of a GPU has its own number where the function of the device stands."""
    same = (each for each in own if each.rpartition(".")[0] == address.rpartition(".")[0])
    return address if address in own else next(same, address)


def _memory(node: str) -> int:
    """What ROCm may allocate on the GPU of *node*; 0 where it is not told."""
    banks = (read_word(f"{node}/mem_banks/{bank}/properties") or b"" for bank in _names(f"{node}/mem_banks"))
    return sum(int(size) for bank in banks for size in _BANK.findall(bank))


def _address(domain: int, location: int) -> str:
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
