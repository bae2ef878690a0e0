"""What an exception says about CUDA: out of memory, a broken context, and what its frames hold.

Exception classes are compared by name and module: no framework is imported for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType

from msgspec import Struct

from vram.guard.memory import driver_is_loaded

# ---- out of memory ----

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation alike


def _always(_: BaseException) -> bool:
    return True


def _text_has(*words: str) -> Callable[[BaseException], bool]:
    return lambda error: any(word in str(error) for word in words)


def _numba(error: BaseException) -> bool:
    # Its code is an int, or an enum of cuda-bindings.
    code = getattr(error, "code", None)
    return code is not None and int(code) == OUT_OF_MEMORY


_EXHAUSTED = _text_has("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")
_CUDA_WORDS = _text_has(
    "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "CUDA out of memory", "CUDA error: out of memory"
)

# (class, top module of the framework): what else must hold for the exception
OOM_CLASSES: dict[tuple[str, str], Callable[[BaseException], bool]] = {
    ("OutOfMemoryError", "torch"): _always,
    ("OutOfMemoryError", "cupy"): _always,
    ("CUDARuntimeError", "cupy_backends"): _text_has("cudaErrorMemoryAllocation"),
    ("CUDADriverError", "cupy_backends"): _text_has("CUDA_ERROR_OUT_OF_MEMORY"),
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
    ("MemoryError", "builtins"): _text_has("out_of_memory", "cudaErrorMemoryAllocation", "CUDA"),
    ("RuntimeError", "builtins"): _text_has(
        *("CUDA out of memory", "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        "CUBLAS_STATUS_ALLOC_FAILED",
    ),
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error*, or one that it was raised from or that it groups, is a GPU's out-of-memory.

    An error that merely happened while an out-of-memory was handled is another matter.
    """
    return any(map(_is_oom, error_and_causes(error)))


def error_and_causes(error: BaseException) -> Iterator[BaseException]:
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


def _is_oom(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        test = OOM_CLASSES.get((kind.__name__, kind.__module__.partition(".")[0]))
        if test is not None:
            return test(error)
    return False


# ---- broken contexts ----
#
# After one of the errors of vram.payloads.trim.sticky_errors nothing can be freed or tried again in this
# process.

MAX_LENGTH = 10_000


class BrokenContext(Struct, frozen=True):
    """``code`` is the driver's error number. ``device`` is None where only an exception reported it."""

    device: int | None
    code: int

    @property
    def error(self) -> str:
        """The driver's name for it."""
        from vram.payloads.trim.sticky_errors import STICKY

        return STICKY[self.code][0]

    def sentence(self, held: str = "its memory") -> str:
        from vram.payloads.trim.sticky_errors import sentence

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
            error.add_note(f"vram: {each.sentence()}")


def is_sticky(error: BaseException) -> bool:
    """Whether *error* itself reports that the context is broken."""
    return sticky_code(error) is not None


def sticky_code(error: BaseException) -> int | None:
    """The sticky error that *error*, or one that it was raised from, reports; None for any other."""
    from vram.oom.dialects.sticky import sticky_code_in
    from vram.payloads.trim.sticky_errors import STICKY

    for each in error_and_causes(error):
        # Numba's errors have a code, an int or an enum of cuda-bindings; so have CuPy's and PyTorch's.
        for name in ("code", "status", "error_code"):
            number = getattr(each, name, None)
            if isinstance(number, int) and int(number) in STICKY and _is_cuda_library(each):
                return int(number)
        code = sticky_code_in(_text(each))
        if code is not None:
            return code
    return None


def _text(error: BaseException) -> str:
    """The text of an exception of any program: ``__str__`` is the program's code and may fail."""
    try:
        return str(error)[:MAX_LENGTH]
    except Exception:
        return ""


def _is_cuda_library(error: BaseException) -> bool:
    """Other libraries use the same numbers for other errors."""
    return type(error).__module__.partition(".")[0] in ("numba", "cupy_backends", "torch", "cuda", "pycuda")


# ---- frames ----


def clear_frames(error: BaseException, only: Callable[[FrameType], bool] = lambda _: True) -> int:
    """Clear the variables of the finished frames of *error*, its causes and its group's members.

    Returns how many frames. Frames that still run keep their variables. The traceback still prints with
    the file and line of every frame; only a debugger can no longer show the variables.
    """
    cleared = 0
    for each in error_family(error):
        for trace in _entries(each.__traceback__):
            # A frame that still runs, or a generator that is only suspended, refuses.
            with suppress(RuntimeError):
                if only(trace.tb_frame):
                    trace.tb_frame.clear()
                    # If f_locals was read before, the frame keeps a copy that holds everything until
                    # the next read updates it (Python 3.12 and older).
                    _ = trace.tb_frame.f_locals
                    cleared += 1
    return cleared


def error_family(error: BaseException) -> Iterator[BaseException]:
    """*error*, its causes, contexts and group members, each once."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def clear_frames_with_arrays(error: BaseException) -> int:
    """The same, only for frames that have GPU arrays in their variables."""
    from vram.guard.leak_check import has_array

    def holds_array(frame: FrameType) -> bool:
        # Reads the variables as the collector does: f_locals would copy them.
        held = gc.get_referents(frame)
        return has_array(each for each in held if each is not frame.f_globals)

    return clear_frames(error, only=holds_array)
