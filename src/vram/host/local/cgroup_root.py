"""Where control groups lie, and which one this process is in. Standard library only: for the NVML reader."""

from __future__ import annotations

import os

_REAL_ROOT = "/sys/fs/cgroup"


def root() -> str:
    """Where all groups lie; those of the virtual GPU's machine are beside it."""
    folder = os.environ.get("VRAM_VIRTUAL_GPU")
    return f"{folder}/cgroup" if folder else _REAL_ROOT


def own_cgroup() -> str | None:
    """The group that this process is in, as the unified hierarchy has it; None where there is none."""
    if os.environ.get("VRAM_VIRTUAL_GPU"):
        return os.environ.get("VRAM_VIRTUAL_CGROUP") or "/"
    if not os.path.exists(f"{_REAL_ROOT}/cgroup.controllers"):
        return None
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return next((line[3:].rstrip("\n") for line in file if line.startswith("0::/")), None)
    except OSError:
        return None
