"""Everything that is known to keep GPU memory it does not use."""

from __future__ import annotations

from .cuda_core import CudaCore
from .cupy import CuPy
from .jax import Jax
from .numba import Numba
from .pools import Pools
from .pycuda import PyCuda
from .pytorch import PyTorch
from .rmm import Rmm
from .tensorflow import TensorFlow

# Driver pools come last: what frameworks let go of may have gone into them.
FRAMEWORKS = (PyTorch, CuPy, Jax, TensorFlow, Numba, PyCuda, CudaCore, Rmm, Pools)
