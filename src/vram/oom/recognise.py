"""A part of a log: cleaned of what loggers add to its lines, then read by the first dialect that knows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from msgspec.structs import replace

from vram.model.oom import OomReading
from vram.oom.dialects import Dialect, array_libraries, cuda, host, pytorch, serving, tensorflow_jax

# The particular before the general: CUDA's own words are part of many other messages.
DIALECTS: tuple[Dialect, ...] = (
    pytorch.mps,
    pytorch.driver_pool,
    pytorch.allocator,
    pytorch.triton,
    serving.vllm,
    serving.llama_cpp,
    array_libraries.cupy,
    tensorflow_jax.xla,
    tensorflow_jax.tensorflow,
    tensorflow_jax.bfc,
    array_libraries.rmm,
    array_libraries.numba,
    array_libraries.pycuda,
    cuda.nccl,
    cuda.libraries,
    serving.tensorrt,
    cuda.bar1,
    host.host,
    cuda.cuda,
    cuda.sticky_error,
)
_DECODED_NEEDLES = tuple((dialect, tuple(map(bytes.decode, dialect.needles))) for dialect in DIALECTS)
_LONGEST_EXCERPT = 900
_LONGEST_LEAD = 160

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
_MOST_PREFIXES = 5
# How far the beginning of a message may reach beyond its first line: terminals wrap.
_WRAPPED_NBYTES = 400
_JSON_LINE = re.compile(r'"(?:log|message|msg|text|error|MESSAGE)"\s*:\s*"')
_ESCAPED = re.compile(r'\\(?:["\\/]|[bfnrt]|u[0-9a-fA-F]{4})')


class Passage:
    """The log around a hit. ``text`` begins with the line of the hit, which ends at ``line_ends`` in it.

    A line stays one line when it is cleaned, so that lines can be counted on both sides. Only the
    ``head``, that line and a little more, is cleaned at once: most hits turn out to be nothing. ``words``
    are the same on one line.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        ends = [at for at in (after.find(b"\n"), after.find(b"\r")) if at >= 0]
        self.head = cleaned(after[: (min(ends) if ends else len(after)) + _WRAPPED_NBYTES])
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


# Passages of neighbouring hits overlap: where messages are close together, a line is cleaned a hundred times.
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


def recognise(passage: Passage) -> Iterator[tuple[OomReading, int]]:
    """Yield what messages that begin in the first line of *passage* say, and where in its text each ends."""
    at = 0
    while at <= passage.line_ends:
        known = _first(passage, at)
        if known is None:
            return
        reading, begin, end = known
        line = passage.text.rfind("\n", 0, begin) + 1
        words = passage.text[
            line if begin - line < _LONGEST_LEAD else begin : min(end, begin + _LONGEST_EXCERPT)
        ]
        yield replace(reading, excerpt=" ".join(words.split())), end
        at = max(end, at + 1)


def _first(passage: Passage, at: int) -> tuple[OomReading, int, int] | None:
    for dialect, needles in _DECODED_NEEDLES:
        if not any(needle in passage.words for needle in needles):
            continue
        if not dialect.start.search(passage.head, at):
            continue
        found = dialect.start.search(passage.text, at)
        while found and found.start() <= passage.line_ends:
            known = dialect.read(found, passage.text, passage.before)
            if known:
                return known[0], found.start(), max(known[1], found.end())
            found = dialect.start.search(passage.text, found.end())
    return None
