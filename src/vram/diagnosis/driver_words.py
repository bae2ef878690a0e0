"""What the driver's own error texts say, where it has no status of their own for it."""

from __future__ import annotations


def ask_for_reset(message: str | None) -> bool:
    """NVML: "GPU requires reset"."""
    return "reset" in (message or "").lower()


def tell_mismatch(message: str | None) -> bool:
    """NVML: "Driver/library version mismatch"."""
    return "version mismatch" in (message or "").lower()
