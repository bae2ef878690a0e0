"""A passage of a log: what stands before an error and from its line on, cleaned of what logs add."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")
# What loggers and launchers put before each line; several of them can stand there at once.
_PREFIX = re.compile(
    r"""(?x)
    (?: \[?\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[:\ ]\s*
      | [A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s
      | \[\s*\d+\.\d{3,}\]\s*
      | (?:\[(?:rank|default|Rank)\s?\d+\]|rank\s?\d+|\d+):\s?
      | \((?:[\w.:/-]+\s+)?pid=\d+(?:,\s?ip=[\d.]+)?\)\s?
      | (?:ERROR|WARNING|INFO|DEBUG|CRITICAL)\s+(?:\d\d-\d\d\s\d\d:\d\d:\d\d\s)?\[[\w./-]+:\d+\]\s?
      | [\w.-]{1,40}\s+\|\s
      | (?:stdout|stderr)\s[FP]\s
    )"""
)
_MOST_PREFIXES = 5
# How far the beginning of a message may reach beyond its first line: terminals wrap.
WRAPPED = 400
_JSON_LINE = re.compile(r'"(?:log|message|msg|text|error|MESSAGE)"\s*:\s*"')
_ESCAPED = re.compile(r'\\(?:["\\/]|[bfnrt]|u[0-9a-fA-F]{4})')


class Passage:
    """``text`` begins with the line of the hit; ``line_ends`` is where that line ends in it.

    A line stays one line when it is cleaned, so that lines can be counted on both sides. Only the
    ``head``, that line and a little more, is cleaned at once: most hits turn out to be nothing. ``words``
    are the same on one line.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        ends = [at for at in (after.find(b"\n"), after.find(b"\r")) if at >= 0]
        self.head = cleaned(after[: (min(ends) if ends else len(after)) + WRAPPED])
        self.words = " ".join(self.head.split())
        end = self.head.find("\n")
        self.line_ends = len(self.head) if end < 0 else end

    @cached_property
    def text(self) -> str:
        return cleaned(self._after)

    @cached_property
    def before(self) -> str:
        return cleaned(self._before)


def cleaned(raw: bytes) -> str:
    """Return *raw* without colours, control characters, log prefixes and JSON's wrapping."""
    lines = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return "\n".join(map(_line, lines))


# Passages of neighbouring hits overlap: where messages stand close, a line is wanted a hundred times.
@lru_cache(maxsize=512)
def _line(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text))
    found = _JSON_LINE.search(text) if "\\" in text or text.startswith("{") else None
    if found:
        text = text[found.end() :]
    if "\\" in text:
        text = _ESCAPED.sub(_unescaped, text)
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text)
        if not match:
            break
        text = text[match.end() :]
    return text


def _unescaped(found: re.Match[str]) -> str:
    word = found.group()
    if word[1] == "u":
        char = chr(int(word[2:], 16))
        return char if char.isprintable() else " "
    return word[1] if word[1] in '"\\/' else " "
