"""A line that moves while the driver does: fed by the GPUs' own figures, only where a person watches."""

from __future__ import annotations

import sys
import time

from vram.units import size

_CELLS = 24


class Progress:
    """Draws on standard error if that is a terminal; otherwise it is silent and asks for no figures."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._words = ""
        self._whole = 0
        self._first: int | None = None
        self._began = 0.0

    @property
    def watch(self) -> Progress | None:
        return self if self._live else None

    def begin(self, words: str, nbytes: int) -> None:
        self._words, self._whole, self._first = words, nbytes, None
        self._began = time.monotonic()
        self._draw(0)

    def __call__(self, used: dict[str, int]) -> None:
        now = sum(used.values())
        self._first = now if self._first is None else self._first
        self._draw(abs(self._first - now))

    def end(self) -> None:
        self._write("\r\x1b[K")

    def _draw(self, moved: int) -> None:
        full = min(_CELLS, moved * _CELLS // max(1, self._whole))
        bar = "#" * full + "." * (_CELLS - full)
        spent_s = time.monotonic() - self._began
        self._write(f"\r\x1b[K{self._words} [{bar}] {size(moved)} of {size(self._whole)}, {spent_s:.0f} s")

    def _write(self, text: str) -> None:
        if self._live:
            sys.stderr.write(text)
            sys.stderr.flush()


class Counter:
    """Says which of several things is under way, on standard error if that is a terminal."""

    def __init__(self, whole: int) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._whole, self._at = whole, 0

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *error: object) -> None:
        self._write("\r\x1b[K")

    def next(self, name: str) -> None:
        self._at += 1
        self._write(f"\r\x1b[K[{self._at}/{self._whole}] {name}")

    def _write(self, text: str) -> None:
        if self._live:
            sys.stderr.write(text)
            sys.stderr.flush()
