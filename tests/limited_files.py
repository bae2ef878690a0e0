"""Programs that may not write large files write no bytecode either.

Python does not see that a file was cut short, and whoever imports that module next could not load it.
"""

from __future__ import annotations

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
