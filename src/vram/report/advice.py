"""What to do: remedies of all findings, least harm first, with commands that can be pasted."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
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
_INDENT = 5


def ordered(findings: tuple[Finding, ...]) -> list[tuple[Remedy, list[str]]]:
    """Return each remedy once, with the codes it answers, least harmful first."""
    codes: dict[tuple[str, ...], list[str]] = {}
    remedies: dict[tuple[str, ...], Remedy] = {}
    for finding in findings:
        for remedy in finding.remedies:
            key = (remedy.command,) if remedy.command else (remedy.step, remedy.target, remedy.text)
            remedies.setdefault(key, remedy)
            answered = codes.setdefault(key, [])
            if finding.code not in answered:
                answered.append(finding.code)
    ranks = list(HARMS)
    return sorted(
        ((remedies[key], codes[key]) for key in remedies), key=lambda pair: ranks.index(pair[0].harm)
    )


def advice(findings: tuple[Finding, ...], look: Look) -> Iterator[RenderableType]:
    """Return the section, or nothing where nothing needs doing."""
    steps = ordered(findings)
    if not steps:
        return
    yield Text()
    yield Text("What to do, least harm first", style="bold")
    harm = None
    for number, (remedy, codes) in enumerate(steps, 1):
        if remedy.harm != harm:
            harm = remedy.harm
            yield Text(f"  {HARMS[harm]}", style="dim")
        words = Text(look.clean(remedy.text)).append(f"  {' '.join(codes)}", style="dim")
        yield paragraph(f"{number}. ", words, look, indent=2)
        if remedy.command:
            yield _command(remedy.command, look)


def _command(command: str, look: Look) -> RenderableType:
    lines = pasteable(look.clean(command), look.width - _INDENT)
    return Padding(Text(lines, style="bold", no_wrap=True, overflow="ignore"), (0, 0, 0, _INDENT))


def pasteable(command: str, width: int) -> str:
    """Break *command* between words with backslashes where it is wider than *width*."""
    lines, line = [], ""
    for word in _words(command):
        if line and len(line) + 1 + len(word) + 2 > width:
            lines.append(line + " \\")
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def _words(command: str) -> Iterator[str]:
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
