"""What to do: remedies of all findings, least harm first, with commands that can be pasted."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent as indented
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from vram.model.finding import Finding, Harm, Remedy
from vram.report.layout import RenderOptions, paragraph

HARMS: dict[Harm, str] = {
    "none": "does no harm",
    "interrupts": "interrupts what runs",
    "loses-work": "loses work that was not saved",
    "affects-others": "affects others too",
}


class RankedRemedy(NamedTuple):
    """A remedy, whom it is for where no command says so, and the findings it answers."""

    remedy: Remedy
    pids: list[int]
    codes: list[str]


def ordered(findings: tuple[Finding, ...]) -> list[RankedRemedy]:
    """Return each remedy once, least harmful first."""
    ranked: dict[tuple[str, str], RankedRemedy] = {}
    for finding in findings:
        for remedy in finding.remedies:
            # The command says what happens; without one, the same words for two targets are one entry.
            key = (remedy.command, "") if remedy.command else ("", remedy.text)
            entry = ranked.setdefault(key, RankedRemedy(remedy, [], []))
            entry.pids.extend(pid for pid in remedy.pids if pid not in entry.pids)
            if finding.code not in entry.codes:
                entry.codes.append(finding.code)
    ranks = list(HARMS)
    return sorted(ranked.values(), key=lambda entry: ranks.index(entry.remedy.harm))


def advice(findings: tuple[Finding, ...], options: RenderOptions) -> Iterator[RenderableType]:
    """Return the section, or nothing where nothing needs doing."""
    ranked = ordered(findings)
    if not ranked:
        return
    yield Text()
    yield Text("What to do, least harm first", style="bold")
    harm = None
    for number, entry in enumerate(ranked, 1):
        if entry.remedy.harm != harm:
            harm = entry.remedy.harm
            yield Text(f"  {HARMS[harm]}", style="dim")
        mark = f"{number:>{len(str(len(ranked)))}}. "
        yield paragraph(mark, _words(entry, options), options, indent=2)
        if entry.remedy.command:
            yield _command(entry.remedy.command, len(mark) + 2, options)


def _words(entry: RankedRemedy, options: RenderOptions) -> Text:
    pids = [f"pid {', '.join(map(str, entry.pids))}"] if entry.pids else []
    notes = entry.codes if entry.remedy.command else [*entry.codes, *pids]
    return Text(options.clean(entry.remedy.text)).append(options.clean(f"  {', '.join(notes)}"), style="dim")


def _command(command: str, indent: int, options: RenderOptions) -> RenderableType:
    lines = indented(pasteable(options.clean(command), options.width - indent), " " * indent)
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
