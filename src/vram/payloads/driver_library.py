"""Loads a library of the driver: by its name, or from where WSL2 keeps it."""

from __future__ import annotations

import ctypes
import os

# Windows' driver brings its Linux libraries along and mounts them here. The loader's
# configuration that names the folder is the distribution's, and some have lost it.
WSL_FOLDER = "/usr/lib/wsl/lib"


def load(name: str, folder: str = WSL_FOLDER) -> ctypes.CDLL:
    """The library *name*; raises OSError, the one of the ordinary search, where it is nowhere."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        place = os.path.join(folder, name)
        if not os.path.exists(place):
            raise
        return ctypes.CDLL(place)
