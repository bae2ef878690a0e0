"""What to do: remedies of all findings, least harm first, with commands that can be pasted."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent as indented
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from vram.model.finding import Finding, Harm, Remedy
from vram.report.look import Look
from vram.report.paragraph import paragraph

HARMS: dict[Harm, str] = {
    "none": "does no harm",
    "interrupts": "interrupts what runs",
    "loses-work": "loses work that was not saved",
    "affects-others": "affects others too",
}


class Way(NamedTuple):
    """One way out, whom it is for where no command says so, and the findings it answers."""

    remedy: Remedy
    pids: list[int]
    codes: list[str]


def ordered(findings: tuple[Finding, ...]) -> list[Way]:
    """Return each way out once, least harmful first."""
    ways: dict[tuple[str, str], Way] = {}
    for finding in findings:
        for remedy in finding.remedies:
            # The command says what happens; without one, the same words for two targets are one way.
            key = (remedy.command, "") if remedy.command else ("", remedy.text)
            way = ways.setdefault(key, Way(remedy, [], []))
            way.pids.extend(pid for pid in remedy.pids if pid not in way.pids)
            if finding.code not in way.codes:
                way.codes.append(finding.code)
    ranks = list(HARMS)
    return sorted(ways.values(), key=lambda way: ranks.index(way.remedy.harm))


def advice(findings: tuple[Finding, ...], look: Look) -> Iterator[RenderableType]:
    """Return the section, or nothing where nothing needs doing."""
    ways = ordered(findings)
    if not ways:
        return
    yield Text()
    yield Text("What to do, least harm first", style="bold")
    harm = None
    for number, way in enumerate(ways, 1):
        if way.remedy.harm != harm:
            harm = way.remedy.harm
            yield Text(f"  {HARMS[harm]}", style="dim")
        mark = f"{number:>{len(str(len(ways)))}}. "
        yield paragraph(mark, _words(way, look), look, indent=2)
        if way.remedy.command:
            yield _command(way.remedy.command, len(mark) + 2, look)


def _words(way: Way, look: Look) -> Text:
    pids = [f"pid {', '.join(map(str, way.pids))}"] if way.pids else []
    notes = way.codes if way.remedy.command else [*way.codes, *pids]
    return Text(look.clean(way.remedy.text)).append(look.clean(f"  {', '.join(notes)}"), style="dim")


def _command(command: str, indent: int, look: Look) -> RenderableType:
    lines = indented(pasteable(look.clean(command), look.width - indent), " " * indent)
    # No padding: it would cut off a word that is longer than the line.
    return Text(lines, style="bold", no_wrap=True, overflow="ignore")


def pasteable(command: str, width: int) -> str:
    """Break *command* between words with backslashes where it is wider than *width*."""
    lines, line = [], ""
    for word in _shell_words(command):
        if line and len(line) + 1 + len(word) + 2 > width:
            lines.append(line + " \\")
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def _shell_words(command: str) -> Iterator[str]:
    """Split at blanks outside quotes, keeping the quotes: the shell must read the same words."""
    word, quote, escaped = "", "", False
    for char in command:
        if char == " " and not quote and not escaped:
            if word:
                yield word
            word = ""
            continue
        word += char
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    if word:
        yield word
