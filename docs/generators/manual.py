"""Manual pages: the pages of the command reference, which are Markdown, as roff.

Only what those pages have is understood: headings, paragraphs, items, blocks that stay as they are, and
tables of two columns, which become terms with their meanings. The standard library is enough, so that every
build of the wheel can write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import vram
from generators.commands import manual_sources

# groff turns these into typographic characters, or takes them for its own.
ESCAPES = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
# The title of a page, and the heads of its tables.
LEFT_OUT = re.compile(r"^# .*\n|^\|.*\n\|---.*\n", re.MULTILINE)
HEADING = re.compile(r"(##+) (.+)")
CELLS = re.compile(r"(?<!\\)\|")
# A section begins with a paragraph anyway.
SECTION = re.compile(r"^(\.S[HS] .*\n)\.PP\n", re.MULTILINE)
INLINE = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")
MARKS = re.compile(r"^(`|\*\*)|(`|\*\*)$")


def pages() -> Iterator[tuple[str, str]]:
    """Each manual page: its name and its text."""
    for name, summary, markdown in manual_sources():
        what = summary[:1].lower() + summary[1:].rstrip(".")
        lines = [
            f'.TH "{_text(name.upper())}" "1" "" "vram {_text(vram.__version__)}" "User Commands"',
            f".SH NAME\n{_text(name)} \\- {_inline(what)}",
            *_body(LEFT_OUT.sub("", markdown)),
        ]
        yield name, SECTION.sub(r"\1", "\n".join(lines) + "\n")


def _body(markdown: str) -> Iterator[str]:
    lines = iter(markdown.splitlines())
    for line in lines:
        if line == "```text":
            yield ".PP\n.RS 4\n.EX"
            yield from (_shown(_text(each)) for each in iter(lambda: next(lines), "```"))
            yield ".EE\n.RE"
        elif heading := HEADING.fullmatch(line):
            yield f".SH {_text(heading[2].upper())}" if heading[1] == "##" else f".SS {_text(heading[2])}"
        elif line.startswith("| "):
            name, meaning = (cell.strip().replace("\\|", "|") for cell in CELLS.split(line)[1:3])
            yield f".TP\n{_shown(_inline(name))}\n{_shown(_inline(meaning))}"
        elif line.startswith("- "):
            yield f".IP \\(bu 2\n{_shown(_inline(line[2:]))}"
        elif line:
            yield f".PP\n{_shown(_inline(line))}"


def _shown(line: str) -> str:
    """One that begins as a request of roff does is shown all the same."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _inline(text: str) -> str:
    """Text with what stands in backquotes or between stars in bold."""
    parts = INLINE.split(text)
    parts[::2] = map(_text, parts[::2])
    parts[1::2] = [f"\\fB{_text(MARKS.sub('', part))}\\fP" for part in parts[1::2]]
    return "".join(parts)


def _text(text: str) -> str:
    shown = "".join(ESCAPES.get(letter, letter) for letter in text)
    return re.sub(r"[^\x00-\x7f]", lambda letter: f"\\[u{ord(letter[0]):04X}]", shown)
