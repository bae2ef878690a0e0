"""Versions on both sides of the driver: the kernel's, and the library's that we loaded."""

from __future__ import annotations

import os
import re
from typing import Any, Protocol

# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (…)"
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_LIBRARY = re.compile(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")


class Asks(Protocol):
    """Whoever can call NVML and take "not supported" for an answer."""

    def ask(self, name: str, *arguments: Any) -> Any: ...


def driver_facts(nvml: Asks | None) -> dict[str, Any]:
    """What both sides say; with no library to ask, what the files around it say."""
    ask = nvml.ask if nvml else lambda name: None
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2") or ask("nvmlSystemGetCudaDriverVersion")
    return {
        "type": "driver",
        "driver_version": _text(ask("nvmlSystemGetDriverVersion")),
        "library_version": _without_cuda(_text(ask("nvmlSystemGetNVMLVersion"))) or library_version(),
        "module_version": module_version(),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "virtual": _virtual(),
    }


def module_version() -> str | None:
    """The loaded kernel module's version; the virtual GPU has none, whatever this machine has."""
    if _virtual():
        return None
    found = _MODULE.search(_read("/proc/driver/nvidia/version"))
    return found[1] if found else _read("/sys/module/nvidia/version").strip() or None


def library_version() -> str | None:
    """The version in the file name of the library that this process has loaded."""
    found = _LIBRARY.search(_read("/proc/self/maps"))
    return found[1] if found else None


def _without_cuda(version: str | None) -> str | None:
    """NVML calls itself "13.580.159.04": the CUDA generation, then the driver."""
    if version is None:
        return None
    head, _, rest = version.partition(".")
    return rest if rest.count(".") >= 1 and len(head) <= 2 else version


def _virtual() -> bool:
    return bool(os.environ.get("VRAM_VIRTUAL_GPU"))


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
