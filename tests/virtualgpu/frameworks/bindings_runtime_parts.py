"""cuda.bindings.runtime."""

from __future__ import annotations

from cuda.bindings import runtime
from program import main, part


@part
def plain_memory() -> None:
    """`cudaMalloc` and every other call: NVIDIA's runtime is linked into the module"""
    code, memory = runtime.cudaMalloc(1 << 20)
    if code != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaMalloc: {code.name}")
    runtime.cudaFree(memory)


if __name__ == "__main__":
    main()
