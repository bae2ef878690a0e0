"""What counts as an array on a GPU, one file per framework; those that are loaded tell."""

from __future__ import annotations

from typing import Any

from vram.guard.frameworks import buffer, cuda_core, cupy, jax, numba, pycuda, torch

# A buffer may be borrowed from any of the others: whoever owns the memory tells it first.
LEAVES: tuple[Any, ...] = (torch, cupy, jax, numba, pycuda, cuda_core, buffer)
