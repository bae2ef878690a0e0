"""CUPTI, which tools for tracing load into programs: where it lies, and who has it already."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from glob import glob

from vram.model.surroundings import Tracing
from vram.payloads.procfs import ProcessFolder

_LIBRARY = "libcupti.so*"
_MAPPED = re.compile(rb"\S*/libcupti\.so[\w.]*")
_INJECTION = b"CUDA_INJECTION64_PATH="
_MOST_MAPS_NBYTES = 64 << 20


def cupti_places(root: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Every libcupti that a program started here could load, by the end of its links."""
    toolkit = environment.get("CUDA_HOME") or f"{root}/usr/local/cuda"
    searched = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    wheels = [f"{path}/nvidia/*/lib" for path in sys.path if path.endswith("-packages")]
    system = [f"{root}/usr/lib/*-linux-gnu", f"{root}/usr/lib64", f"{root}/usr/lib/wsl/lib"]
    folders = [*searched, f"{toolkit}/extras/CUPTI/lib64", f"{toolkit}/lib64", *wheels, *system]
    found = (os.path.realpath(path) for folder in folders for path in glob(f"{folder}/{_LIBRARY}"))
    return tuple(dict.fromkeys(found))


def tracing(proc_root: str, pids: Iterable[int]) -> tuple[Tracing, ...]:
    """Those of *pids* into which a tracer has been loaded; one that may not be read is left out."""
    return tuple(each for pid in pids if (each := _look(proc_root, pid)) is not None)


def _look(proc_root: str, pid: int) -> Tracing | None:
    try:
        with ProcessFolder(proc_root, pid) as folder:
            stat = folder.stat()
            # One that is stuck in the driver may hold its memory lock for good: reading would hang too.
            if stat is None or stat.state == "D":
                return None
            mapped = _MAPPED.search(folder.read("maps", _MOST_MAPS_NBYTES) or b"")
            words = (folder.read("environ") or b"").split(b"\0")
    except OSError:
        return None
    injection = next((word.removeprefix(_INJECTION) for word in words if word.startswith(_INJECTION)), b"")
    if not mapped and not injection:
        return None
    return Tracing(pid, os.fsdecode(mapped[0]) if mapped else None, os.fsdecode(injection) or None)
