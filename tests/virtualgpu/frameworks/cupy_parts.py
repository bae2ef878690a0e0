"""CuPy."""

from __future__ import annotations

import cupy
from program import main, part


@part
def importing() -> None:
    """`import cupy`, and what asks no driver"""
    assert cupy.cuda.runtime.runtimeGetVersion() > 0


@part
def arrays() -> None:
    """`cupy.empty` and everything else on the device: NVIDIA's runtime is linked into CuPy"""
    cupy.empty(1024)


if __name__ == "__main__":
    main()
