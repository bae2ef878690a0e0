"""The environment of our own processes that wake the driver: all GPUs, nobody's code, no MPS."""

from __future__ import annotations

import os

VISIBLE = "CUDA_VISIBLE_DEVICES"
# These hide GPUs from the driver, or load somebody's code into the process that uses it.
_UNWANTED = (VISIBLE, "CUDA_INJECTION64_PATH", "LD_PRELOAD")
# The driver's first call would have the MPS daemon start a server for us: here it finds none.
_INSTEAD = {"CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}


def driver_environment() -> dict[str, str]:
    """Ours, without what would change what the driver shows or whom it asks."""
    return {name: value for name, value in os.environ.items() if name not in _UNWANTED} | _INSTEAD
