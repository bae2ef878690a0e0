"""GPUs that the kernel's DRM drives, as sysfs shows them: what they are, and their memory."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import NamedTuple

from vram.host.local.sysfs import Reading, asleep, listing, read_nbytes, read_word
from vram.host.ports import Card, ComputeCharge
from vram.model.gpu import GpuFacts, Vendor

# Those that tell what memory their clients use. nouveau and radeon do not; NVIDIA's own has NVML.
VENDORS: dict[str, Vendor] = {"amdgpu": "amd", "i915": "intel", "xe": "intel"}

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_CARD = re.compile(r"card\d{1,4}")
_NODE = re.compile(r"(?:card|renderD)(\d{1,4})")
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

        own = {device.address: _own_memory(device) for device in self._devices()}
        return charges(self._root, own)

    def nvidia_gpus(self) -> int | None:
        names = listing(f"{self._root}/bus/pci/drivers/nvidia")
        return None if names is None else sum(1 for name in names if _ADDRESS.fullmatch(name))

    def _devices(self) -> list[Device]:
        folder = f"{self._root}/class/drm"
        found = {}
        for name in listing(folder) or ():
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
            return _amd_card(device, facts)
        if facts.integrated:
            return Card(device.address, facts, 0)
        from vram.host.local.intel import memory

        total, in_use = memory(self._root, device.address, device.driver, device.folder)
        return Card(device.address, facts, total.nbytes, in_use, status=total.status, message=total.message)

    def _facts(self, device: Device) -> GpuFacts:
        from vram.host.local.pci_names import product

        nodes = (_NODE.fullmatch(name) for name in listing(f"{device.folder}/drm") or ())
        version = read_word(f"{self._root}/module/{device.driver}/version")
        # amdgpu would wake a sleeping GPU to answer.
        busy = None if asleep(device.folder) else read_word(f"{device.folder}/gpu_busy_percent")
        return GpuFacts(
            uuid=f"PCI-{device.address}",
            name=product(device.folder, VENDORS[device.driver], self._ids),
            vendor=VENDORS[device.driver],
            driver=device.driver,
            driver_version=version[:64].decode("utf-8", "backslashreplace") if version else None,
            integrated=_is_integrated(device),
            nodes=tuple(sorted(int(node[1]) for node in nodes if node)),
            bus_id=device.address,
            utilization=_percent(busy),
        )


def _place(address: str) -> tuple[int, ...]:
    """PCI addresses in the order of the buses: a domain may be written with more digits."""
    found = _ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in found.groups()) if found else ()


def _amd_card(device: Device, facts: GpuFacts) -> Card:
    total, used, gtt_total, gtt_used = (
        read_nbytes(f"{device.folder}/mem_info_{name}")
        for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
    )
    # amdgpu hides the files of a memory that the GPU does not have, and has GTT on every GPU.
    if (total.status, used.status, gtt_total.status) == ("unsupported", "unsupported", "ok"):
        total = used = Reading(0)
    worst = total if total.nbytes is None else used
    return Card(
        device.address,
        facts,
        total.nbytes,
        used.nbytes,
        gtt_total.nbytes,
        gtt_used.nbytes,
        worst.status,
        worst.message,
    )


def _own_memory(device: Device) -> int | None:
    """The size of the GPU's own memory; amdgpu hides the file where there is none."""
    size = read_nbytes(f"{device.folder}/mem_info_vram_total")
    return 0 if size.status == "unsupported" else size.nbytes


def _is_integrated(device: Device) -> bool:
    return device.driver in ("i915", "xe") and device.address.startswith(_INTEL_INTEGRATED)


def _percent(word: bytes | None) -> int | None:
    return int(word) if word and word.isdigit() and len(word) <= 3 and int(word) <= 100 else None
