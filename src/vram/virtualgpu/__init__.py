"""The virtual GPU: real driver libraries that answer from a private folder, for machines without one.

    with VirtualGpu.create(gpus=2) as gpu:
        gpu.run(["gpustat", "--json"])

Importing this package is cheap: what makes and fills folders is loaded when it is asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vram.virtualgpu.gpu import VirtualGpu

__all__ = ["FOLDER_VARIABLE", "VirtualGpu", "current"]

FOLDER_VARIABLE = "VRAM_VIRTUAL_GPU"


def current() -> str | None:
    """The folder of the virtual GPU this process runs under, or None on the real machine."""
    return os.environ.get(FOLDER_VARIABLE) or None


def __getattr__(name: str) -> Any:
    if name == "VirtualGpu":
        from vram.virtualgpu.gpu import VirtualGpu

        return VirtualGpu
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
