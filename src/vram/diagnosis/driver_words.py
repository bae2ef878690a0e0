"""What the driver's errors say beyond their status, told by the number that probes put last."""

from __future__ import annotations


def ask_for_reset(message: str | None) -> bool:
    """The GPU answers only after a reset."""
    return _carries(message, 16)


def tell_mismatch(message: str | None) -> bool:
    """The kernel's module and the libraries have different versions."""
    return _carries(message, 18)


def _carries(message: str | None, error: int) -> bool:
    return (message or "").endswith(f"(NVML error {error})")
