"""GPUs that the kernel's DRM drives, as sysfs shows them: what they are, and their memory."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import NamedTuple

from vram.host.local.sysfs import Reading, read_nbytes, read_word
from vram.host.ports import Card, ComputeCharge
from vram.model.gpu import GpuFacts, Vendor

# Those that tell what memory their clients use. nouveau and radeon do not; NVIDIA's own has NVML.
VENDORS: dict[str, Vendor] = {"amdgpu": "amd", "i915": "intel", "xe": "intel"}

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_CARD = re.compile(r"card\d{1,4}")
_NODE = re.compile(r"(?:card|renderD)(\d{1,4})")
_TILE = re.compile(r"tile\d{1,2}")
# Intel puts the GPU of its processors there, and no card can be.
_INTEL_INTEGRATED = "0000:00:02."


class Device(NamedTuple):
    """A GPU's folder in sysfs."""

    address: str
    driver: str
    folder: str


class LocalDrm:
    """Reads a tree like /sys. *ids* are files that name PCI devices, as distributions ship them."""

    def __init__(self, root: str = "/sys", *, ids: str | None = None) -> None:
        self._root = root
        self._ids = ids

    @cached_property
    def drivers(self) -> frozenset[str]:
        """The drivers whose GPUs are here: without any, nothing else need be looked at."""
        return frozenset(device.driver for device in self._devices())

    def cards(self) -> list[Card]:
        return [self._card(device) for device in self._devices()]

    def compute(self) -> list[ComputeCharge]:
        if "amdgpu" not in self.drivers:
            return []
        from vram.host.local.kfd import charges

        return charges(self._root, [device.address for device in self._devices()])

    def nvidia_gpus(self) -> int | None:
        names = _listing(f"{self._root}/bus/pci/drivers/nvidia")
        return None if names is None else sum(1 for name in names if _ADDRESS.fullmatch(name))

    def _devices(self) -> list[Device]:
        folder = f"{self._root}/class/drm"
        found = {}
        for name in _listing(folder) or ():
            if _CARD.fullmatch(name):
                device = os.path.realpath(f"{folder}/{name}/device")
                driver = os.path.basename(os.path.realpath(f"{device}/driver"))
                address = os.path.basename(device)
                if driver in VENDORS and _ADDRESS.fullmatch(address):
                    found[address] = Device(address, driver, device)
        return [found[address] for address in sorted(found, key=_place)]

    def _card(self, device: Device) -> Card:
        facts = self._facts(device)
        if device.driver == "amdgpu":
            total = read_nbytes(f"{device.folder}/mem_info_vram_total")
            used = read_nbytes(f"{device.folder}/mem_info_vram_used")
            worst = total if total.nbytes is None else used
            return Card(
                device.address,
                facts,
                total.nbytes,
                used.nbytes,
                read_nbytes(f"{device.folder}/mem_info_gtt_total").nbytes,
                read_nbytes(f"{device.folder}/mem_info_gtt_used").nbytes,
                worst.status,
                worst.message,
            )
        total = _intel_total(device, facts)
        return Card(device.address, facts, total.nbytes, status=total.status, message=total.message)

    def _facts(self, device: Device) -> GpuFacts:
        from vram.host.local.pci_names import product

        nodes = (_NODE.fullmatch(name) for name in _listing(f"{device.folder}/drm") or ())
        version = read_word(f"{self._root}/module/{device.driver}/version")
        return GpuFacts(
            uuid=f"PCI-{device.address}",
            name=product(device.folder, VENDORS[device.driver], self._ids),
            vendor=VENDORS[device.driver],
            driver=device.driver,
            driver_version=version[:64].decode("utf-8", "backslashreplace") if version else None,
            integrated=_is_integrated(device),
            nodes=tuple(sorted(int(node[1]) for node in nodes if node)),
            bus_id=device.address,
            utilization=_percent(read_word(f"{device.folder}/gpu_busy_percent")),
        )


def _listing(folder: str) -> list[str] | None:
    try:
        return os.listdir(folder)
    except OSError:
        return None


def _place(address: str) -> tuple[int, ...]:
    """PCI addresses in the order of the buses: a domain may be written with more digits."""
    found = _ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in found.groups()) if found else ()


def _is_integrated(device: Device) -> bool:
    return device.driver in ("i915", "xe") and device.address.startswith(_INTEL_INTEGRATED)


def _percent(word: bytes | None) -> int | None:
    return int(word) if word and word.isdigit() and len(word) <= 3 and int(word) <= 100 else None


def _intel_total(device: Device, facts: GpuFacts) -> Reading:
    """Zero for a GPU without memory of its own. Only xe tells the size of a card, tile by tile.

    The size of the PCI window would be no answer: it is 256 MiB where it cannot be made larger,
    and a power of two beyond the card's memory where it can.
    """
    if facts.integrated:
        return Reading(0)
    tiles = [name for name in _listing(device.folder) or () if _TILE.fullmatch(name)]
    parts = [read_nbytes(f"{device.folder}/{tile}/physical_vram_size_bytes") for tile in sorted(tiles)]
    unknown = next((part for part in parts if part.nbytes is None), None)
    if unknown is not None:
        return unknown
    if not parts:
        return Reading(None, "unsupported", f"{device.driver} does not tell how much memory the card has")
    return Reading(sum(part.nbytes or 0 for part in parts))
