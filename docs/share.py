"""Writes what man and the shells read: manual pages and completion, as they lie in an installation's share/.

python docs/share.py FOLDER

The build of the wheel does so (hatch_build.py), and installs them. It needs vram's source and msgspec.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Here and not by PYTHONPATH: while pip builds, it takes out of the path what an editable installation added.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from generators import manual

from vram.cli.completion import script

COMPLETIONS = {
    "bash": "bash-completion/completions/vram",
    "zsh": "zsh/site-functions/_vram",
    "fish": "fish/vendor_completions.d/vram.fish",
}


def main(folder: Path) -> None:
    written = {folder / path: text for path, text in files()}
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another build may be packing the file now: the new one takes its place whole.
        part = folder.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    # Of an earlier build: a command that is gone has no page.
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in written]:
        path.unlink()


def files() -> Iterator[tuple[str, str]]:
    """Each file: its path below share/, and its text."""
    for name, text in manual.pages():
        yield f"man/man1/{name}.1", text
    for shell, path in COMPLETIONS.items():
        yield path, script(shell)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
