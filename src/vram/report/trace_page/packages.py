"""Which package or library a frame belongs to, so that the page can colour and sum by it."""

from __future__ import annotations

import re

from vram.model.trace import Frame

PROGRAM = "your program"
NOTEBOOK = "notebook"
PYTHON = "Python"
UNKNOWN = "unknown library"

_INSTALLED = re.compile(r".*/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r".*/lib(?:64)?/python3[^/]*(?:\.zip)?/|<frozen ")
_CELL = re.compile(r"<ipython-input|.*/ipykernel_\d+/")
_VERSION = re.compile(r"(?:\.so\b.*|\.cpython-.*|\.abi3.*)$")


def package(frame: Frame) -> str:
    """Return a name that people know: "torch", "libcublas", "Python", "your program"."""
    if frame.language == "native":
        return _VERSION.sub("", frame.file.rpartition("/")[2]) or UNKNOWN
    if found := _INSTALLED.match(frame.file):
        return found[1].removesuffix(".py")
    if _STANDARD.match(frame.file):
        return PYTHON
    return NOTEBOOK if _CELL.match(frame.file) else PROGRAM
