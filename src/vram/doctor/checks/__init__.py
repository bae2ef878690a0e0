"""Every check, in the order in which they are asked."""

from __future__ import annotations

from vram.doctor.check import Check
from vram.doctor.checks import driver, gpu, installation, parking, permissions, place, reaching

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *gpu.CHECKS,
    *permissions.CHECKS,
    *place.CHECKS,
    *parking.CHECKS,
    *reaching.CHECKS,
    *installation.CHECKS,
)
