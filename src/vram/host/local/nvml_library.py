"""nvidia-ml-py in the process that reads NVML: quick to load, with versions, and errors translated once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vram.model.observation import Status

# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (…)"
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_LIBRARY = re.compile(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
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
    15: "the GPU is lost: it fell off the bus or cannot be reached",
    16: "the GPU needs a reset before it can be used again",
}
_UNINITIALIZED, _NOT_LOADED = 1, 9
_MISMATCH = 18
_CONTROL_NODE = "/dev/nvidiactl"


def lend_library(pynvml: ModuleType, folder: str | None = None) -> bool:
    """Give the binding, which looks by name alone, the library that WSL2 keeps in its own folder."""
    from vram.payloads.libcuda import WSL_FOLDER
    from vram.payloads.libnvml import load

    if not hasattr(pynvml, "nvmlLib"):  # a binding that keeps it elsewhere
        return False
    try:
        vars(pynvml)["nvmlLib"] = load(folder or WSL_FOLDER)
    except OSError:
        return False
    return True


# ---- versions ----


def driver_facts(ask: Callable[[str], Any]) -> dict[str, Any]:
    """Versions on both sides of the driver, as *ask* answers NVML's calls; else as files around it say."""
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2") or ask("nvmlSystemGetCudaDriverVersion")
    return {
        "type": "driver",
        "driver_version": text(ask("nvmlSystemGetDriverVersion")),
        "library_version": _without_cuda(text(ask("nvmlSystemGetNVMLVersion"))) or library_version(),
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


def text(value: Any) -> str | None:
    # Bindings before 11.5 answer bytes.
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# ---- errors ----


class GpuGone(Exception):
    """The GPU answers no more; the library's own error is the cause."""


def is_loss(error: BaseException) -> bool:
    return isinstance(error, GpuGone) or getattr(error, "value", None) in (15, 16)


def code_of(error: BaseException) -> str:
    """The stable code of an observation that tells of *error*."""
    if isinstance(error, ImportError):
        return "no-nvml-binding"
    value = getattr(error, "value", None)
    return "nvml-error" if value is None else f"nvml-{value}"


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
        newer = f"nvidia-ml-py is newer than the driver: {error}"
        return {"status": "unsupported", "code": "nvml-binding-too-new", "message": newer}
    status = _STATUS.get(code, "failed") if code else "failed"
    return {"status": status, "code": code_of(error), "message": message_of(error)}


def left_statement(error: BaseException) -> dict[str, Any] | None:
    """The same for a driver that answered before and is gone now; None where *error* means something else."""
    code = getattr(error, "value", None)
    if code not in (_UNINITIALIZED, _NOT_LOADED):
        return None
    message = f"the driver was unloaded or replaced while it was read (NVML error {code})"
    return {"status": "failed", "code": "driver-left", "message": message}


def _mismatch() -> str:
    sides = f"kernel module {module_version() or 'unknown'}, library {library_version() or 'unknown'}"
    return f"the driver's kernel module and its libraries have different versions: {sides} (NVML error 18)"


def _unreached(version: str) -> str:
    """Why the library calls a driver "not loaded" whose module the kernel shows: it finds no way there."""
    lack = "does not answer" if os.path.exists(_CONTROL_NODE) else f"{_CONTROL_NODE} is missing"
    return f"the driver's kernel module {version} is loaded, but {lack}"
