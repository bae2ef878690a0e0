"""The driver as files show it: modules, devices on the bus, nodes in /dev, the vendor's tool."""

from __future__ import annotations

import grp
import os
import re
import stat

from vram.host.local.identity import user_name
from vram.host.local.vendor import FOLDERS
from vram.model.surroundings import DeviceNode, DriverFiles

_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nouveau")
_NODES = re.compile(r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset)|dxg")
_NVIDIA = "0x10de"
_DISPLAYS = "0x03"  # PCI class: VGA, 3D and other display controllers


def driver_files(root: str) -> DriverFiles:
    said = read(f"{root}/proc/driver/nvidia/version")
    version = _MODULE.search(said)
    places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
    return DriverFiles(
        nvidia_devices=_nvidia_devices(f"{root}/sys/bus/pci/devices"),
        module_version=version[1] if version else None,
        installed_version=read(f"{root}/sys/module/nvidia/version").strip() or None,
        open_module="Open Kernel Module" in said if version else None,
        modules=tuple(name for name in _MODULES if os.path.isdir(f"{root}/sys/module/{name}")),
        tool=next((place for place in places if os.access(root + place, os.X_OK)), None),
    )


def device_nodes(root: str) -> tuple[DeviceNode, ...]:
    try:
        names = sorted(name for name in os.listdir(f"{root}/dev") if _NODES.fullmatch(name))
    except OSError:
        return ()
    found = (_node(root, f"/dev/{name}") for name in names)
    return tuple(node for node in found if node is not None)


def _node(root: str, path: str) -> DeviceNode | None:
    try:
        about = os.stat(root + path)
    except OSError:
        return None
    usable = os.access(root + path, os.R_OK | os.W_OK, effective_ids=True)
    return DeviceNode(
        path, stat.S_IMODE(about.st_mode), user_name(about.st_uid), _group_name(about.st_gid), usable
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OSError):
        return str(gid)


def _nvidia_devices(folder: str) -> int:
    try:
        devices = os.listdir(folder)
    except OSError:
        return 0
    return sum(
        read(f"{folder}/{device}/vendor").strip() == _NVIDIA
        and read(f"{folder}/{device}/class").startswith(_DISPLAYS)
        for device in devices
    )


def read(path: str, limit: int = 1 << 20) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""
