"""The CUDA runtime library by ctypes: where it is found, and how it is called.

Under a virtual GPU only that GPU's own library is used: a vendor's runtime needs a vendor's driver.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from glob import glob

NAMES = ("libcudart.so.13", "libcudart.so.12")
IN_PACKAGES = ("nvidia/cu13/lib", "nvidia/cuda_runtime/lib", "torch/lib")
"""NVIDIA's packages for CUDA 13 and 12, and PyTorch's own copy."""
IN_TOOLKITS = ("lib64", "targets/*/lib")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The first runtime library that can be loaded; None where there is none."""
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def _candidates() -> Iterator[str]:
    virtual = os.environ.get("VRAM_VIRTUAL_GPU")
    if virtual:
        yield from (os.path.join(virtual, "lib", name) for name in NAMES)
        return
    yield from NAMES
    toolkits = (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda")
    folders = [os.path.join(root, each) for root in sys.path if root for each in IN_PACKAGES]
    folders += [os.path.join(root, each) for root in toolkits if root for each in IN_TOOLKITS]
    for folder in folders:
        for name in NAMES:
            yield from sorted(glob(os.path.join(folder, f"{name}*")))


def code(name: str, *arguments: object) -> int | None:
    """Call the runtime and return its answer, whatever it is; None without a runtime."""
    found = library()
    return None if found is None else int(getattr(found, name)(*arguments))
