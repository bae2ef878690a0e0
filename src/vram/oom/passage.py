"""A part of a log, cleaned of what loggers and terminals add to its lines."""

from __future__ import annotations

import re
from collections.abc import Callable

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")
# What loggers and launchers put before each line; a line can have several of them.
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
_MAX_PREFIXES = 5
_JSON_LINE = re.compile(r'"(?:log|message|msg|text|error|MESSAGE)"\s*:\s*"')
_ESCAPED = re.compile(r'\\(?:["\\/]|[bfnrt]|u[0-9a-fA-F]{4})')


class Passage:
    """A part of a log. ``text`` begins with the line that may have a message, which ends at ``line_ends``.

    ``head`` is that line, and as much more as the beginning of a message may need where it was wrapped.
    ``before`` is the log above. It is put together only where a dialect looks there.
    """

    def __init__(self, head: str, text: str, above: Callable[[], str]) -> None:
        self.head, self.text = head, text
        end = text.find("\n")
        self.line_ends = len(text) if end < 0 else end
        self._above = above
        self.known_before: str | None = None

    @property
    def before(self) -> str:
        if self.known_before is None:
            self.known_before = self._above()
        return self.known_before


def cleaned_line(raw: bytes) -> str:
    """Return one line without colours, control characters, log prefixes and JSON's wrapping.

    It stays one line, so that lines can be counted on both sides.
    """
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text))
    found = _JSON_LINE.search(text) if "\\" in text or text.startswith("{") else None
    if found:
        text = text[found.end() :]
    if "\\" in text:
        text = _ESCAPED.sub(_unescaped, text)
    for _ in range(_MAX_PREFIXES):
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
