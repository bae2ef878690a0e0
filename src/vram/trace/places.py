"""Places of a trace: which frame of a stack a person looks for, who called it, whose code that is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from vram.model.trace import CallStack, Frame, TracedProcess, TraceView

OWN_CODE = "the program's own code"
STANDARD_LIBRARY = "Python's standard library"
NO_STACK = "no stack was recorded"

# What the page calls them.
PROGRAM = "your program"
NOTEBOOK = "notebook"
PYTHON = "Python"
UNKNOWN = "unknown library"

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"(?:.*/)?lib(?:64)?/python3[^/]*/|<frozen ")
# Enough to tell; a trace may have a hundred thousand stacks.
_MAX_STACKS = 20_000
_CELL = re.compile(r"<ipython-input|.*/ipykernel_\d+/")
_VERSION = re.compile(r"(?:\.so\b.*|\.cpython-.*|\.abi3.*)$")
# Allocations pass through these on their way to the driver: they are never what a person looks for.
_RUNTIME = re.compile(
    r"(?:lib(?:cuda|cudart|cupti|ffi|vramtracer|stdc\+\+|c\+\+|c\+\+abi|gcc_s|c|m|pthread)|_ctypes|ld-linux[^.]*)[.-]"
)
# The CUDA runtime that nvcc links into programs, its header, and the stubs that launch kernels.
_STATIC_RUNTIME = re.compile(r"libcudart_static_\w+|_*cuda[A-Z]\w*(?:<…>)?")
_RUNTIME_HEADERS = re.compile(r"(?:.*/)?cuda_runtime(?:_api)?\.h|.*\.cudafe\d+\.stub\.c")
# Allocators and templates of libraries: a person called them.
_ALLOCATORS = re.compile(r"lib(?:rmm|c10\w*|torch\w*)[.-]")
_NAMESPACES = re.compile(r"(thrust|cub|std|__gnu_cxx|rmm|c10|cuda::(?:std|mr|__\w+)|vram)::")
_INSTALLED_HEADERS = re.compile(
    r"/usr/(?:local/)?include/|.*/include/(?:c\+\+|thrust|cub|cuda|rmm|c10)/|.*/cuda[^/]*/(?:targets/[^/]+/)?include/"
    r"|.*/(?:thrust|cub|rmm|c10)/.*\.(?:h|hpp|cuh|inl)$|.*/vram\.hpp$"
)
_ENTRANCES = ("<module>", "main")


@lru_cache(maxsize=65536)
def is_installed(file: str) -> bool:
    """Whether *file* belongs to an installed package or to Python itself, not to the program."""
    return _PACKAGES.match(file) is not None or _STANDARD.match(file) is not None


@lru_cache(maxsize=65536)
def shown_file(file: str) -> str:
    """*file* without the folder that packages are installed in."""
    found = _PACKAGES.match(file) or _STANDARD.match(file)
    return file[found.end() :] if found and not file.startswith("<") else file


@lru_cache(maxsize=65536)
def _library(language: str, file: str) -> str:
    name = file.rpartition("/")[2]
    if language == "native":
        return name or "unknown library"
    return _package_of(file) or (STANDARD_LIBRARY if _STANDARD.match(file) else OWN_CODE)


def _package_of(file: str) -> str:
    """The installed package that *file* belongs to; empty where it belongs to none."""
    found = _PACKAGES.match(file)
    return file[found.end() :].partition("/")[0].removesuffix(".py") if found else ""


def library(stack: CallStack) -> str:
    """The library or package of the innermost frame; what every call passes through is left out."""
    frames = stack.frames
    if not frames:
        return NO_STACK
    frame = next((each for each in frames if not _is_runtime(each)), frames[0])
    return _library(frame.language, frame.library or frame.file)


def place(stack: CallStack) -> Frame | None:
    """The frame that a person looks for: the innermost line of the program's own Python code.

    Where there is none, the innermost Python frame; then the innermost native one whose line is known and
    that is no library's; then the innermost outside of CUDA, the C++ library and allocators.
    """
    installed: Frame | None = None
    for frame in stack.frames:
        if frame.language == "python":
            if not is_installed(frame.file):
                return frame
            installed = installed or frame
    if installed is not None or not stack.frames:
        return installed
    for is_sought in (_is_own, _is_outside_libraries, _is_outside_runtime):
        found = next(filter(is_sought, stack.frames), None)
        if found is not None:
            return found
    return stack.frames[0]


def caller(stack: CallStack) -> Frame | None:
    """Who called the place: where that is a wrapper, the line to look at.

    From another file of the program; where it has one file, from another function of it.
    """
    at = place(stack)
    if at is None:
        return None
    outside = [frame for frame in stack.frames[stack.frames.index(at) + 1 :] if _is_own(frame)]
    from_another_file = next((frame for frame in outside if frame.file != at.file), None)
    if from_another_file is not None or not _is_own(at):
        return from_another_file
    return next((frame for frame in outside if frame.function not in (at.function, *_ENTRANCES)), None)


class _Wrappers:
    """Places of one trace that several lines call: there the caller says more."""

    def __init__(self, stacks: tuple[CallStack, ...]) -> None:
        self.stacks = stacks
        callers: dict[Frame, Frame | None] = {}
        self.found: set[Frame] = set()
        for stack in stacks[:_MAX_STACKS]:
            at = place(stack)
            if at is not None and callers.setdefault(at, caller(stack)) != caller(stack):
                self.found.add(at)


_wrappers = _Wrappers(())


def is_wrapper(view: TraceView, frame: Frame | None) -> bool:
    """Whether *frame* is a place that several lines call."""
    global _wrappers
    if _wrappers.stacks is not view.stacks:
        _wrappers = _Wrappers(view.stacks)  # of the last trace only: a report shows one
    return frame in _wrappers.found


@lru_cache(maxsize=65536)
def _is_own(frame: Frame) -> bool:
    """Whether it is a line of the program's own code."""
    if frame.language == "python":
        return not is_installed(frame.file)
    return frame.has_line and _is_outside_libraries(frame)


def shown_frames(view: TraceView, stack: CallStack) -> tuple[Frame | None, Frame | None]:
    """The place of *stack*, and who called it where the place is a wrapper; the caller then says more."""
    at = place(stack)
    return at, caller(stack) if is_wrapper(view, at) else None


def _is_outside_runtime(frame: Frame) -> bool:
    return not _is_runtime(frame)


@lru_cache(maxsize=65536)
def _is_outside_libraries(frame: Frame) -> bool:
    """Whether a native frame is neither CUDA's or C's, nor an allocator's or a template's of a library."""
    if _is_runtime(frame) or _ALLOCATORS.match((frame.library or frame.file).rpartition("/")[2]):
        return False
    return not (_NAMESPACES.match(frame.function) or (frame.library and _INSTALLED_HEADERS.match(frame.file)))


@lru_cache(maxsize=65536)
def _is_runtime(frame: Frame) -> bool:
    if frame.language != "native":
        return False
    if frame.library and _RUNTIME_HEADERS.fullmatch(frame.file):
        return True
    if not frame.library and _STATIC_RUNTIME.fullmatch(frame.function):
        return True
    return _RUNTIME.match((frame.library or frame.file).rpartition("/")[2]) is not None


def function_name(frame: Frame) -> str:
    """``Model.forward``, ``main.step`` for ``main.<locals>.step``: as people write it, in one short piece."""
    return frame.function.replace(".<locals>.", ".") if frame.language == "python" else frame.function


def last_name(frame: Frame) -> str:
    """``forward`` of ``Model.forward``: what its ``def`` says."""
    return frame.function.rpartition(".")[2] if frame.language == "python" else frame.function


def position(frame: Frame) -> str:
    """``train.py:40``, or ``libnccl.so.2+0x1f40`` for native code whose line is unknown."""
    if not frame.has_line:
        return f"{frame.file.rpartition('/')[2]}+{frame.line:#x}"
    return f"{shown_file(frame.file)}:{frame.line}"


# ---- packages, by which the page colours and sums ----


def executables(processes: Iterable[TracedProcess]) -> dict[str, str]:
    """The package of each process's own program: a C++ program's functions are in its executable."""
    return {process.executable: PYTHON if process.python else PROGRAM for process in processes}


def package(frame: Frame, programs: Mapping[str, str]) -> str:
    """Return a name that people know: "torch", "libcublas", "Python"; *programs* are the executables'."""
    if frame.language == "native":
        file = frame.library or frame.file
        name = _VERSION.sub("", file.rpartition("/")[2])
        if file in programs and _is_runtime(frame):
            return "libcudart"  # linked into the program
        if namespace := _NAMESPACES.match(frame.function):
            return namespace[1].partition("::")[0]
        return programs.get(file) or (PYTHON if name.startswith("libpython") else name) or UNKNOWN
    if installed := _package_of(frame.file):
        return installed
    if _STANDARD.match(frame.file):
        return PYTHON
    return NOTEBOOK if _CELL.match(frame.file) else PROGRAM
