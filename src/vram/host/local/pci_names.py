"""What a PCI device is called: by its maker, or in the lists that distributions ship."""

from __future__ import annotations

import os
import re

from vram.host.local.sysfs import read_word

_WORDS = {"amd": "AMD", "intel": "Intel", "nvidia": "NVIDIA"}
_AMDGPU_IDS = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
_PCI_IDS = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids", "usr/share/pci.ids")
_MOST_NBYTES = 8 << 20
_IN_BRACKETS = re.compile(r".*\[([^\]]+)\]")


def product(device: str, vendor: str, root: str | None = None) -> str:
    """The name of the device whose folder in sysfs is *device*; lists are searched below *root*."""
    told = read_word(f"{device}/product_name")
    if told and told.isascii() and told.decode().isprintable():
        return _with_maker(told[:100].decode(), vendor)
    ids = [(read_word(f"{device}/{name}") or b"")[-4:].lower() for name in ("vendor", "device")]
    if not all(re.fullmatch(rb"[0-9a-f]{4}", each) for each in ids):
        return f"unknown {_WORDS[vendor]} GPU"
    revision = (read_word(f"{device}/revision") or b"")[-2:].upper()
    found = _marketing(ids[1], revision, root) if vendor == "amd" else None
    found = found or _listed(ids[0], ids[1], root)
    number = b":".join(ids).decode()
    return _with_maker(found, vendor) if found else f"{_WORDS[vendor]} GPU {number}"


def _with_maker(name: str, vendor: str) -> str:
    word = _WORDS[vendor]
    return name if word.lower() in name.lower() else f"{word} {name}"


def _marketing(device: bytes, revision: bytes, root: str | None) -> str | None:
    """AMD's own list tells models apart that share a device number."""
    raw = _read(_AMDGPU_IDS, root)
    pattern = rb"^" + device.upper() + rb",\s*" + re.escape(revision) + rb",\s*(.{1,100})$"
    found = re.search(pattern, raw, re.MULTILINE)
    return _text(found[1]) if found else None


def _listed(vendor: bytes, device: bytes, root: str | None) -> str | None:
    raw = _read(_PCI_IDS, root)
    begin = raw.find(b"\n" + vendor + b"  ")
    end = re.compile(rb"\n[0-9a-f]{4}  ").search(raw, begin + 1) if begin >= 0 else None
    block = raw[begin : end.start() if end else len(raw)] if begin >= 0 else b""
    found = re.search(rb"\n\t" + device + rb"  (.{1,200})", block)
    if not found:
        return None
    name = _text(found[1])
    told = _IN_BRACKETS.fullmatch(name)
    return told[1] if told else name


def _read(places: tuple[str, ...], root: str | None) -> bytes:
    for place in places:
        try:
            with open(os.path.join(root or "/", place), "rb") as file:
                return b"\n" + file.read(_MOST_NBYTES)
        except OSError:
            continue
    return b""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").strip()
