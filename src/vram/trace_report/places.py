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
_ON_THE_WAY = re.compile(r"(?:lib(?:cuda|cudart|cupti|ffi|vramtracer)|_ctypes)[.-]")


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
    frame = next((each for each in frames if not _is_on_the_way(each)), frames[0])
    return _library(frame.language, frame.file)


def place(stack: CallStack) -> Frame | None:
    """The frame that a person looks for: the innermost line of the program's own Python code.

    Where there is none, the innermost Python frame; then the innermost native one outside CUDA itself.
    """
    installed: Frame | None = None
    for frame in stack.frames:
        if frame.language == "python":
            if not is_installed(frame.file):
                return frame
            installed = installed or frame
    if installed is not None or not stack.frames:
        return installed
    return next((each for each in stack.frames if not _is_on_the_way(each)), stack.frames[0])


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
    return next((frame for frame in outside if frame.function not in (at.function, "<module>")), None)


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


def _is_own(frame: Frame) -> bool:
    return frame.language == "python" and not is_installed(frame.file)


def _is_on_the_way(frame: Frame) -> bool:
    return frame.language == "native" and _ON_THE_WAY.match(frame.file.rpartition("/")[2]) is not None


def function_name(frame: Frame) -> str:
    """``Model.forward``, ``main.step`` for ``main.<locals>.step``: as people write it, in one short piece."""
    return frame.function.replace(".<locals>.", ".") if frame.language == "python" else frame.function


def last_name(frame: Frame) -> str:
    """``forward`` of ``Model.forward``: what its ``def`` says."""
    return frame.function.rpartition(".")[2] if frame.language == "python" else frame.function


def position(frame: Frame) -> str:
    """``train.py:40``, or ``libnccl.so.2+0x1f40`` for native code."""
    if frame.language == "native":
        return f"{frame.file.rpartition('/')[2]}+{frame.line:#x}"
    return f"{shown_file(frame.file)}:{frame.line}"


# ---- packages, by which the page colours and sums ----


def executables(processes: Iterable[TracedProcess]) -> dict[str, str]:
    """The package of each process's own program: a C++ program's functions are in its executable."""
    return {process.executable: PYTHON if process.python else PROGRAM for process in processes}


def package(frame: Frame, programs: Mapping[str, str]) -> str:
    """Return a name that people know: "torch", "libcublas", "Python"; *programs* are the executables'."""
    if frame.language == "native":
        name = _VERSION.sub("", frame.file.rpartition("/")[2])
        return programs.get(frame.file) or (PYTHON if name.startswith("libpython") else name) or UNKNOWN
    if installed := _package_of(frame.file):
        return installed
    if _STANDARD.match(frame.file):
        return PYTHON
    return NOTEBOOK if _CELL.match(frame.file) else PROGRAM
