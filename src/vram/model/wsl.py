"""Linux under Windows: what this side can tell about where it runs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class WslFacts(Struct, frozen=True):
    """Which WSL this is, and what of the GPU and of Windows can be reached from here.

    Version 1 translates system calls and has no GPU. In version 2 a GPU is the Windows
    driver's, and one virtual machine runs every distribution.
    """

    version: Literal[1, 2]
    gpu_device: bool = False
    """/dev/dxg is there: the way to every GPU."""
    libraries: str | None = None
    """The folder of the Windows driver's Linux libraries, where it is there."""
    interop: bool = False
    """Windows programs can be started from here."""
    container: bool = False
    """A container inside: it has neither the distribution's files nor its interop."""
