"""The answer on one screen: a bar for each GPU, a line for each process or job, two for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.diagnosis.engine import rule_name
from vram.diagnosis.leftover import GHOST_CODES
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Kind, Ledger, known_bytes
from vram.report.entries import device_names, drawn_kinds, instance_entries, profile
from vram.report.job_rows import rows_by_job
from vram.report.layout import SEVERITIES, RenderOptions, legend, padded
from vram.report.phrases import gpu_label
from vram.report.process_rows import ProcessRow
from vram.report.process_table import NARROW, USUAL, process_lines
from vram.report.text import gaps, gpu_range, masthead
from vram.units import GIB, MIB, size

# ---- a bar for each GPU, as many side by side as fit ----

_NARROWEST_CELL = 38
_WIDEST_BAR = 60
_NARROWEST_BAR = 8
_MAX_INSTANCES = 16
"""Past so many MIG instances each GPU has one bar again; `vram why --gpu N` has them all."""
_VIRTUAL = " (virtual)"
_MAKERS = ("NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "GeForce ", "Tesla ", "Quadro ")


class GpuBar(NamedTuple):
    """One GPU or MIG instance: its label, its bytes by kind, and its figures; or what is wrong with it."""

    label: str
    entries: Sequence[Entry]
    figures: str
    complaint: str = ""
    gpu: int = 0


def gpu_bars(ledger: Ledger) -> list[GpuBar]:
    """Return a bar for each GPU; for each instance of one that is divided by MIG, while these are few."""
    divided = sum(len(gpu.instances) for gpu in ledger.gpus) <= _MAX_INSTANCES
    return [bar._replace(gpu=gpu.index) for gpu in ledger.gpus for bar in _bars(gpu, divided)]


def _bars(gpu: GpuLedger, divided: bool) -> Iterator[GpuBar]:
    if divided and gpu.mig is None and gpu.instances:
        for instance in gpu.instances:
            entries = instance_entries(gpu, instance)
            label = f"MIG {device_names(gpu, instance)} {profile(instance)}"
            yield GpuBar(label, entries, used_of(entries, instance.total_bytes), instance.message or "")
        return
    label = f"{gpu_label(gpu)} {_model_name(gpu)}".rstrip()
    complaint = ""
    if gpu.status not in ("ok", "denied") or gpu.total_bytes is None:
        complaint = f"{gpu.status}: {gpu.message}" if gpu.message else gpu.status
    if gpu.total_bytes == 0 and gpu.system is not None:
        yield GpuBar(label, (), f"{size(known_bytes(gpu.system.entries))} host", complaint)
    else:
        yield GpuBar(label, gpu.entries, used_of(gpu.entries, gpu.total_bytes), complaint)


def _model_name(gpu: GpuLedger) -> str:
    name = gpu.name
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    # The label says "GPU" already.
    words = [name.removeprefix("GPU").strip()]
    if gpu.facts is not None and gpu.facts.virtual and "virtual" not in name.lower():
        words.append(_VIRTUAL.strip())
    return " ".join(filter(None, words))


def used_of(entries: Sequence[Entry], total: int | None) -> str:
    """Return "62.1/80.0 GiB"; what no MIG instance was given, and what may be free, is not used."""
    if not total:
        return ""
    unused = known_bytes(entry for entry in entries if entry.kind in ("free", "unreported", "unassigned"))
    least = ">=" if any(entry.kind == "unreported" and entry.nbytes for entry in entries) else ""
    scale, unit = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    return f"{least}{(total - unused) / scale:.1f}/{total / scale:.1f} {unit}"


def gpu_lines(bars: Sequence[GpuBar], options: RenderOptions, *, side_by_side: bool = True) -> list[Text]:
    """Lay the bars out, side by side where there is room, with a legend where they are in colour."""
    if not bars:
        return []
    most = max(1, (options.width + 2) // (_NARROWEST_CELL + 2)) if side_by_side else 1
    abreast = -(-len(bars) // -(-len(bars) // most))
    width = (options.width - 2 * (abreast - 1)) // abreast
    figures = max(len(bar.figures) for bar in bars)
    shape = _bar_shape(width, _longest_label(bars, options), figures)
    if shape.label < _longest_label(bars, options):
        bars = [bar._replace(label=bar.label.removesuffix(_VIRTUAL)) for bar in bars]
        shape = _bar_shape(width, _longest_label(bars, options), figures)
    if shape.label < _longest_label(bars, options):  # which GPU it is matters more than its model
        bars = [bar._replace(label=" ".join(bar.label.split()[:2])) for bar in bars]
        shape = _bar_shape(width, _longest_label(bars, options), figures)
    cells = [_bar_cell(bar, width, shape, options) for bar in bars]
    lines = [Text("  ").join(cells[at : at + abreast]) for at in range(0, len(cells), abreast)]
    return lines + legend({kind for bar in bars for kind, _ in _drawn(bar, shape)}, options)


def _longest_label(bars: Sequence[GpuBar], options: RenderOptions) -> int:
    return max(cell_len(options.clean(bar.label)) for bar in bars)


class _Shape(NamedTuple):
    label: int
    bar: int
    figures: int


def _bar_shape(width: int, labels: int, figures: int) -> _Shape:
    """Divide a cell; the bar gets what is left, and the label gives way where that is too little."""
    bar = min(_WIDEST_BAR, max(_NARROWEST_BAR, width - labels - figures - 2))
    return _Shape(max(5, min(labels, width - bar - figures - 2)), bar, figures)


def _drawn(bar: GpuBar, shape: _Shape) -> list[tuple[Kind, int]]:
    """The kinds that have cells in the bar, and how many each."""
    if bar.complaint or not bar.figures or not bar.entries:
        return []
    return drawn_kinds(bar.entries, shape.bar)


def _bar_cell(bar: GpuBar, width: int, shape: _Shape, options: RenderOptions) -> Text:
    label = options.short(bar.label, shape.label)
    cell = Text(no_wrap=True)
    cell.append(padded(label, shape.label), style="bold").append(" ")
    if bar.complaint:
        words = options.short(bar.complaint, width - shape.label - 1)
        return cell.append(padded(words, width - shape.label - 1), style="bold red")
    drawn = _drawn(bar, shape)
    if drawn:
        for kind, cells in drawn:
            cell.append(*options.swatch(kind, cells))
        cell.append(f" {bar.figures:>{shape.figures}}")
    else:
        cell.append(bar.figures)
    cell.append(" " * max(0, width - cell.cell_len))
    return cell


# ---- problems: what it is, and the one command ----

# What a remedy does, in front of its command. A look at the processes is the last choice.
LEADS = {
    "free": "Get it back",
    "end": "Get it back",
    "trim": "Get it back",
    "park": "Make room",
    "resume": "Continue it",
    "look": "Look",
}


def problem_lines(finding: Finding, certainty: str, options: RenderOptions, source: str = "") -> list[Text]:
    """Return two lines: what was found, and what to do; *source* makes `vram why` read the same snapshot."""
    mark, style = options.mark(SEVERITIES[finding.severity])
    title = options.clean(f"{_place(finding)}{finding.title}")
    # How sure it is gives way to the title; `vram why PID` says it, too.
    codes = (", ".join(filter(None, (finding.code, certainty))), finding.code)
    code = next((each for each in codes if cell_len(title) + len(each) + 4 <= options.measure), finding.code)
    room = options.measure - len(code) - 4
    shown = padded(options.short(title, room), room)
    first = Text(no_wrap=True, overflow="ignore").append(f"{mark} ", style=style).append(shown, style="bold")
    first.append(f"  {code}", style="dim")
    return [first, _what_to_do(finding, options, source)]


class ProblemBlock(NamedTuple):
    """Findings of one kind that one command answers: a heading, a line for each where they are several."""

    heading: Text
    items: Sequence[Text]
    what_to_do: Text

    def in_lines(self, count: int, where: str) -> list[Text]:
        """As many of the items as fit *count* lines, and how many more there are."""
        room = count - 2
        if len(self.items) <= room:
            return [self.heading, *self.items, self.what_to_do]
        more = Text(f"  +{len(self.items) - room + 1} more: {where}", style="dim")
        return [self.heading, *self.items[: room - 1], more, self.what_to_do]


def problem_blocks(
    findings: Sequence[Finding], ledger: Ledger, options: RenderOptions, source: str = ""
) -> list[ProblemBlock]:
    """Return *findings* in their order, those of one kind together where one command answers all of them."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        remedy = the_remedy(finding)
        step = "" if remedy is None else f"{remedy.step} {_without_pids(remedy)}"
        alike.setdefault((finding.code, finding.severity, step), []).append(finding)
    return [_block(group, options, source) for group in alike.values()]


def _without_pids(remedy: Remedy) -> str:
    """The command of a remedy up to the pids at its end, where it ends in those that it is for."""
    return remedy.command.removesuffix(" ".join(map(str, remedy.pids))) if remedy.pids else remedy.command


def _block(group: list[Finding], options: RenderOptions, source: str) -> ProblemBlock:
    if len(group) == 1:
        heading, what_to_do = problem_lines(group[0], certainty(group[0]), options, source)
        return ProblemBlock(heading, (), what_to_do)
    nbytes = sum(finding.nbytes or 0 for finding in group)
    kind = "ghosts" if group[0].code in GHOST_CODES else f"times {rule_name(group[0].code)}"
    together = replace(
        group[0],
        title=f"{len(group)} {kind}" + (f", {size(nbytes)}" if nbytes else ""),
        gpus=tuple(sorted({gpu for finding in group for gpu in finding.gpus})),
        remedies=_together(group),
    )
    sure = {certainty(finding) for finding in group}
    heading, what_to_do = problem_lines(together, sure.pop() if len(sure) == 1 else "", options, source)
    return ProblemBlock(heading, [_item(finding, options) for finding in group], what_to_do)


def _item(finding: Finding, options: RenderOptions) -> Text:
    line = options.short(f"  {_place(finding)}{finding.title}", options.measure)
    return Text(line, no_wrap=True, overflow="ignore")


def _together(group: Sequence[Finding]) -> tuple[Remedy, ...]:
    """The remedy of all these findings: one command, for the processes of each of them."""
    remedies = [remedy for finding in group if (remedy := the_remedy(finding)) is not None]
    if not remedies:
        return ()
    first = remedies[0]
    pids = tuple(dict.fromkeys(pid for remedy in remedies for pid in remedy.pids))
    start = _without_pids(first)
    command = start + " ".join(map(str, pids)) if start != first.command else first.command
    return (replace(first, command=command, pids=pids),)


def _what_to_do(finding: Finding, options: RenderOptions, source: str) -> Text:
    remedy = the_remedy(finding)
    details = f"vram why {finding.pids[0]}" if finding.pids else f"vram explain {finding.code}"
    if not finding.pids and finding.gpus:
        details = f"vram why --gpu {finding.gpus[0]}"
    details += source if "vram why" in details else ""
    why = Text.assemble("Why: ", (options.clean(details), "bold"))
    line = Text("  ", no_wrap=True, overflow="ignore")
    if remedy is None:
        return line.append_text(why)
    if remedy.command and not remedy.command.endswith("vram why"):
        lead = LEADS.get(remedy.step, "Do")
        line.append(f"{lead}: ").append(options.clean(remedy.command), style="bold")
    else:
        line.append(options.short(remedy.text, options.width - why.cell_len - 6))
    # A command is never cut, and has precedence.
    fits = line.cell_len + 3 + why.cell_len <= options.width
    return line.append("   ").append_text(why) if fits else line


def the_remedy(finding: Finding) -> Remedy | None:
    """Return the least harmful remedy that changes something now, else where to look, if there is any.

    A look at its processes is none: those are in the table already. How to prevent it is for later.
    """
    acting = [each for each in finding.remedies if each.command and each.step not in ("look", "wait")]
    others = [
        each for each in finding.remedies if each.step != "change" and not (each.step == "look" and each.pids)
    ]
    return next(iter((*acting, *others)), None)


def _place(finding: Finding) -> str:
    return f"{gpu_range(finding.gpus)}: " if finding.gpus and "GPU" not in finding.title else ""


def certainty(finding: Finding) -> str:
    """Say "certain" or "likely" where the finding is about who holds memory of a dead owner."""
    ghosts = [hold for hold in finding.holds if hold.what == "ghost"]
    if not any(hold.has_holders for hold in ghosts):
        return ""
    return "certain" if all(hold.certain for hold in ghosts) else "likely"


# ---- the screen ----


def _surplus(hidden: Sequence[ProcessRow]) -> Text:
    nbytes = sum(row.nbytes or 0 for row in hidden)
    count = sum(max(1, len(row.identities)) for row in hidden)
    noun = "process" if count == 1 else "processes"
    return Text(f"+{count} more {noun}, {size(nbytes)}: vram ps", style="dim")


def screen(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    options: RenderOptions,
    *,
    height: int | None = None,
    source: str = "",
) -> RenderableType:
    """Return the whole answer in at most *height* lines; None: as many as it takes.

    *source* are the words that make `vram why` read the same snapshot; without them this host was read.
    """
    top = [masthead(ledger, options)] if source else []
    top += gpu_lines(gpu_bars(ledger), options)
    top += total_lines(ledger, options)
    if not ledger.gpus:
        top.append(Text("No GPU was found."))
    found = rows_by_job(ledger)
    problems = [finding for finding in findings if finding.severity != "info"]
    missing = [
        Text(line, style="yellow")
        for gap in unseen(ledger)
        for line in wrap(options.clean(gap), options.width, subsequent_indent="  ")
    ]
    taken = len(top) + 2 + (len(missing) + 1 if missing else 0)
    room = None if height is None else max(4, height - taken)
    blocks = problem_blocks(problems, ledger, options, source)
    row_count, problem_room = _shares(len(found), sum(2 + len(block.items) for block in blocks), room)
    lines = [*top, Text()]
    if found:
        columns = USUAL if options.width >= 60 else NARROW
        lines += process_lines(found[:row_count], options, columns=columns)
    elif ledger.gpus:
        lines.append(Text("No process holds GPU memory."))
    if found[row_count:]:
        lines.append(_surplus(found[row_count:]))
    if problems:
        lines.append(Text())
    lines += _fit_blocks(blocks, problem_room, f"vram why -v{source}")
    if missing:
        lines += [Text(), *missing]
    return Group(*lines)


def total_lines(ledger: Ledger, options: RenderOptions) -> list[Text]:
    """Which totals are not a whole GPU's own memory, and whose they are: one line for the same words."""
    alike: dict[str, list[int]] = {}
    for gpu in ledger.gpus:
        for note in gpu.notes:
            if note.code in ("system-memory", "cgroup-limit", "vgpu"):
                alike.setdefault(note.text, []).append(gpu.index)
    said = [options.clean(f"{gpu_range(numbers)}: {text}") for text, numbers in alike.items()]
    return [Text(line, style="dim") for each in said for line in wrap(each, options.width)]


def unseen(ledger: Ledger) -> list[str]:
    """Return which probes failed, without those whose failure is written in place of a GPU's bar.

    Where processes were asked (--deep), also what that cost them, and which of them did not answer.
    """
    failed = {gpu.status for gpu in ledger.gpus}
    probes = tuple(probe for probe in ledger.probes if probe.name != "nvml" or probe.status not in failed)
    unasked = [
        f"{gpu_label(gpu)}: {note.text}"
        for gpu in ledger.gpus
        for note in gpu.notes
        if note.code in ("queried", "not-divided")
    ]
    return gaps(replace(ledger, probes=probes)) + unasked


def _fit_blocks(blocks: Sequence[ProblemBlock], room: int, where: str) -> list[Text]:
    """The blocks in at most *room* lines, and what is left out; the first one is always there."""
    lines: list[Text] = []
    for at, block in enumerate(blocks):
        left = room - len(lines) - (at + 1 < len(blocks))  # a line says that there are others
        if at and left < 2 + min(2, len(block.items)):
            more = sum(max(1, len(other.items)) for other in blocks[at:])
            return [*lines, Text(f"+{more} more finding{'s' * (more > 1)}: {where}", style="dim")]
        lines += block.in_lines(max(left, 2 + min(2, len(block.items))), where)
    return lines


def _shares(row_count: int, problem_lines: int, room: int | None) -> tuple[int, int]:
    """Divide *room* lines between rows and problems; a line says how many rows are left out."""
    if room is None:
        return row_count, problem_lines
    if problem_lines:
        room -= 1  # the blank line before them
    if row_count + problem_lines <= room:
        return row_count, problem_lines
    for_problems = min(problem_lines, max(2, room // 2))
    if row_count <= room - for_problems:  # rows need less than their share: more problems fit
        return row_count, room - row_count
    return max(1, room - for_problems - 1), for_problems
