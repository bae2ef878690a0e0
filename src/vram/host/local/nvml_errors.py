"""NVML's errors, translated once: which status they mean, and what they say in plain words."""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vram.host.local.nvml_versions import library_version, module_version

if TYPE_CHECKING:
    from vram.model.observation import Status

_STATUS: dict[int, Status] = {
    3: "unsupported",  # not supported
    4: "denied",  # no permission
    9: "unsupported",  # driver not loaded
    10: "timeout",
    12: "unsupported",  # library not found
    13: "unsupported",  # function not found
    15: "lost",
    16: "lost",  # reset required
}
_WORDS = {
    9: "the NVIDIA driver is not loaded",
    12: "the NVIDIA management library (libnvidia-ml.so.1) is not installed",
    15: "the GPU is lost: it has fallen off the bus or cannot be reached",
    16: "the GPU needs a reset before it can be used again",
}
_UNINITIALIZED, _NOT_LOADED = 1, 9
_MISMATCH = 18
_CONTROL_NODE = "/dev/nvidiactl"


class GpuGone(Exception):
    """The GPU answers no more; the library's own error is the cause."""


def is_loss(error: BaseException) -> bool:
    return isinstance(error, GpuGone) or getattr(error, "value", None) in (15, 16)


def message_of(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return "the Python package nvidia-ml-py is not installed"
    code = getattr(error, "value", None)
    if code == _MISMATCH:
        return _mismatch()
    if code == _NOT_LOADED and (version := module_version()):
        return f"{_unreached(version)} (NVML error {code})"
    said = _WORDS.get(code) if isinstance(code, int) else None
    return f"{said or error} (NVML error {code})" if code is not None else str(error)


def statement_of(error: BaseException, nvml: ModuleType) -> dict[str, Any]:
    """The fields of an observation that tells of *error*."""
    code = getattr(error, "value", None)
    if isinstance(error, getattr(nvml, "NVMLLibraryMismatchError", ())):
        return {"status": "unsupported", "message": f"nvidia-ml-py is newer than the driver: {error}"}
    return {"status": _STATUS.get(code, "failed") if code else "failed", "message": message_of(error)}


def left_statement(error: BaseException) -> dict[str, Any] | None:
    """The same for a driver that answered before and is gone now; None where *error* means something else."""
    code = getattr(error, "value", None)
    if code not in (_UNINITIALIZED, _NOT_LOADED):
        return None
    message = f"the driver left while it was read: it was unloaded or replaced (NVML error {code})"
    return {"status": "failed", "message": message}


def _mismatch() -> str:
    sides = f"kernel module {module_version() or 'unknown'}, library {library_version() or 'unknown'}"
    return f"the driver's kernel module and its libraries have different versions: {sides} (NVML error 18)"


def _unreached(version: str) -> str:
    """Why the library calls a driver "not loaded" whose module the kernel shows: it finds no way there."""
    lack = "does not answer" if os.path.exists(_CONTROL_NODE) else f"{_CONTROL_NODE} is not there"
    return f"the driver's kernel module {version} is loaded, and {lack}"
