"""What counts as an array on a GPU, one file per framework; those that are loaded tell."""

from __future__ import annotations

from typing import Any

from . import buffer, cuda_core, cupy, jax, numba, pycuda, torch

# A buffer may be borrowed from any of the others: whoever owns the memory tells it first.
LEAVES: tuple[Any, ...] = (torch, cupy, jax, numba, pycuda, cuda_core, buffer)


def may_have_arrays() -> bool:
    """Whether anything is loaded that can have arrays: if not, a look at every object is spared."""
    return any(leaf.arrays() or leaf.blocks() for leaf in LEAVES)


def bystanders() -> tuple[type, ...]:
    """Classes whose instances refer to arrays that belong to others, as optimizers do."""
    return tuple(kind for leaf in LEAVES for kind in getattr(leaf, "bystanders", tuple)())
