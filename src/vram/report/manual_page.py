"""Manual pages, which are docstrings, in lines that fit: paragraphs and list items are set anew."""

from __future__ import annotations

from textwrap import wrap

from vram.report.look import Look


def manual_page(text: str, look: Look) -> str:
    """*text* for *look*; headings and code stay as they are written."""
    return "\n\n".join(_block(block, look) for block in text.rstrip().split("\n\n")) + "\n"


def listing(names: tuple[tuple[str, str], ...], look: Look) -> str:
    """A line for each name with its summary, which goes on under itself where it is long."""
    width = 2 + max(len(name) for name, _ in names) + 2
    lines = (f"{f'  {name}':<{width}}{summary}" for name, summary in names)
    return "".join(f"{part}\n" for line in lines for part in _folded(look.clean(line), width, look))


def _block(block: str, look: Look) -> str:
    lines = [look.clean(line) for line in block.split("\n")]
    head = 2 if len(lines) > 1 and lines[1] and not lines[1].strip("-") else 0
    if lines[head:] and lines[head].startswith("    "):  # code
        return "\n".join(lines)
    fitted = (line for part in _parts(lines[head:]) for line in part.fitted(look))
    return "\n".join([*lines[:head], *fitted])


class _Part:
    """One paragraph or one item of a list; its further lines stand under its words."""

    def __init__(self, first: str) -> None:
        self.indent = len(first) - len(first.lstrip(" -"))
        self.words = [first]

    def fitted(self, look: Look) -> list[str]:
        return _folded(" ".join(self.words), self.indent, look)


def _parts(lines: list[str]) -> list[_Part]:
    parts: list[_Part] = []
    for line in lines:
        if not parts or line.lstrip().startswith("- "):
            parts.append(_Part(line))
        else:
            parts[-1].words.append(line.strip())
    return parts


def _folded(text: str, indent: int, look: Look) -> list[str]:
    start = text[:indent]
    body = wrap(
        text[indent:],
        look.measure,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [start + body[0][indent:], *body[1:]] if body else [start.rstrip()]
