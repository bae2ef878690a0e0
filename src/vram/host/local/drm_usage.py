"""What processes use of GPUs of AMD and Intel: the fdinfo of their open files, and ROCm's list.

Keys and units of the fdinfo are the kernel's (Documentation/gpu/drm-usage-stats.rst); amdgpu had keys
of its own before there was a common format. Whatever else the text holds, it is read without harm: a
figure that cannot be one is unknown, and said to be so.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from vram.host.local.drm import SysfsSize, listing, read_nbytes, read_word
from vram.host.ports import ComputeCharge, DrmClient
from vram.model.files import ClientFacts, Region
from vram.model.observation import Status
from vram.payloads.procfs import text

MAX_NBYTES = 64 * 1024  # fifty times what a kernel writes

_MAX_BYTES = 1 << 62
_UNITS = {b"": 1, b"kB": 1 << 10, b"KiB": 1 << 10, b"MiB": 1 << 20, b"GiB": 1 << 30}
_FIGURE = re.compile(rb"(\d{1,20})(?:[ \t]+([A-Za-z]{1,8}))?")
_NUMBER = re.compile(rb"\d{1,19}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# One line that matters. drm-total-cycles-<engine> is xe's clock, not a kind of memory.
_LINE = re.compile(
    rb"^(drm-(?:driver|pdev|client-id|(resident|memory|total|shared)-(?!cycles-)([A-Za-z0-9_-]{1,32}))"
    rb"|pdev|pasid|(?:vram|gtt|cpu) mem)[ \t]*:([^\n]*)",
    re.MULTILINE,
)
_FORMERLY = {b"pdev": b"drm-pdev", b"pasid": b"drm-client-id"}
_MEMORY_FORMERLY = {b"vram mem": b"vram", b"gtt mem": b"gtt", b"cpu mem": b"cpu"}
# What lies there now, then what older kernels call it, then what was asked for.
_BEST_FIRST = (b"resident", b"memory", b"total")
# Registers and small memories inside amdgpu's chips, which hold no process's data.
_NO_MEMORY = frozenset((b"gds", b"gws", b"oa", b"doorbell", b"mmioremap"))
_PROPERTY = re.compile(rb"^(location_id|domain) (\d{1,10})$", re.MULTILINE)
_BANK = re.compile(rb"^size_in_bytes (\d{1,19})$", re.MULTILINE)
_USED = re.compile(r"vram_(\d{1,10})")


def read_client(fd: int, node: int | None, raw: bytes, description: int | None = None) -> DrmClient:
    """What *raw* says of descriptor *fd*; what is wrong with it is part of the answer."""
    cut = len(raw) >= MAX_NBYTES
    # The last line of a text that was cut off may be half a figure.
    fields, figures, wrong = _fields(raw[: raw.rfind(b"\n") + 1] if cut else raw)
    if cut:
        wrong.append("it is longer than any driver writes")
    address = text(fields.get(b"drm-pdev", b"")).lower()
    if address and not _ADDRESS.fullmatch(address):
        address = ""
        wrong.append("drm-pdev is not a PCI address")
    client = _NUMBER.fullmatch(fields.get(b"drm-client-id", b""))
    regions = _regions(figures, wrong)
    driver = text(fields.get(b"drm-driver", b""))[:64] or ("amdgpu" if b"vram mem" in fields else None)
    facts = ClientFacts(
        fd=fd,
        driver=driver,
        address=address or None,
        node=node,
        client=int(client[0]) if client else None,
        description=description,
        regions=regions,
    )
    if wrong:
        message = f"the fdinfo of descriptor {fd}: {'; '.join(wrong[:4])}"
        return DrmClient(facts, "failed", message, "fdinfo-damaged")
    if not regions:
        message = "the driver reports no memory figures for its open files"
        return DrmClient(facts, "unsupported", message, "no-client-figures")
    return DrmClient(facts)


def unread_client(fd: int, node: int | None, error: int) -> DrmClient:
    """A client whose fdinfo could not be read."""
    status: Status = "denied" if error in (errno.EACCES, errno.EPERM) else "failed"
    message = f"the fdinfo of descriptor {fd} cannot be read: {os.strerror(error)}"
    return DrmClient(ClientFacts(fd=fd, node=node), status, message, "fdinfo-unreadable")


_Figures = dict[bytes, dict[bytes, bytes]]


def _fields(raw: bytes) -> tuple[dict[bytes, bytes], _Figures, list[str]]:
    """What is written of the client, what of each kind of memory, and what contradicts itself."""
    fields: dict[bytes, bytes] = {}
    figures: _Figures = {}
    wrong: list[str] = []
    for key, word, region, rest in _LINE.findall(raw):
        value = rest.strip()
        place, name = (figures.setdefault(region, {}), word) if word else (fields, key)
        if place.setdefault(name, value) != value:
            wrong.append(f"{text(key)} appears twice, with different values")
    # amdgpu goes on writing its old pasid beside the number that took its place.
    if b"drm-driver" not in fields:
        for old, new in _FORMERLY.items():
            if old in fields:
                fields.setdefault(new, fields[old])
        for old, region in _MEMORY_FORMERLY.items():
            if old in fields:
                figures.setdefault(region, {}).setdefault(b"memory", fields[old])
    return fields, figures, wrong


def _regions(figures: _Figures, wrong: list[str]) -> tuple[Region, ...]:
    found = []
    for name, values in figures.items():
        if name in _NO_MEMORY:
            continue
        sizes = {word: _nbytes(value) for word, value in values.items()}
        wrong += [f"drm-{text(word)}-{text(name)} is not a size" for word in sizes if sizes[word] is None]
        if not values.keys().isdisjoint(_BEST_FIRST):
            found.append(_region(name, sizes, figures))
    return tuple(found)


def _region(name: bytes, figures: dict[bytes, int | None], regions: Collection[bytes]) -> Region:
    known = (figures[word] for word in _BEST_FIRST if figures.get(word) is not None)
    nbytes = next(known, None)
    shared = figures.get(b"shared")
    if shared is not None and nbytes is not None:
        shared = min(shared, nbytes)
    return Region(text(name), _is_dedicated(name, regions), nbytes, shared)


def _is_dedicated(name: bytes, regions: Collection[bytes]) -> bool:
    """amdgpu and xe say vram, i915 local; what xe calls stolen lies on the card, if it has memory."""
    if name == b"stolen":
        return any(other.startswith(b"vram") for other in regions)
    return name.startswith((b"vram", b"local", b"stolen-local"))


def _nbytes(value: bytes) -> int | None:
    found = _FIGURE.fullmatch(value)
    unit = _UNITS.get(found[2] or b"") if found else None
    if found is None or unit is None:
        return None
    nbytes = int(found[1]) * unit
    return nbytes if nbytes < _MAX_BYTES else None


# ---- ROCm's list of processes in sysfs, by GPU: what the kernel's compute driver charges them with ----
#
# The figures are called vram on every GPU. Where a processor's GPU has less memory of its own than it
# may use of the machine's, kernels since about 6.10 give ROCm the machine's (apu_prefer_gtt in amdgpu).
# The topology then tells a memory larger than the GPU's own.


class _RocmGpu(NamedTuple):
    """A GPU of ROCm's, and whether its memory there is the machine's."""

    address: str
    system: bool


def rocm_charges(root: str, own: Mapping[str, int | None]) -> list[ComputeCharge]:
    """Every process that ROCm lists, with its bytes on each GPU of *own*: addresses, and their memory.

    The list shows the pids of the host, whatever namespace it is read in.
    """
    folder = f"{root}/class/kfd/kfd"
    gpus = _rocm_gpus(f"{folder}/topology/nodes", own)
    found: dict[tuple[int, _RocmGpu], SysfsSize] = {}
    for pid in sorted(int(name) for name in listing(f"{folder}/proc") if name.isdigit() and len(name) < 11):
        for number, used in _rocm_figures(f"{folder}/proc/{pid}"):
            if number in gpus:
                key = (pid, gpus[number])
                found[key] = _sum(found.get(key, SysfsSize(0)), used)
    return [ComputeCharge(pid, gpu.address, *used, gpu.system) for (pid, gpu), used in found.items()]


def _rocm_figures(process: str) -> Iterator[tuple[int, SysfsSize]]:
    """A process's figures; where it has several contexts, each has a folder with its own."""
    for name in listing(process):
        used = _USED.fullmatch(name)
        if used:
            yield int(used[1]), read_nbytes(f"{process}/{name}")
        elif name.startswith("context_"):
            yield from _rocm_figures(f"{process}/{name}")


def _sum(one: SysfsSize, other: SysfsSize) -> SysfsSize:
    if other.status == "unsupported":  # gone between being listed and being read: it has ended
        return one
    if one.nbytes is None or other.nbytes is None:
        return one if one.nbytes is None else other
    return SysfsSize(one.nbytes + other.nbytes)


def _rocm_gpus(folder: str, own: Mapping[str, int | None]) -> dict[int, _RocmGpu]:
    """Which GPU each of the list's own numbers means."""
    found = {}
    for node in listing(folder):
        number = read_word(f"{folder}/{node}/gpu_id") or b""
        raw = read_word(f"{folder}/{node}/properties") or b""
        values = {key: int(value) for key, value in _PROPERTY.findall(raw)}
        if number.isdigit() and int(number) and b"location_id" in values:
            at = values[b"location_id"]
            place = f"{values.get(b'domain', 0):04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
            address = _whole(place, own)
            size = own.get(address)
            found[int(number)] = _RocmGpu(
                address, size is not None and _rocm_memory(f"{folder}/{node}") > size
            )
    return found


def _whole(address: str, own: Mapping[str, int | None]) -> str:
    """A partition of a GPU has its own number where the function of the device stands."""
    same = (each for each in own if each.rpartition(".")[0] == address.rpartition(".")[0])
    return address if address in own else next(same, address)


def _rocm_memory(node: str) -> int:
    """What ROCm may allocate on the GPU of *node*; 0 where it is unknown."""
    banks = (read_word(f"{node}/mem_banks/{bank}/properties") or b"" for bank in listing(f"{node}/mem_banks"))
    return sum(int(size) for bank in banks for size in _BANK.findall(bank))
