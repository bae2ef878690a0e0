"""A tree like /proc, with the few files that tell who runs under whom."""

from __future__ import annotations

from pathlib import Path


class Tree:
    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, pid: int, *, name: str, argv: str, parent: int, uid: int) -> None:
        folder = self._root / str(pid)
        folder.mkdir()
        fields = ["S", str(parent), "1", "1", *["0"] * 15, "100", *["0"] * 10]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cmdline").write_text(f"{argv}\0")
