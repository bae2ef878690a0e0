"""The command line, snapshots written by hand, and holders on a virtual GPU."""

from __future__ import annotations

from tests.cli.conftest import busy, no_driver, snapshot, vram
from tests.virtualgpu.conftest import hold

__all__ = ["busy", "hold", "no_driver", "snapshot", "vram"]
