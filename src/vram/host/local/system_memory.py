"""The machine's memory, for GPUs that have none of their own: what the kernel says of it, or of a node.

Read in the process that reads NVML, right beside its process lists: the two have to balance. Standard library
only.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

# "MemTotal:  127600748 kB"; of a node "Node 1 MemTotal:  127600748 kB". Counts of pages have no unit.
_LINE = re.compile(r"^(?:Node \d+ )?(\w+(?:\(\w+\))?):\s+(\d+) kB$", re.MULTILINE)
_MAX_NBYTES = 64 << 10


def system_memory(proc: str = "/proc") -> dict[str, Any] | None:
    """The fields of a MemoryFacts for all of the machine's memory; None where the kernel does not say."""
    lines = _lines("meminfo", f"{proc}/meminfo")
    total, available = lines.get("MemTotal"), lines.get("MemAvailable")
    if not total or available is None:
        return None
    free = min(available, total)
    return _facts(total, free, _use(lines, None))


def node_memory(node: int, sysfs: str = "/sys") -> dict[str, Any] | None:
    """The same for one node, whose lines have no figure of what is available: free, and cached files.

    None also where the node has processors: then it is not the GPU's own.
    """
    folder = f"{sysfs}/devices/system/node/node{node}"
    lines = _lines(f"node{node}/meminfo", f"{folder}/meminfo")
    total, unused = lines.get("MemTotal"), lines.get("MemFree")
    if not total or unused is None or _has_processors(folder):
        return None
    free = min(total, unused + max(0, lines.get("FilePages", 0) - lines.get("Shmem", 0)))
    return _facts(total, free, _use(lines, node))


def node_use(node: int, sysfs: str = "/sys") -> dict[str, Any] | None:
    """What programs on the processor and cached files take of a node; None where it is not a GPU's."""
    found = node_memory(node, sysfs)
    return found["system"] if found else None


def _facts(total: int, free: int, system: dict[str, Any]) -> dict[str, Any]:
    return {"total": total, "free": free, "used": total - free, "counted_by": "kernel", "system": system}


def _has_processors(folder: str) -> bool:
    return not os.environ.get("VRAM_VIRTUAL_GPU") and bool(_read(f"{folder}/cpulist").strip())


def _use(lines: dict[str, int], node: int | None) -> dict[str, Any]:
    kernel = ("Slab", "KernelStack", "PageTables", "Percpu")
    files = lines.get("FilePages", lines.get("Cached", 0) + lines.get("Buffers", 0))
    shared = lines.get("Shmem", 0)
    return {
        "node": node,
        "programs": lines.get("AnonPages", 0) + shared,
        "files": max(0, files - shared),
        "kernel": sum(lines.get(name, 0) for name in kernel),
    }


def _lines(name: str, path: str) -> dict[str, int]:
    folder = os.environ.get("VRAM_VIRTUAL_GPU")
    text = virtual_file(name) if folder else _read(path)
    return {key: int(number) << 10 for key, number in _LINE.findall(text)}


def virtual_file(name: str) -> str:
    """The file as the virtual GPU's machine has it: its library stands for the kernel."""
    try:
        function = ctypes.CDLL("libnvidia-ml.so.1").vram_virtual_file
    except (OSError, AttributeError):
        return ""
    text = ctypes.create_string_buffer(_MAX_NBYTES)
    length = function(name.encode(), text, len(text))
    return text.raw[:length].decode()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_NBYTES)
    except OSError:
        return ""
