"""Parts of a log, cleaned of what loggers and terminals add to its lines."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
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
# A longer line is cut on both sides of what was looked for in it.
_MAX_FAR_LINE_LENGTH = 4 << 10
_JSON_LINE = re.compile(r'"(?:log|message|msg|text|error|MESSAGE)"\s*:\s*"')
_ESCAPED = re.compile(r'\\(?:["\\/]|[bfnrt]|u[0-9a-fA-F]{4})')


class Passage:
    """A part of a log. ``text`` begins with the line that may have a message, which ends at ``line_ends``.

    ``head`` is that line, and as much more as the beginning of a message may need where it was wrapped.
    ``before`` is the log above. It is put together only where a dialect looks there.
    """

    def __init__(
        self,
        head: str,
        text: str,
        above: Callable[[], str],
        lines_with: Callable[[tuple[bytes, ...]], str],
    ) -> None:
        self.head, self.text = head, text
        end = text.find("\n")
        self.line_ends = len(text) if end < 0 else end
        self._above, self._lines_with = above, lines_with
        self.known_before: str | None = None
        self.known_lines: dict[tuple[bytes, ...], str] = {}

    @property
    def before(self) -> str:
        if self.known_before is None:
            self.known_before = self._above()
        return self.known_before

    def lines_with(self, words: tuple[bytes, ...]) -> str:
        """The lines above that have one of *words*, the oldest first: from further away than ``before``."""
        if words not in self.known_lines:
            self.known_lines[words] = self._lines_with(words)
        return self.known_lines[words]

    def close(self) -> None:
        """Keep no way to the log: from now on this passage says only what was asked of it before."""
        self._above = self._lines_with = _nothing_more

    def says_the_same_as(self, other: Passage) -> bool:
        """Whether *other* answers everything alike that was asked of this one."""
        return (
            self.text == other.text
            and (self.known_before is None or self.known_before == other.before)
            and all(lines == other.lines_with(words) for words, lines in self.known_lines.items())
        )


def _nothing_more(*asked: object) -> str:
    raise AssertionError(f"a passage that is remembered was asked for more: {asked}")


def clean_line(raw: bytes) -> str:
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
        text = _ESCAPED.sub(_unescape, text)
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text)
        if not match:
            break
        text = text[match.end() :]
    return text


def _unescape(found: re.Match[str]) -> str:
    word = found.group()
    if word[1] == "u":
        char = chr(int(word[2:], 16))
        return char if char.isprintable() else " "
    return word[1] if word[1] in '"\\/' else " "


class Lines:
    """Cleaned lines of *log*, found by their offsets. A line ends at a line feed, a carriage return or both.

    Lines that follow each other are kept; where another one is asked for, keeping begins anew there.
    """

    def __init__(self, log: bytes) -> None:
        self._log = log
        self._has_returns = b"\r" in log
        self._starts: list[int] = []
        self._texts: list[str] = []  # each with a line feed at its end
        self._following = 0  # where the line after the last one begins
        # By words: the lines of the log that have one of them.
        self._lines_with: dict[tuple[bytes, ...], tuple[list[int], list[str]]] = {}

    def text(self, begin: int, limit: int) -> str:
        """The lines from *begin* on that end before *limit*; one that does not end is cut there."""
        at = self._index(begin)
        while self._add_line(limit):
            pass
        end = bisect_right(self._starts, limit)
        if end > at and self._end_of(end - 1) > limit:
            end -= 1
        return "".join(self._texts[at:end]) or self._cut(begin, limit)

    def head(self, begin: int, limit: int, nchars: int) -> str:
        """The line at *begin* and so many characters more, before *limit*."""
        end = at = self._index(begin)
        length = 0
        while end < len(self._texts) or self._add_line(limit):
            length += len(self._texts[end])
            end += 1
            if end == at + 1:
                nchars += length
            if length >= nchars:
                break
        return "".join(self._texts[at:end])[:nchars] or self._cut(begin, limit)

    def above(self, begin: int, nbytes: int) -> str:
        """The lines above *begin*, as far as they are whole within so many bytes."""
        first = begin - nbytes
        first = 0 if first < 0 else min(begin, self._line_end(first, begin)[1])
        if self._starts and first < self._starts[0]:
            self._keep_from(first)
        return self.text(first, begin)

    def above_with(self, begin: int, nbytes: int, words: tuple[bytes, ...], most: int) -> str:
        """The last *most* lines above *begin*, within so many bytes, that have one of *words*."""
        if words not in self._lines_with:
            self._lines_with[words] = self._find_lines(words)
        starts, texts = self._lines_with[words]
        end = bisect_left(starts, begin)
        # Strictly: at the very edge the line may have begun further above.
        first = max(bisect_right(starts, begin - nbytes), end - most)
        for at in range(first, end):
            if not texts[at]:
                limit = min(begin, starts[at] + 2 * _MAX_FAR_LINE_LENGTH)
                texts[at] = clean_line(self._log[starts[at] : self._line_end(starts[at], limit)[0]]) + "\n"
        return "".join(texts[first:end])

    def _find_lines(self, words: tuple[bytes, ...]) -> tuple[list[int], list[str]]:
        """Where the lines begin that have one of *words*, and room for what each says."""
        starts: set[int] = set()
        for word in words:
            at = self._log.find(word)
            while at >= 0:
                starts.add(self.start_of_line(at, max(0, at - _MAX_FAR_LINE_LENGTH)))
                at = self._log.find(word, at + len(word))
        return sorted(starts), [""] * len(starts)

    def offset_after(self, begin: int, count: int, limit: int) -> int:
        """Where the line begins that is *count* lines after the one at *begin*; at most *limit*."""
        at = self._index(begin) + count
        while at > len(self._starts) and self._add_line(limit):
            pass
        return min(limit, len(self._log), self._starts[at] if at < len(self._starts) else self._following)

    def start_of_line(self, at: int, first: int) -> int:
        """Where the line of *at* begins, and *first* where it begins before that."""
        start = max(first, self._log.rfind(b"\n", first, at) + 1)
        return max(start, self._log.rfind(b"\r", start, at) + 1) if self._has_returns else start

    def _index(self, begin: int) -> int:
        """The place in the list of the line that begins at *begin*: one of it, or right behind it."""
        at = bisect_left(self._starts, begin)
        known = self._starts[at] if at < len(self._starts) else self._following
        if known != begin:
            self._starts, self._texts, self._following, at = [], [], begin, 0
        return at

    def _keep_from(self, first: int) -> None:
        """Keep the lines from *first* on, too: messages further on need some of them."""
        older = Lines(self._log)
        older._following = first
        while older._add_line(self._starts[0]):
            pass
        if older._following == self._starts[0]:
            self._starts[:0] = older._starts
            self._texts[:0] = older._texts

    def _end_of(self, at: int) -> int:
        return self._starts[at + 1] if at + 1 < len(self._starts) else self._following

    def _add_line(self, limit: int) -> bool:
        """Clean the line after the last one; False where it does not end before *limit*."""
        begin = self._following
        if begin >= limit or begin >= len(self._log):
            return False
        # Nearly every line ends in a line feed alone: the rest costs as much again.
        end = -1 if self._has_returns else self._log.find(b"\n", begin, limit)
        following = end + 1
        if end < 0:
            end, following = self._line_end(begin, limit)
        if following > limit:
            return False
        self._starts.append(begin)
        self._texts.append(clean_line(self._log[begin:end]) + "\n")
        self._following = following
        return True

    def _cut(self, begin: int, limit: int) -> str:
        return clean_line(self._log[begin:limit])

    def _line_end(self, begin: int, limit: int) -> tuple[int, int]:
        """Where the line from *begin* ends, and where the next begins: beyond *limit* where it has no end."""
        stop = min(limit, len(self._log))
        end = self._log.find(b"\n", begin, stop)
        if self._has_returns:
            carriage_return = self._log.find(b"\r", begin, stop if end < 0 else end)
            if carriage_return >= 0:
                pair = self._log[carriage_return : carriage_return + 2] == b"\r\n"
                return carriage_return, carriage_return + 1 + pair
        if end >= 0:
            return end, end + 1
        return (stop, stop) if stop < limit else (limit, limit + 1)
