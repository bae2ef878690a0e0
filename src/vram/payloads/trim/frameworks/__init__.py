"""Every library that is known to hold GPU memory that it does not use."""

from __future__ import annotations

from .arrays import CuPy, Numba, PyCuda
from .pools import CudaCore, Pools, Rmm
from .tensors import Jax, PyTorch, TensorFlow

# Driver pools come last: what frameworks release may have gone into them.
FRAMEWORKS = (PyTorch, CuPy, Jax, TensorFlow, Numba, PyCuda, CudaCore, Rmm, Pools)
