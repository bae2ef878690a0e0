"""What the driver's errors say beyond their status, told by the number that probes put last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.model.gpu import DriverFacts


def ask_for_reset(message: str | None) -> bool:
    """The GPU answers only after a reset."""
    return _carries(message, 16)


def tell_mismatch(message: str | None) -> bool:
    """The kernel's module and the libraries have different versions."""
    return _carries(message, 18)


def miss_library(message: str | None) -> bool:
    """The driver's libraries are not to be found."""
    return _carries(message, 12)


def where_to_look(driver: DriverFacts | None) -> str:
    """What helps where no driver answers: one that is loaded can be reached, without one there is none."""
    if driver is not None and driver.module_version is not None:
        return "the kernel has the driver: `vram doctor` says what of it is missing here, and what brings it"
    return "`vram demo` shows what vram does, without a GPU"


def _carries(message: str | None, error: int) -> bool:
    return (message or "").endswith(f"(NVML error {error})")
