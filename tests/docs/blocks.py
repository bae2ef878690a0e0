"""The fenced blocks of a page, and what the comments right above one say is done with it:

<!-- file NAME -->          it is put into a file of that name
<!-- run -->                it is played in a shell. A command behind each `$ `, and below it what it prints,
                            where `…` stands for any text; without any `$ ` all of it is commands, and
                            what they print is not compared
<!-- before: COMMAND -->    runs in that shell first, and is not shown to readers: what the block looks at
<!-- not run: REASON -->    it is not run, since it needs what no test machine has
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NOTES = re.compile(r"(?: *<!-- [^\n]* -->\n)+\Z")
_NOTE = re.compile(r"<!-- (file|run|before:|not run:) ?(.*?) ?-->")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    notes: tuple[tuple[str, str], ...]

    def note(self, name: str) -> str | None:
        """What follows *name* in the comments above; None where it is not there."""
        return next((words for found, words in self.notes if found == name), None)

    @property
    def before(self) -> list[str]:
        return [words for found, words in self.notes if found == "before:"]

    @property
    def has_prompts(self) -> bool:
        return re.search(r"^\$ ", self.text, re.MULTILINE) is not None


def blocks(text: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(text):
        above = _NOTES.search(text, 0, fence.start())
        notes = tuple(_NOTE.findall(above[0])) if above else ()
        indent = len(fence[1])
        body = "".join(line[indent:] for line in fence[3].splitlines(keepends=True))
        yield Block(fence[2], body, text.count("\n", 0, fence.start()) + 1, notes)
