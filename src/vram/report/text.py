"""``vram why -v`` and ``vram why PID``: every byte with its evidence, then the causes, then what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import indent as indented
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.finding import Finding, Harm, Remedy
from vram.model.ledger import GpuLedger, Ledger, OpenOnly, known_bytes
from vram.report.entries import divided_tables, drawn_kinds, entries_table, part_table
from vram.report.layout import SEVERITIES, RenderOptions, paragraph
from vram.report.phrases import command, gpu_label, identity, memory_figures, one_line, parked_process
from vram.report.process_table import ranges
from vram.units import counted, size

# A reader cannot use thousands of lines that are alike; JSON and `vram who` have them all.
_MAX_OPEN_ONLY = 32
_MAX_EVIDENCE = 32
# A node with 500 healthy workers has 500 findings that say so. JSON has them all.
_MAX_ALIKE = {"problem": 12, "warning": 6, "info": 3}


def why(ledger: Ledger, findings: tuple[Finding, ...], options: RenderOptions) -> RenderableType:
    """Return the whole account, which sums to the byte."""
    blocks: list[RenderableType] = [masthead(ledger, options)]
    for gpu in ledger.gpus:
        blocks += [Text(), *_gpu(gpu, options)]
    if not ledger.gpus:
        blocks += [Text(), Text("No GPU was found.")]
    blocks += _parked(ledger, options)
    blocks += _unseen(ledger, options)
    shown, left_out = _select(findings)
    blocks += _causes(shown, _evidence_shown(ledger), options)
    blocks += _left_out(left_out, options)
    # What is in order needs no remedy; `vram why PID` says what can be done all the same.
    blocks += advice(tuple(finding for finding in shown if finding.severity != "info"), options)
    return Group(*blocks)


def process(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    notes: tuple[str, ...],
    family: Sequence[Text],
    inside: Sequence[RenderableType],
    options: RenderOptions,
) -> RenderableType:
    """Return what concerns one process, of a ledger that was narrowed to it.

    *family* are the lines of the processes that it belongs to, *inside* what it answered about its arrays.
    """
    blocks = process_blocks(ledger, findings, options, notes=notes, family=family, inside=inside)
    return Group(masthead(ledger, options), *blocks)


def process_blocks(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    options: RenderOptions,
    *,
    notes: tuple[str, ...] = (),
    family: Sequence[Text] = (),
    inside: Sequence[RenderableType] = (),
) -> list[RenderableType]:
    """The same, block by block, without where and when it was read."""
    blocks: list[RenderableType] = []
    for gpu in filter(_has_entries, ledger.gpus):
        entries = (*gpu.entries, *(gpu.system.entries if gpu.system else ()))
        blocks += [Text(), Text(f"{gpu_label(gpu)}  {options.clean(gpu.name)}", style="bold")]
        blocks.append(part_table(entries, gpu.total_bytes, options))
    blocks += [paragraph("", words, options) for words in open_words(ledger)]
    blocks += [paragraph("note: ", note, options, indent=2) for note in notes]
    if inside:
        blocks += [Text(), *inside]
    if family:
        blocks += [Text(), Text("Its family", style="bold"), *family]
    blocks += _causes(findings, _evidence_shown(ledger), options, full=True)
    blocks += advice(findings, options)
    return blocks


def open_words(ledger: Ledger) -> Iterator[str]:
    """What a process has open without holding memory there, of a ledger that was narrowed to it."""
    idle = [gpu for gpu in ledger.gpus if not _has_entries(gpu)]
    if idle:
        also = "also has" if len(idle) < len(ledger.gpus) else "has"
        yield f"{also} {gpu_range([gpu.index for gpu in idle])} open, holds nothing there"
    exported = sum(each.exported_bytes or 0 for gpu in ledger.gpus for each in gpu.open_only)
    if exported:
        yield f"has a handle on {size(exported)} that is charged to the process that allocated it"


def gpu_range(numbers: Sequence[int]) -> str:
    """Return "GPU 0", or "GPUs 1–7"."""
    return f"GPU{'s' if len(numbers) > 1 else ''} {ranges(numbers).replace('-', '–')}"


def _has_entries(gpu: GpuLedger) -> bool:
    return bool(gpu.entries or gpu.system)


def _evidence_shown(ledger: Ledger) -> set[str]:
    """What the tables have said already; the causes need not say it again."""
    return {reason for gpu in ledger.gpus for entry in gpu.entries for reason in entry.evidence}


def masthead(ledger: Ledger, options: RenderOptions) -> Text:
    """Return where and when this was seen, and through which driver."""
    parts = [ledger.host.name, ledger.taken_at]
    if ledger.driver and ledger.driver.driver_version:
        parts.append(f"driver {ledger.driver.driver_version}")
    if ledger.host.wsl_facts is not None:
        parts.append(f"WSL{ledger.host.wsl_facts.version}")
    parts += _kernel_drivers(ledger)
    if ledger.host.virtual:
        parts.append("virtual GPUs, no real hardware")
    line = options.clean(" · ".join(parts))
    return Text(line, style="dim", overflow="fold")


def _kernel_drivers(ledger: Ledger) -> list[str]:
    """The drivers of other vendors: with a version where they have one, else with the kernel's."""
    found = {gpu.driver: gpu.facts for gpu in ledger.gpus if gpu.facts and gpu.driver != "nvidia"}
    own = [f"{name} {facts.driver_version}" for name, facts in found.items() if facts.driver_version]
    plain = ", ".join(name for name, facts in found.items() if not facts.driver_version)
    return own + ([f"{plain} of Linux {ledger.host.kernel}"] if plain else [])


def _gpu(gpu: GpuLedger, options: RenderOptions) -> Iterator[RenderableType]:
    yield from _heading(gpu, options)
    if gpu.status != "ok":
        reason = options.clean(gpu.message or "the driver did not answer for this GPU")
        yield paragraph("  ", Text(f"{gpu.status}: {reason}", style="bold red"), options)
    if gpu.total_bytes:
        yield _bar(gpu, options)
        yield Text()
    if gpu.instances and gpu.mig is None:
        yield from divided_tables(gpu, options)
    elif gpu.total_bytes or gpu.entries:
        yield entries_table(gpu.entries, gpu.total_bytes, options)
    for note in gpu.notes:
        yield paragraph("note: ", note.text, options, indent=2)
    if gpu.outside:
        yield Text("  outside of the limit, and in no sum here:", style="dim")
        yield part_table(gpu.outside, None, options)
    yield from _system(gpu, options)
    yield from _open_only(gpu.open_only, options)


def _system(gpu: GpuLedger, options: RenderOptions) -> Iterator[RenderableType]:
    """The machine's own memory: all that an integrated GPU has, and beside the total of others."""
    system = gpu.system
    if system is None:
        return
    used = known_bytes(system.entries)
    words = f"{size(used)} of the machine's memory" + (", beside its own" if gpu.total_bytes else "")
    if system.total_bytes is not None:
        words += f" (up to {size(system.total_bytes)})"
    yield Text()
    yield Text(f"  {options.clean(words)}:")
    yield entries_table(system.entries, system.used_bytes, options)


def _heading(gpu: GpuLedger, options: RenderOptions) -> Iterator[Text]:
    is_virtual = gpu.facts is not None and gpu.facts.virtual
    label = f"{gpu_label(gpu)}  {options.clean(gpu.name)}"
    if is_virtual and "virtual" not in gpu.name.lower():
        label += " (virtual)"
    figures = options.clean(memory_figures(gpu.entries, gpu.total_bytes))
    gap = options.width - len(label) - len(figures)
    if figures and gap >= 2:
        yield Text.assemble((label, "bold"), " " * gap, figures)
        return
    yield Text(label, style="bold", overflow="fold")
    if figures:
        yield Text(f"       {figures}")


def _bar(gpu: GpuLedger, options: RenderOptions) -> Text:
    bar = Text(no_wrap=True)
    for kind, cells in drawn_kinds(gpu.entries, options.width):
        bar.append(*options.swatch(kind, cells))
    return bar


def _open_only(open_only: tuple[OpenOnly, ...], options: RenderOptions) -> Iterator[RenderableType]:
    if open_only:
        yield Text("  also have its files open:", style="dim")
    for each in open_only[:_MAX_OPEN_ONLY]:
        parts = identity(each.holder)
        if each.inherited_from is not None:
            parts.append(f"inherited from pid {each.inherited_from}")
        if each.exported_bytes is not None:
            parts.append(f"has a handle on {size(each.exported_bytes)}")
        words = options.clean(" · ".join(parts))
        line = options.short(command(each.holder), options.measure - 4)
        yield paragraph("  ", Text.assemble(words, "\n", (line, "dim")), options, indent=2)
    if len(open_only) > _MAX_OPEN_ONLY:
        more = f"{len(open_only) - _MAX_OPEN_ONLY} more: `vram who` lists them all"
        yield paragraph("  ", Text(more, style="dim"), options, indent=2)


def _parked(ledger: Ledger, options: RenderOptions) -> Iterator[RenderableType]:
    if ledger.parked:
        yield Text()
        yield Text("Parked: paused, in host memory", style="bold")
    for process in ledger.parked:
        line = options.short(one_line(process.command or ""), options.measure - 4)
        words = Text.assemble(options.clean(parked_process(process)), "\n", (line, "dim"))
        yield paragraph("- ", words, options, indent=2)


def _unseen(ledger: Ledger, options: RenderOptions) -> Iterator[RenderableType]:
    """Say what could not be read, so that a short answer is not taken for a complete one."""
    found = gaps(ledger)
    if ledger.unreadable_processes:
        owners = ", ".join(ledger.unreadable_users)
        whose = f" of {owners}" if owners else ""
        found.append(f"the open files of {counted(ledger.unreadable_processes, 'process')}{whose}")
    if found:
        yield Text()
        yield Text("What could not be read", style="bold")
    for gap in found:
        yield paragraph("- ", gap, options, indent=2)


def gaps(ledger: Ledger) -> list[str]:
    """Return which probes failed, and why."""
    shown = {gpu.message for gpu in ledger.gpus}
    return [
        f"probe {probe.name}: {probe.status}" + (f", {probe.message}" if probe.message else "")
        for probe in ledger.probes
        if probe.status in ("failed", "timeout", "lost")
        or (probe.status == "denied" and probe.message and probe.message not in shown)
    ]


def _select(findings: tuple[Finding, ...]) -> tuple[tuple[Finding, ...], Counter[str]]:
    """Return the findings to show, in their order, and how many of each code are left out."""
    seen: Counter[tuple[str, str]] = Counter()
    left_out: Counter[str] = Counter()
    shown = []
    for finding in findings:
        alike = (finding.code, finding.severity)
        seen[alike] += 1
        if seen[alike] <= _MAX_ALIKE[finding.severity]:
            shown.append(finding)
        else:
            left_out[finding.code] += 1
    return tuple(shown), left_out


def _causes(
    findings: tuple[Finding, ...], shown: set[str], options: RenderOptions, *, full: bool = False
) -> Iterator[RenderableType]:
    """Each finding with its cause and evidence; without *full*, what is in order is one line."""
    if not findings:
        return
    yield Text()
    yield Text("Why", style="bold")
    for at, finding in enumerate(findings):
        in_full = full or finding.severity != "info"
        if at and in_full:
            yield Text()
        yield from _cause(finding, shown, options, in_full)


def _cause(
    finding: Finding, shown: set[str], options: RenderOptions, in_full: bool
) -> Iterator[RenderableType]:
    mark, style = options.mark(SEVERITIES[finding.severity])
    is_sized = finding.nbytes is not None and size(finding.nbytes) not in finding.title
    amount = f" {size(finding.nbytes or 0)}: " if is_sized else " "
    title = Text.assemble((finding.code, style), amount, (options.clean(finding.title), "bold"))
    yield paragraph(f"{mark} ", title, options, indent=2, style=style)
    if not in_full:
        return
    yield paragraph("    ", finding.cause, options)
    fresh = [evidence for evidence in finding.evidence if evidence not in shown]
    for evidence in fresh[:_MAX_EVIDENCE]:
        yield paragraph("    - ", Text(options.clean(evidence), style="dim"), options)
    if len(fresh) > _MAX_EVIDENCE:
        more = f"{len(fresh) - _MAX_EVIDENCE} more: `vram why --json` has them all"
        yield paragraph("    - ", Text(more, style="dim"), options)


def _left_out(counts: Counter[str], options: RenderOptions) -> Iterator[RenderableType]:
    for code, count in counts.items():
        yield Text()
        yield paragraph(
            "    ", Text(f"{count} more of {code}: `vram why --json` has them all", style="dim"), options
        )


# ---- what to do: remedies of all findings, least harm first ----


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
