"""``python -m vram``: the command line, for where the script is not on the path."""

from __future__ import annotations

from vram.cli import entry

if __name__ == "__main__":
    entry()
