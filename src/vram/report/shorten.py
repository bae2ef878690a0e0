"""Long command lines, shortened in the middle: the program and its last words stay."""

from __future__ import annotations

from rich.cells import cell_len


def shorten(text: str, width: int, *, mark: str = "…") -> str:
    """Return *text* in at most *width* terminal cells, its middle replaced by *mark*."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(mark)
    if room <= 0:
        return _head(text, width)
    head = _head(text, (room * 3 + 3) // 5)
    return head + mark + _tail(text, room - cell_len(head))


def _head(text: str, width: int) -> str:
    end, used = 0, 0
    while end < len(text) and used + cell_len(text[end]) <= width:
        used += cell_len(text[end])
        end += 1
    return text[:end]


def _tail(text: str, width: int) -> str:
    return _head(text[::-1], width)[::-1]
