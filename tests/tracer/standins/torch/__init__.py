"""What the payload uses of PyTorch, with PyTorch's rules: CUDA is initialised late, under a lock."""

from torch import _C as _C
from torch import cuda as cuda

__version__ = "0 (stand-in)"


def __getattr__(name):
    if name == "_inductor":
        raise AssertionError("the compiler would be imported")
    raise AttributeError(name)
