"""``vram why PID`` in one screen: what it holds, what to do, its family, and how we know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.finding import Finding
from vram.model.ledger import Entry, Holder, Ledger, known_bytes
from vram.report.layout import SEVERITIES, RenderOptions, label
from vram.report.phrases import command, identity, sharing
from vram.report.text import HARMS, gpu_range, masthead, open_words, ordered
from vram.units import size

HEIGHT = 24
"""Lines of the page, whatever a process holds; `vram why PID -v` has everything."""
_MAX_FINDINGS = 2
_MAX_REMEDIES = 4
_MAX_FAMILY = 4


def process_page(
    ledger: Ledger,
    pid: int,
    findings: tuple[Finding, ...],
    notes: tuple[str, ...],
    family: Sequence[Text],
    options: RenderOptions,
    job: str = "",
) -> RenderableType:
    """Return what concerns *pid*, of a ledger that was narrowed to it, in at most HEIGHT lines.

    *family* has one line for each process that it belongs to, *job* says what it was launched as a part of.
    """
    lines = [_line(masthead(ledger, options).plain, options, "dim")]
    lines += _verdict(ledger, pid, findings, job, options)
    lines += _what_to_do(findings, pid, options)
    if family:
        lines += [Text(), Text("Its family", style="bold"), *_first(family, _MAX_FAMILY, "vram who")]
    reasons = dict.fromkeys((*notes, *(reason for entry in _entries(ledger) for reason in entry.evidence)))
    evidence = [
        Text(f"  {line}", style="dim")
        for reason in reasons
        for line in wrap(options.clean(f"- {reason}"), options.measure - 2, subsequent_indent="  ")
    ]
    if evidence:
        room = HEIGHT - len(lines) - 2
        lines += [Text(), Text("How we know", style="bold"), *_first(evidence, room, _everything(pid))]
    return Group(*lines)


def _everything(pid: int) -> str:
    return f"vram why {pid} -v"


def _line(text: str, options: RenderOptions, style: str = "") -> Text:
    return Text(options.short(text, options.width), style=style, no_wrap=True, overflow="ignore")


def _first(lines: Sequence[Text], count: int, where: str) -> list[Text]:
    """The first lines, and where the others are where these are more than *count*."""
    if len(lines) <= count:
        return list(lines)
    more = len(lines) - count + 1
    return [*lines[: count - 1], Text(f"  +{more} lines: {where}", style="dim")]


def _entries(ledger: Ledger) -> list[Entry]:
    return [
        entry for gpu in ledger.gpus for entry in (*gpu.entries, *(gpu.system.entries if gpu.system else ()))
    ]


# ---- the verdict ----


def _verdict(
    ledger: Ledger, pid: int, findings: Sequence[Finding], job: str, options: RenderOptions
) -> Iterator[Text]:
    known = _holder(ledger, pid)
    yield _line(_who(known, pid), options, "bold")
    entries = _entries(ledger)
    if entries:
        is_dead = known is None or (known.visible and not known.alive)
        verb = "left behind:" if is_dead else "holds"
        yield _line(f"  {verb} {_amounts(ledger, entries)}", options)
    if job:
        yield _line(f"  {job}", options)
    shared = next((words for entry in entries if (words := sharing(entry))), "")
    if shared:
        yield _line(f"  {shared}", options, "yellow")
    yield from (_line(f"  {words}", options) for words in open_words(ledger))
    for finding in findings[:_MAX_FINDINGS]:  # the worst first
        mark, style = options.mark(SEVERITIES[finding.severity])
        code = f"  {finding.code}"
        line = Text(no_wrap=True, overflow="ignore").append(f"{mark} ", style=style)
        line.append(options.short(finding.title, options.width - 2 - len(code)), style="bold")
        yield line.append(code, style="dim")


def _who(known: Holder | None, pid: int) -> str:
    return f"pid {pid} · dead" if known is None else " · ".join((*identity(known), command(known)))


def _holder(ledger: Ledger, pid: int) -> Holder | None:
    """The process with *pid*; None where it is dead, and others hold what it left."""
    holders = (holder for entry in _entries(ledger) for holder in entry.holders)
    opened = (each.holder for gpu in ledger.gpus for each in gpu.open_only)
    return next((holder for holder in (*holders, *opened) if holder.pid == pid), None)


def _amounts(ledger: Ledger, entries: Sequence[Entry]) -> str:
    """How much on which GPUs, and what it is: 41.5 GiB on GPU 0: 41.0 GiB live, 518.0 MiB context."""
    by_kind: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: -(entry.nbytes or 0)):
        by_kind.setdefault(label(entry.kind), []).append(entry)
    parts = [f"{_sum(each)} {kind}" for kind, each in by_kind.items()]
    places = gpu_range([gpu.index for gpu in ledger.gpus if gpu.entries or gpu.system])
    if len(parts) == 1:
        return f"{parts[0]} on {places}"
    return f"{_sum(entries)} on {places}: {', '.join(parts)}"


def _sum(entries: Sequence[Entry]) -> str:
    return "unknown size" if any(entry.nbytes is None for entry in entries) else size(known_bytes(entries))


# ---- what to do ----


def _what_to_do(findings: tuple[Finding, ...], pid: int, options: RenderOptions) -> Iterator[Text]:
    """One line for each remedy, its command first: that is never cut."""
    remedies = [entry.remedy for entry in ordered(findings)]
    # What can be done now comes before advice.
    remedies.sort(key=lambda remedy: not remedy.command)
    if not remedies:
        return
    yield Text()
    yield Text("What to do, least harm first", style="bold")
    width = max(len(remedy.command or "") for remedy in remedies)
    lines = []
    for remedy in remedies:
        line = Text("  ", no_wrap=True, overflow="ignore")
        if remedy.command:
            line.append(options.clean(remedy.command), style="bold").append("  ")
            if width <= options.width // 2:
                line.pad_right(width + 4 - line.cell_len)
        room = options.width - line.cell_len
        if not remedy.command or cell_len(remedy.text) <= room or not options.cut:
            line.append(options.short(remedy.text, room), style="dim" if remedy.command else "")
        elif len(HARMS[remedy.harm]) <= room:  # what it costs is what one has to know before
            line.append(HARMS[remedy.harm], style="dim")
        line.rstrip()
        lines.append(line)
    yield from _first(lines, _MAX_REMEDIES, _everything(pid))
