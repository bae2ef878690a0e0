"""What happened on the GPUs: who held what, from when to when, in one SQLite file of limited size."""

from __future__ import annotations

import os

from vram import folders

NAME = "history.sqlite"
SYSTEM_FOLDER = "/var/lib/vram"


def default_path() -> str:
    """The history of this user's service; where that has none, the machine's."""
    own = SYSTEM_FOLDER if os.geteuid() == 0 else os.path.join(folders.state_path(), "vram")
    path = os.path.join(own, NAME)
    return path if os.path.lexists(path) else os.path.join(SYSTEM_FOLDER, NAME)
