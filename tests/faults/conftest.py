"""Machines of the neighbouring rooms: one on which vram acts, one on which it parks."""

from __future__ import annotations

from tests.parking.conftest import machine as parking_machine
from tests.reclaim.conftest import machine, new_namespaces, state

__all__ = ["machine", "new_namespaces", "parking_machine", "state"]
