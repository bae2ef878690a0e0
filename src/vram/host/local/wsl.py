"""Is this Linux under Windows, which one, and how much of it do we see?"""

from __future__ import annotations

import os

from vram.model.windows import WslFacts
from vram.payloads.libcuda import WSL_FOLDER

_INTEROP = ("WSLInterop", "WSLInterop-late")  # the second is what systemd's binfmt leaves in place
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")


def wsl_facts(release: str, proc_root: str = "/proc", root: str = "/") -> WslFacts | None:
    """What this is, or None where it is not under Windows.

    *release* is the kernel's; a kernel that was built by its user may leave Microsoft out of
    it, and then /dev/dxg or /proc/version tells.
    """
    device = os.path.exists(os.path.join(root, "dev/dxg"))
    words = f"{release} {_read(f'{proc_root}/version')}".lower()
    if not device and "microsoft" not in words:
        return None
    libraries = os.path.join(root, WSL_FOLDER.lstrip("/"))
    return WslFacts(
        version=1 if _is_first(release, device) else 2,
        gpu_device=device,
        libraries=WSL_FOLDER if os.path.isdir(libraries) else None,
        interop=_has_interop(proc_root),
        container=any(os.path.exists(os.path.join(root, mark)) for mark in _CONTAINER_MARKS),
    )


def virtual_wsl_facts(folder: str) -> WslFacts | None:
    """The same for a virtual GPU, which is one under Windows where its folder says so."""
    if not os.path.exists(os.path.join(folder, "dev", "dxg")):
        return None
    return WslFacts(version=2, gpu_device=True, libraries=os.path.join(folder, "lib"), interop=True)


def _is_first(release: str, device: bool) -> bool:
    """Version 1 is no kernel at all; it answers as 4.4.0-…-Microsoft, and never had a GPU."""
    return not device and release.startswith("4.4.") and "wsl2" not in release.lower()


def _has_interop(proc_root: str) -> bool:
    folder = f"{proc_root}/sys/fs/binfmt_misc"
    return any(_read(f"{folder}/{name}").startswith("enabled") for name in _INTEROP)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
