"""share/: completion for each shell, as ``vram completion`` prints it, where their packages look."""

from __future__ import annotations

from collections.abc import Iterator

from vram.cli.completion import script

PLACES = {
    "bash": "share/bash-completion/completions/vram",
    "zsh": "share/zsh/site-functions/_vram",
    "fish": "share/fish/vendor_completions.d/vram.fish",
}


def pages() -> Iterator[tuple[str, str]]:
    for shell, path in PLACES.items():
        yield path, script(shell)
