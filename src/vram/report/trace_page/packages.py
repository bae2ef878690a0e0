"""Which package or library a frame belongs to, so that the page can colour and sum by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vram.model.trace import Frame, TracedProcess

PROGRAM = "your program"
NOTEBOOK = "notebook"
PYTHON = "Python"
UNKNOWN = "unknown library"

_INSTALLED = re.compile(r".*/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r".*/lib(?:64)?/python3[^/]*(?:\.zip)?/|<frozen ")
_CELL = re.compile(r"<ipython-input|.*/ipykernel_\d+/")
_VERSION = re.compile(r"(?:\.so\b.*|\.cpython-.*|\.abi3.*)$")


def executables(processes: Iterable[TracedProcess]) -> dict[str, str]:
    """The package of each process's own program: a C++ program's functions are in its executable."""
    return {process.executable: PYTHON if process.python else PROGRAM for process in processes}


def package(frame: Frame, programs: Mapping[str, str]) -> str:
    """Return a name that people know: "torch", "libcublas", "Python", "your program".

    *programs*: what :func:`executables` says.
    """
    if frame.language == "native":
        name = _VERSION.sub("", frame.file.rpartition("/")[2])
        return programs.get(frame.file) or (PYTHON if name.startswith("libpython") else name) or UNKNOWN
    if found := _INSTALLED.match(frame.file):
        return found[1].removesuffix(".py")
    if _STANDARD.match(frame.file):
        return PYTHON
    return NOTEBOOK if _CELL.match(frame.file) else PROGRAM
