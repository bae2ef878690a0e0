"""vram: where every byte of GPU memory is, who keeps it there, and how to get it back.

    vram.agent()                      let `vram trim` into this process
    vram.reclaim.plan("20GiB")        what would be done to get 20 GiB back

Importing it does no work: each of these is loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vram.agent import start as agent

__all__ = ["__version__", "agent"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("agent", "reclaim"):
        from importlib import import_module

        return import_module(f"vram.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
