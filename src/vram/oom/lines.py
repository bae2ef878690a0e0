"""The lines of a part of a log: each is cleaned once, however many messages are near it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from vram.oom.passage import cleaned_line


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
        self._texts.append(cleaned_line(self._log[begin:end]) + "\n")
        self._following = following
        return True

    def _cut(self, begin: int, limit: int) -> str:
        return cleaned_line(self._log[begin:limit])

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
