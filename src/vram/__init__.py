"""vram: where every byte of GPU memory is, who keeps it there, and how to get it back."""

from __future__ import annotations

__version__ = "0.1.0"
