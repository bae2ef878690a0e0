"""Whether an exception says that the GPU is out of memory, whichever framework raised it.

Classes are told by name and module: nothing is imported to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation alike


def _always(_: BaseException) -> bool:
    return True


def _says(*words: str) -> Callable[[BaseException], bool]:
    return lambda error: any(word in str(error) for word in words)


def _numba(error: BaseException) -> bool:
    # Its code is an int, or an enum of cuda-bindings.
    code = getattr(error, "code", None)
    return code is not None and int(code) == OUT_OF_MEMORY


_EXHAUSTED = _says("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")
_CUDA_WORDS = _says(
    "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "CUDA out of memory", "CUDA error: out of memory"
)

# (class, top module of the framework): what else must hold of it
SIGNS: dict[tuple[str, str], Callable[[BaseException], bool]] = {
    ("OutOfMemoryError", "torch"): _always,
    ("OutOfMemoryError", "cupy"): _always,
    ("CUDARuntimeError", "cupy_backends"): _says("cudaErrorMemoryAllocation"),
    ("CUDADriverError", "cupy_backends"): _says("CUDA_ERROR_OUT_OF_MEMORY"),
    ("XlaRuntimeError", "jaxlib"): _EXHAUSTED,
    ("JaxRuntimeError", "jaxlib"): _EXHAUSTED,
    ("JaxRuntimeError", "jax"): _EXHAUSTED,
    ("CudaAPIError", "numba"): _numba,
    ("CUDAError", "cuda"): _CUDA_WORDS,
    ("MemoryError", "pycuda"): _always,
    ("ResourceExhaustedError", "tensorflow"): _always,
    ("OutOfMemory", "vram"): _always,
    ("LimitExceeded", "vram"): _always,
    # RMM's, and what C++ extensions throw through pybind11
    ("MemoryError", "builtins"): _says("out_of_memory", "cudaErrorMemoryAllocation", "CUDA"),
    ("RuntimeError", "builtins"): _says(
        *("CUDA out of memory", "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        "CUBLAS_STATUS_ALLOC_FAILED",
    ),
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error*, or one that it was raised from or that it groups, is a GPU's out-of-memory.

    An error that merely happened while an out-of-memory was handled is another matter.
    """
    return any(map(_is_sign, itself_and_causes(error)))


def itself_and_causes(error: BaseException) -> Iterator[BaseException]:
    """*error*, what it was raised from, and what it groups, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]


def _is_sign(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        test = SIGNS.get((kind.__name__, kind.__module__.partition(".")[0]))
        if test is not None:
            return test(error)
    return False
