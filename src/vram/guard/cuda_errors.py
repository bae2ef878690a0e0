"""What an exception says about CUDA: out of memory, a broken context, and what its frames hold.

Exception classes are compared by name and module: no framework is imported for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from traceback import walk_tb
from types import FrameType

from msgspec import Struct

from vram.guard.memory import driver_is_loaded
from vram.python_310 import add_note

# ---- out of memory ----

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation alike

_EXHAUSTED = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")
_CUDA_WORDS = ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA out of memory", "CUDA error: out of memory")

# (class, top module of the framework): words of which the message has one; none for a class of its own
_OOM_CLASSES: dict[tuple[str, str], tuple[str, ...]] = {
    ("OutOfMemoryError", "torch"): (),
    ("OutOfMemoryError", "cupy"): (),
    ("CUDARuntimeError", "cupy_backends"): ("cudaErrorMemoryAllocation",),
    ("CUDADriverError", "cupy_backends"): ("CUDA_ERROR_OUT_OF_MEMORY",),
    ("XlaRuntimeError", "jaxlib"): _EXHAUSTED,
    ("JaxRuntimeError", "jaxlib"): _EXHAUSTED,
    ("JaxRuntimeError", "jax"): _EXHAUSTED,
    ("CUDAError", "cuda"): ("cudaErrorMemoryAllocation", *_CUDA_WORDS),
    ("MemoryError", "pycuda"): (),
    ("ResourceExhaustedError", "tensorflow"): (),
    ("OutOfMemory", "vram"): (),
    ("LimitExceeded", "vram"): (),
    # RMM's, and what C++ extensions throw through pybind11
    ("MemoryError", "builtins"): ("out_of_memory", "cudaErrorMemoryAllocation", "CUDA"),
    ("RuntimeError", "builtins"): ("CUBLAS_STATUS_ALLOC_FAILED", *_CUDA_WORDS),
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error*, what it was raised from or what it groups is a GPU's out-of-memory; not what it
    merely happened while handling."""
    return any(map(_is_oom, error_and_causes(error)))


def error_and_causes(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """*error*, what it was raised from and groups, each once; with *contexts*, what was handled meanwhile."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.append(each.__cause__)
        if contexts:
            waiting.append(each.__context__)
        # By its name: in Python 3.10 it is of the package `exceptiongroup`, where that is installed.
        if any(kind.__name__ == "BaseExceptionGroup" for kind in type(each).__mro__):
            waiting += getattr(each, "exceptions", ())


def _is_oom(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        key = kind.__name__, kind.__module__.partition(".")[0]
        if key == ("CudaAPIError", "numba"):
            # Its code is an int, or an enum of cuda-bindings.
            code = getattr(error, "code", None)
            return code is not None and int(code) == OUT_OF_MEMORY
        if key in _OOM_CLASSES:
            words = _OOM_CLASSES[key]
            return not words or any(word in str(error) for word in words)
    return False


# ---- broken contexts ----
#
# After one of the errors of vram.payloads.trim.driver nothing can be freed or tried again in this
# process.

MAX_LENGTH = 10_000
_CUDA_LIBRARIES = ("numba", "cupy_backends", "torch", "cuda", "pycuda")


class BrokenContext(Struct, frozen=True):
    """``code`` is the driver's error number. ``device`` is None where only an exception reported it."""

    device: int | None
    code: int

    @property
    def error(self) -> str:
        """The driver's name for it."""
        from vram.payloads.trim.driver import STICKY

        return STICKY[self.code][0]

    def sentence(self, held: str = "its memory") -> str:
        from vram.payloads.trim.driver import sentence

        return sentence(self.code, self.device, held)


def broken_contexts(error: BaseException | None = None) -> tuple[BrokenContext, ...]:
    """Those that this thread can enter; if none is found, the one that *error* reports. Waits for nothing."""
    if driver_is_loaded():
        from vram.payloads.trim.driver import driver

        with driver.harmless_to_captures():
            found = tuple(BrokenContext(device, code) for device, code in driver.broken().items())
        if found:
            return found
    code = None if error is None else sticky_code(error)
    return () if code is None else (BrokenContext(None, code),)


def observed_broken_contexts() -> tuple[BrokenContext, ...]:
    """Those that the last measurements of this process met; the driver is not asked again."""
    if not driver_is_loaded():
        return ()
    from vram.payloads.trim.driver import driver

    return tuple(BrokenContext(device, code) for device, code in driver.seen_broken.items())


def add_broken_notes(error: BaseException, broken: Iterable[BrokenContext]) -> None:
    """Add a note to *error* for each error code that has none yet."""
    for each in broken:
        mark = f"({each.error}, {each.code})"
        if not any(mark in str(line) for line in getattr(error, "__notes__", ())):
            add_note(error, f"vram: {each.sentence()}")


def sticky_code(error: BaseException) -> int | None:
    """The sticky error that *error*, or one that it was raised from, reports; None for any other."""
    from vram.oom.dialects.sticky import sticky_code_in
    from vram.payloads.trim.driver import STICKY

    for each in error_and_causes(error):
        # Other libraries use the same numbers for other errors.
        is_cuda_library = type(each).__module__.partition(".")[0] in _CUDA_LIBRARIES
        # Numba's errors have a code, an int or an enum of cuda-bindings; so have CuPy's and PyTorch's.
        for name in ("code", "status", "error_code"):
            number = getattr(each, name, None)
            if is_cuda_library and isinstance(number, int) and int(number) in STICKY:
                return int(number)
        try:
            text = str(each)[:MAX_LENGTH]
        except Exception:  # __str__ is the program's own code
            continue
        code = sticky_code_in(text)
        if code is not None:
            return code
    return None


# ---- frames ----


def clear_frames(error: BaseException, only: Callable[[FrameType], bool] = lambda _: True) -> int:
    """Clear the variables of the finished frames of *error* and all that belongs to it; returns how many.

    The traceback still prints; only a debugger can no longer show the variables.
    """
    cleared = 0
    for each in error_and_causes(error, contexts=True):
        for frame, _ in walk_tb(each.__traceback__):
            # A frame that still runs, or a generator that is only suspended, refuses.
            with suppress(RuntimeError):
                if only(frame):
                    frame.clear()
                    # If f_locals was read before, the frame keeps a copy that holds everything until
                    # the next read updates it (Python 3.12 and older).
                    _ = frame.f_locals
                    cleared += 1
    return cleared


def clear_frames_with_arrays(error: BaseException) -> int:
    """The same, only for frames that have GPU arrays in their variables."""
    from vram.guard.leak_check import has_array

    def holds_array(frame: FrameType) -> bool:
        # Reads the variables as the collector does: f_locals would copy them.
        held = gc.get_referents(frame)
        return has_array(each for each in held if each is not frame.f_globals)

    return clear_frames(error, only=holds_array)
