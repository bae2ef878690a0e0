"""GPUs of AMD and Intel, as sysfs shows them: what they are, what they are called, and their memory."""

from __future__ import annotations

import errno
import os
import re
from functools import cached_property
from typing import NamedTuple

from vram.host.ports import Card, ComputeCharge
from vram.model.gpu import GpuFacts, Vendor
from vram.model.observation import Status

# Those that tell what memory their clients use. nouveau and radeon do not; NVIDIA's own has NVML.
VENDORS: dict[str, Vendor] = {"amdgpu": "amd", "i915": "intel", "xe": "intel"}

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_CARD = re.compile(r"card\d{1,4}")
_NODE = re.compile(r"(?:card|renderD)(\d{1,4})")
# Intel puts the GPU of its processors there, and no card can be.
_INTEL_INTEGRATED = "0000:00:02."
_TILE = re.compile(r"tile\d{1,2}")
_REGION = re.compile(rb"^drm/([0-9a-f:.]{12,20})/vram\d{0,2} (\d{1,18})$", re.MULTILINE)
_WORDS = {"amd": "AMD", "intel": "Intel", "nvidia": "NVIDIA"}
_AMDGPU_IDS = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
_PCI_IDS = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids", "usr/share/pci.ids")
_MAX_NBYTES = 8 << 20
_IN_BRACKETS = re.compile(r".*\[([^\]]+)\]")
_MAX_LENGTH = 64 * 1024
_MAX_BYTES = 1 << 62
_NUMBER = re.compile(rb"\d{1,20}|0x[0-9a-fA-F]{1,16}")
_STATUS: dict[int | None, Status] = {
    errno.ENOENT: "unsupported",
    errno.ENOTDIR: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENODEV: "lost",
    errno.ENXIO: "lost",
    errno.EIO: "lost",
}


class _Device(NamedTuple):
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
        from vram.host.local.drm_usage import rocm_charges

        own = {device.address: _own_memory(device) for device in self._devices()}
        return rocm_charges(self._root, own)

    def nvidia_gpus(self) -> int:
        names = listing(f"{self._root}/bus/pci/drivers/nvidia")
        return sum(1 for name in names if _ADDRESS.fullmatch(name))

    def _devices(self) -> list[_Device]:
        folder = f"{self._root}/class/drm"
        found = {}
        for name in listing(folder):
            if _CARD.fullmatch(name):
                device = os.path.realpath(f"{folder}/{name}/device")
                driver = os.path.basename(os.path.realpath(f"{device}/driver"))
                address = os.path.basename(device)
                if driver in VENDORS and _ADDRESS.fullmatch(address):
                    found[address] = _Device(address, driver, device)
        return [found[address] for address in sorted(found, key=_place)]

    def _card(self, device: _Device) -> Card:
        facts = self._facts(device)
        if device.driver == "amdgpu":
            return _amd_card(device, facts)
        if facts.integrated:
            return Card(device.address, facts, 0)
        cgroup = f"{self._root}/fs/cgroup"
        in_use: int | None = None
        if capacity := _regions(f"{cgroup}/dmem.capacity", device.address):
            total, in_use = SysfsSize(capacity), _regions(f"{cgroup}/dmem.current", device.address)
        else:
            total = _tiles(device.driver, device.folder)
        return Card(device.address, facts, total.nbytes, in_use, None, None, *total[1:])

    def _facts(self, device: _Device) -> GpuFacts:
        nodes = (_NODE.fullmatch(name) for name in listing(f"{device.folder}/drm"))
        version = read_word(f"{self._root}/module/{device.driver}/version")
        # amdgpu would wake a sleeping GPU to answer.
        busy = None if asleep(device.folder) else read_word(f"{device.folder}/gpu_busy_percent")
        return GpuFacts(
            uuid=f"PCI-{device.address}",
            name=_product(device.folder, VENDORS[device.driver], self._ids),
            vendor=VENDORS[device.driver],
            driver=device.driver,
            driver_version=version[:64].decode("utf-8", "backslashreplace") if version else None,
            integrated=device.driver in ("i915", "xe") and device.address.startswith(_INTEL_INTEGRATED),
            nodes=tuple(sorted(int(node[1]) for node in nodes if node)),
            bus_id=device.address,
            utilization=_percent(busy),
        )


def _place(address: str) -> tuple[int, ...]:
    """PCI addresses in the order of the buses: a domain may be written with more digits."""
    found = _ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in found.groups()) if found else ()


def _amd_card(device: _Device, facts: GpuFacts) -> Card:
    total, used, gtt_total, gtt_used = (
        read_nbytes(f"{device.folder}/mem_info_{name}")
        for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
    )
    # amdgpu hides the files of a memory that the GPU does not have, and has GTT on every GPU.
    if (total.status, used.status, gtt_total.status) == ("unsupported", "unsupported", "ok"):
        total = used = SysfsSize(0)
    worst = total if total.nbytes is None else used
    sizes = (total.nbytes, used.nbytes, gtt_total.nbytes, gtt_used.nbytes)
    return Card(device.address, facts, *sizes, *worst[1:])


def _own_memory(device: _Device) -> int | None:
    """The size of the GPU's own memory; amdgpu hides the file where there is none."""
    size = read_nbytes(f"{device.folder}/mem_info_vram_total")
    return 0 if size.status == "unsupported" else size.nbytes


def _percent(word: bytes | None) -> int | None:
    return int(word) if word and word.isdigit() and len(word) <= 3 and int(word) <= 100 else None


# ---- the memory of Intel's cards, as far as the kernel tells ----
#
# xe's regions are in the root of the cgroups (dmem, Documentation/admin-guide/cgroup-v2.rst). Some
# builds of xe tell the size of each tile in sysfs too; i915 tells neither. The size of the PCI window
# would be no answer: it is 256 MiB where it cannot be made larger, and a power of two beyond the
# card's memory where it can.


def _regions(path: str, address: str) -> int | None:
    found = _REGION.findall(read_word(path) or b"")
    ours = [int(nbytes) for place, nbytes in found if place.decode() == address]
    return sum(ours) if ours else None


def _tiles(driver: str, folder: str) -> SysfsSize:
    tiles = sorted(name for name in listing(folder) if _TILE.fullmatch(name))
    files = [f"{folder}/{tile}/physical_vram_size_bytes" for tile in tiles]
    if not files or not all(map(os.path.exists, files)):
        message = f"{driver} does not report how much memory the card has"
        return SysfsSize(None, "unsupported", message, "no-card-size")
    if asleep(folder):
        message = "the card is suspended, and reading its size would wake it"
        return SysfsSize(None, "unsupported", message, "card-asleep")
    parts = [read_nbytes(file) for file in files]
    failed = next((part for part in parts if part.nbytes is None), None)
    return failed or SysfsSize(sum(part.nbytes or 0 for part in parts))


# ---- what a PCI device is called: by its maker, or in the lists that distributions ship ----


def _product(device: str, vendor: str, root: str | None = None) -> str:
    """The name of the device whose folder in sysfs is *device*; lists are searched below *root*."""
    name = read_word(f"{device}/product_name")
    if name and name.isascii() and name.decode().isprintable():
        return _with_maker(name[:100].decode(), vendor)
    ids = [(read_word(f"{device}/{file}") or b"")[-4:].lower() for file in ("vendor", "device")]
    if not all(re.fullmatch(rb"[0-9a-f]{4}", each) for each in ids):
        return f"unknown {_WORDS[vendor]} GPU"
    revision = (read_word(f"{device}/revision") or b"")[-2:].upper()
    found = _find_in_amdgpu_ids(ids[1], revision, root) if vendor == "amd" else None
    found = found or _find_in_pci_ids(ids[0], ids[1], root)
    number = b":".join(ids).decode()
    return _with_maker(found, vendor) if found else f"{_WORDS[vendor]} GPU {number}"


def _with_maker(name: str, vendor: str) -> str:
    word = _WORDS[vendor]
    return name if word.lower() in name.lower() else f"{word} {name}"


def _find_in_amdgpu_ids(device: bytes, revision: bytes, root: str | None) -> str | None:
    """AMD's own list tells models apart that share a device number."""
    raw = _read(_AMDGPU_IDS, root)
    pattern = rb"^" + device.upper() + rb",\s*" + re.escape(revision) + rb",\s*(.{1,100})$"
    found = re.search(pattern, raw, re.MULTILINE)
    return _text(found[1]) if found else None


def _find_in_pci_ids(vendor: bytes, device: bytes, root: str | None) -> str | None:
    raw = _read(_PCI_IDS, root)
    begin = raw.find(b"\n" + vendor + b"  ")
    end = re.compile(rb"\n[0-9a-f]{4}  ").search(raw, begin + 1) if begin >= 0 else None
    block = raw[begin : end.start() if end else len(raw)] if begin >= 0 else b""
    found = re.search(rb"\n\t" + device + rb"  (.{1,200})", block)
    if not found:
        return None
    name = _text(found[1])
    short = _IN_BRACKETS.fullmatch(name)
    return short[1] if short else name


def _read(places: tuple[str, ...], root: str | None) -> bytes:
    for place in places:
        try:
            with open(os.path.join(root or "/", place), "rb") as file:
                return b"\n" + file.read(_MAX_NBYTES)
        except OSError:
            continue
    return b""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").strip()


# ---- one value or folder of sysfs: read whole, or the reason why not ----


class SysfsSize(NamedTuple):
    """``nbytes`` None: unknown, and ``status`` with ``message`` says why."""

    nbytes: int | None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None


def read_bytes(path: str) -> bytes:
    """The file's contents; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MAX_LENGTH)
    finally:
        os.close(descriptor)


def read_word(path: str) -> bytes | None:
    """The contents without what surrounds them; None where there are none."""
    try:
        return read_bytes(path).strip(b" \t\r\n\0") or None
    except OSError:
        return None


def listing(folder: str) -> list[str]:
    """The names in *folder*; none where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def asleep(folder: str) -> bool:
    """The device in *folder* is suspended: some of its files would wake it."""
    return read_word(f"{folder}/power/runtime_status") == b"suspended"


def read_nbytes(path: str) -> SysfsSize:
    """A size in bytes; what cannot be one is a failure, with its name."""
    name = os.path.basename(path)
    try:
        raw = read_bytes(path).strip()
    except OSError as error:
        status = _STATUS.get(error.errno, "failed")
        return SysfsSize(None, status, f"{name} cannot be read: {error.strerror}", "sysfs-unreadable")
    is_octal = len(raw) > 1 and raw[:1] == b"0" and raw[1:2] != b"x"
    nbytes = int(raw, 0) if _NUMBER.fullmatch(raw) and not is_octal else None
    if nbytes is None or nbytes >= _MAX_BYTES:
        return SysfsSize(None, "failed", f"{name} is not a size", "sysfs-damaged")
    return SysfsSize(nbytes)
