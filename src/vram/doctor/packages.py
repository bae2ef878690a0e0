"""Which version of a package is installed, by the name of its folder: importlib.metadata would cost more
than all the rest of the doctor's imports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

UNKNOWN = "of unknown version"


def version(distribution: str, module: str, path: Sequence[str] | None = None) -> str | None:
    """The version as installed, or UNKNOWN where only the module is there; None where not even that."""
    name = re.sub(r"[-_.]+", "_", distribution).lower()
    for folder in sys.path if path is None else path:
        with suppress(OSError):  # zip files, and folders that are not there
            for entry in os.listdir(folder or "."):
                found = re.fullmatch(r"(.+?)-([^-]+)\.(?:dist-info|egg-info)", entry)
                if found and re.sub(r"[-_.]+", "_", found[1]).lower() == name:
                    return found[2]
    return UNKNOWN if find_spec(module) is not None else None
