"""Argument parsing as this program does it: its own complaints, help as wide as the terminal."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from vram.cli.terminal import columns
from vram.errors import UsageError


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, measured without what argparse would import for it."""

    def __init__(self, prog: str) -> None:
        self._color: tuple[object, ...] | None = None
        super().__init__(prog, width=min(columns(), 100) - 2)

    def _set_color(self, *color: object) -> None:
        """From Python 3.14 on argparse imports dataclasses here, at every start, to colour its help."""
        self._color = color

    def __getattr__(self, name: str) -> Any:
        # Only help asks for what the real one would have set.
        color = self.__dict__.pop("_color", None)
        if color is None:
            raise AttributeError(name)
        super()._set_color(*color)  # type: ignore[misc]
        return getattr(self, name)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ours to print."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")
