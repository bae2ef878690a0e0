"""The answer on one screen: a bar for each GPU, a line for each process, two lines for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.report.entries import device_names, instance_entries, profile
from vram.report.layout import KIND_STYLES, SEVERITIES, RenderOptions, apportion
from vram.report.phrases import gpu_label
from vram.report.process_rows import STATES, ProcessRow, rows
from vram.report.text import gaps, masthead
from vram.units import GIB, MIB, size

# ---- GPUs: as many side by side as fit ----

_NARROWEST_CELL = 38
_WIDEST_BAR = 60
_NARROWEST_BAR = 8
_MOST_INSTANCES = 16
"""Past so many MIG instances each GPU has one bar again; `vram why --gpu N` has them all."""
_MAKERS = ("NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "GeForce ", "Tesla ", "Quadro ")


class GpuBar(NamedTuple):
    """One GPU or MIG instance: its label, its bytes by kind, and its figures; or what is wrong with it."""

    label: str
    entries: Sequence[Entry]
    figures: str
    complaint: str = ""


def gpu_bars(ledger: Ledger) -> list[GpuBar]:
    """Return a bar for each GPU; for each instance of one that is divided by MIG, while these are few."""
    divided = sum(len(gpu.instances) for gpu in ledger.gpus) <= _MOST_INSTANCES
    return [bar for gpu in ledger.gpus for bar in _bars(gpu, divided)]


def _bars(gpu: GpuLedger, divided: bool) -> Iterator[GpuBar]:
    if divided and gpu.mig is None and gpu.instances:
        for instance in gpu.instances:
            entries = instance_entries(gpu, instance)
            label = f"MIG {device_names(gpu, instance)} {profile(instance)}"
            yield GpuBar(label, entries, used_of(entries, instance.total_bytes), instance.message or "")
        return
    label = f"{gpu_label(gpu)} {_model(gpu)}"
    complaint = ""
    if gpu.status not in ("ok", "denied") or gpu.total_bytes is None:
        complaint = f"{gpu.status}: {gpu.message}" if gpu.message else gpu.status
    if gpu.total_bytes == 0 and gpu.system is not None:
        yield GpuBar(label, (), f"{size(known_bytes(gpu.system.entries))} of host memory", complaint)
    else:
        yield GpuBar(label, gpu.entries, used_of(gpu.entries, gpu.total_bytes), complaint)


def _model(gpu: GpuLedger) -> str:
    name = gpu.name
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    is_virtual = gpu.facts is not None and gpu.facts.virtual and "virtual" not in name.lower()
    return f"{name} (virtual)" if is_virtual else name


def used_of(entries: Sequence[Entry], total: int | None) -> str:
    """Return "62.1/80.0 GiB"; what no MIG instance was given, and what may be free, is not used."""
    if not total:
        return ""
    unused = known_bytes(entry for entry in entries if entry.kind in ("free", "unreported", "unassigned"))
    least = ">=" if any(entry.kind == "unreported" and entry.nbytes for entry in entries) else ""
    scale, unit = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    return f"{least}{(total - unused) / scale:.1f}/{total / scale:.1f} {unit}"


def gpu_lines(bars: Sequence[GpuBar], options: RenderOptions) -> list[Text]:
    """Lay the bars out, side by side where there is room."""
    if not bars:
        return []
    most = max(1, (options.width + 2) // (_NARROWEST_CELL + 2))
    lines = -(-len(bars) // most)
    abreast = -(-len(bars) // lines)
    width = (options.width - 2 * (abreast - 1)) // abreast
    labels = max(cell_len(options.clean(bar.label)) for bar in bars)
    figures = max(len(bar.figures) for bar in bars)
    shape = _shape(width, labels, figures)
    cells = [_cell(bar, width, shape, options) for bar in bars]
    return [Text("  ").join(cells[at : at + abreast]) for at in range(0, len(cells), abreast)]


class _Shape(NamedTuple):
    label: int
    bar: int
    figures: int


def _shape(width: int, labels: int, figures: int) -> _Shape:
    """Divide a cell; the bar gets what is left, and the label gives way where that is too little."""
    bar = min(_WIDEST_BAR, max(_NARROWEST_BAR, width - labels - figures - 2))
    return _Shape(max(5, min(labels, width - bar - figures - 2)), bar, figures)


def _cell(bar: GpuBar, width: int, shape: _Shape, options: RenderOptions) -> Text:
    label = options.short(bar.label, shape.label)
    cell = Text(no_wrap=True)
    cell.append(_padded(label, shape.label), style="bold").append(" ")
    if bar.complaint:
        words = options.short(bar.complaint, width - shape.label - 1)
        return cell.append(_padded(words, width - shape.label - 1), style="bold red")
    if bar.figures and bar.entries:
        kinds = list(KIND_STYLES)
        sums = [known_bytes(entry for entry in bar.entries if entry.kind == kind) for kind in kinds]
        for kind, cells in zip(kinds, apportion(sums, shape.bar), strict=True):
            cell.append(*options.swatch(kind, cells))
        cell.append(f" {bar.figures:>{shape.figures}}")
    else:
        cell.append(bar.figures)
    cell.append(" " * max(0, width - cell.cell_len))
    return cell


def _padded(text: str, width: int) -> str:
    return text + " " * max(0, width - cell_len(text))


# ---- processes: one line each ----


class Column(NamedTuple):
    """A column of the table: its heading, how a row's value is shown, and on which side it is aligned."""

    heading: str
    value: Callable[[ProcessRow], str]
    right: bool = False
    widest: int = 40


def age(seconds: float | None) -> str:
    """Show an age in its largest unit: 45s, 12m, 5h, 3d."""
    if seconds is None or not 0 <= seconds < float("inf"):
        return "-"
    for unit, scale, least in (("d", 86400, 2), ("h", 3600, 1), ("m", 60, 1)):
        if seconds >= scale * least:
            return f"{int(seconds // scale)}{unit}"
    return f"{int(seconds)}s"


def gpu_names(row: ProcessRow) -> str:
    """Return the GPUs of a row, with ranges: 0-3,7."""
    if not all(place.isdigit() for place in row.gpus):
        return ",".join(row.gpus) or "-"
    runs: list[list[int]] = []
    for number in map(int, row.gpus):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "-"


def row_size(row: ProcessRow) -> str:
    """Return a row's bytes as a person would say them."""
    return "unknown" if row.nbytes is None else size(row.nbytes)


def command_line(row: ProcessRow) -> str:
    """Return the command line without the folder of its program."""
    program, blank, rest = (row.command or "-").partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


COLUMNS: dict[str, Column] = {
    "gpu": Column("GPU", gpu_names, right=True, widest=11),
    "size": Column("SIZE", row_size, right=True),
    "bytes": Column("BYTES", lambda row: _number(row.nbytes), right=True),
    "pid": Column("PID", lambda row: _number(row.pid), right=True),
    "ppid": Column("PPID", lambda row: _number(row.parent), right=True),
    "user": Column("USER", lambda row: row.user or "-", widest=12),
    "age": Column("AGE", lambda row: age(row.age_s), right=True),
    "state": Column("STATE", lambda row: STATES[row.state].label),
    "workers": Column("WORKERS", lambda row: str(len(row.workers)), right=True),
    "group": Column("GROUP", lambda row: row.group or "-", widest=32),
    "command": Column("COMMAND", command_line),
}
"""What `vram ps --columns` can show."""
_SHORTEST_COMMAND = 12
USUAL = ("gpu", "size", "pid", "user", "age", "state", "command")


def process_lines(
    shown: Sequence[ProcessRow],
    options: RenderOptions,
    *,
    columns: Sequence[str] = USUAL,
    cut: bool = True,
    heading: bool = True,
) -> list[Text]:
    """Return the heading and a line for each row; without *cut* no value is shortened to fit the width."""
    table = [[_value(COLUMNS[name], row, options, cut) for name in columns] for row in shown]
    widths = [max((cell_len(line[at]) for line in table), default=0) for at in range(len(columns))]
    if heading:
        widths = [max(width, len(COLUMNS[name].heading)) for width, name in zip(widths, columns, strict=True)]
    fit = _fit_command(widths, columns, shown, options) if cut and "command" in columns else None
    lines = [_heading(columns, widths)] if heading else []
    for row, values in zip(shown, table, strict=True):
        own = list(widths)
        if fit is not None and row.note:
            own[columns.index("command")] = fit.width_beside(row, options)
        lines.append(_process_line(row, values, own, columns, options, cut))
    return lines


class _Fit(NamedTuple):
    """How wide commands may be: *room* alone on a line, and as a rule *beside_notes* where one follows."""

    room: int
    beside_notes: int

    def width_beside(self, row: ProcessRow, options: RenderOptions) -> int:
        """All notes begin at one place, but a command that has room beside its own short note is not cut."""
        needed = cell_len(options.clean(command_line(row)))
        spare = self.room - cell_len(options.clean(row.note)) - 2
        return max(self.beside_notes, min(needed, spare))


def _value(column: Column, row: ProcessRow, options: RenderOptions, cut: bool) -> str:
    text = column.value(row)
    return options.short(text, column.widest) if cut and column.heading != "COMMAND" else options.clean(text)


def _fit_command(
    widths: list[int], columns: Sequence[str], shown: Sequence[ProcessRow], options: RenderOptions
) -> _Fit:
    """Let the command take what the others leave. Notes say what is wrong: commands beside them are cut first."""
    at = columns.index("command")
    room = options.width - sum(widths) + widths[at] - (len(widths) - 1)
    widths[at] = max(len(COLUMNS["command"].heading), min(widths[at], room))
    noted = [row for row in shown if row.note]
    longest_note = max((cell_len(options.clean(row.note)) for row in noted), default=0)
    longest_command = max((cell_len(options.clean(command_line(row))) for row in noted), default=0)
    return _Fit(room, min(longest_command, max(_SHORTEST_COMMAND, room - longest_note - 2)))


def _heading(columns: Sequence[str], widths: Sequence[int]) -> Text:
    words = [
        f"{COLUMNS[name].heading:{'>' if COLUMNS[name].right else '<'}{width}}"
        for name, width in zip(columns, widths, strict=True)
    ]
    return Text(" ".join(words).rstrip(), style="dim", no_wrap=True)


_STYLES = {"ghost": "bold red", "unattributed": "bold red", "idle": "dim", "open": "dim", "hidden": "dim"}


def _process_line(
    row: ProcessRow,
    values: Sequence[str],
    widths: Sequence[int],
    columns: Sequence[str],
    options: RenderOptions,
    cut: bool,
) -> Text:
    style = _STYLES.get(row.state, "yellow" if row.trouble else "")
    line = Text(no_wrap=True, overflow="ignore")
    for name, value, width in zip(columns, values, widths, strict=True):
        if line:
            line.append(" ")
        text = options.short(value, width) if cut and name == "command" else value
        blanks = " " * max(0, width - cell_len(text))
        own = style if name == "state" else "bold" if name in ("size", "command") and row.trouble else ""
        line.append(blanks + text if COLUMNS[name].right else text + blanks, style=own)
    if row.note and "command" in columns:
        room = options.width - line.cell_len - 2
        note = options.clean(row.note) if not cut else options.short(row.note, room)
        line.append("  ").append(note, style=style or "dim")
    line.rstrip()
    return line


def _surplus(hidden: Sequence[ProcessRow]) -> Text:
    nbytes = sum(row.nbytes or 0 for row in hidden)
    noun = "process" if len(hidden) == 1 else "processes"
    return Text(f"+{len(hidden)} more {noun}, {size(nbytes)}: vram ps", style="dim")


# ---- problems: what it is, and the one command ----

# What a remedy does, in front of its command. A look at the processes is the last choice.
_LEADS = {
    "free": "Get it back",
    "end": "Get it back",
    "trim": "Get it back",
    "park": "Make room",
    "resume": "Continue it",
    "look": "Look",
}


def problem_lines(finding: Finding, certainty: str, options: RenderOptions, source: str = "") -> list[Text]:
    """Return two lines: what was found, and what to do; *source* makes `vram why` read the same snapshot."""
    glyph, ascii_glyph, style = SEVERITIES[finding.severity]
    mark = ascii_glyph if options.ascii else glyph
    where = f"{_gpus(finding.gpus)}: " if finding.gpus and "GPU" not in finding.title else ""
    code = ", ".join(filter(None, (finding.code, certainty)))
    room = options.measure - len(code) - 4
    title = options.short(f"{where}{finding.title}", room)
    first = Text(no_wrap=True).append(f"{mark} ", style=style).append(_padded(title, room), style="bold")
    first.append(f"  {code}", style="dim")
    return [first, _what_to_do(finding, options, source)]


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
        lead = _LEADS.get(remedy.step, "Do")
        line.append(f"{lead}: ").append(options.clean(remedy.command), style="bold")
    else:
        line.append(options.short(remedy.text, options.width - why.cell_len - 6))
    # A command is never cut, and has precedence.
    fits = line.cell_len + 3 + why.cell_len <= options.width
    return line.append("   ").append_text(why) if fits else line


def the_remedy(finding: Finding) -> Remedy | None:
    """Return the least harmful remedy that changes something; else the first."""
    acting = [each for each in finding.remedies if each.command and each.step not in ("look", "wait")]
    return next(iter((*acting, *finding.remedies)), None)


def _gpus(numbers: Sequence[int]) -> str:
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _certainty(finding: Finding, ledger: Ledger) -> str:
    """Say "certain" or "likely" where the finding is about who holds memory of a dead owner."""
    entries = [
        entry
        for gpu in ledger.gpus
        for entry in gpu.accounted
        if gpu.index in finding.gpus
        and entry.kind in ("orphaned", "exported")
        and not {holder.pid for holder in entry.holders}.isdisjoint(finding.pids)
    ]
    if not entries:
        return ""
    return "certain" if all(entry.confidence == "fact" for entry in entries) else "likely"


# ---- the screen ----


def screen(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    options: RenderOptions,
    *,
    height: int | None = None,
    cut: bool = True,
    source: str = "",
) -> RenderableType:
    """Return the whole answer in at most *height* lines; None: as many as it takes.

    *source* are the words that make `vram why` read the same snapshot; without them this host was read.
    """
    top = [masthead(ledger, options)] if source else []
    top += gpu_lines(gpu_bars(ledger), options)
    if not ledger.gpus:
        top.append(Text("No GPU was found."))
    everybody = rows(ledger)
    problems = [finding for finding in findings if finding.severity != "info"]
    unseen = [
        Text(options.short(gap, options.width), style="yellow", no_wrap=True) for gap in _unseen(ledger)
    ]
    taken = len(top) + 2 + (len(unseen) + 1 if unseen else 0)
    room = None if height is None else max(4, height - taken)
    row_count, problem_count = _shares(len(everybody), len(problems), room)
    lines = [*top, Text()]
    if everybody:
        lines += process_lines(everybody[:row_count], options, cut=cut)
    elif ledger.gpus:
        lines.append(Text("No process holds GPU memory."))
    if everybody[row_count:]:
        lines.append(_surplus(everybody[row_count:]))
    if problems:
        lines.append(Text())
    for finding in problems[:problem_count]:
        lines += problem_lines(finding, _certainty(finding, ledger), options, source)
    if problems[problem_count:]:
        more = len(problems) - problem_count
        lines.append(Text(f"+{more} more finding{'s' * (more > 1)}: vram why -v{source}", style="dim"))
    if unseen:
        lines += [Text(), *unseen]
    return Group(*lines)


def _unseen(ledger: Ledger) -> list[str]:
    """Return which probes failed, without those whose failure is written in place of a GPU's bar."""
    failed = {gpu.status for gpu in ledger.gpus}
    probes = tuple(probe for probe in ledger.probes if probe.name != "nvml" or probe.status not in failed)
    return gaps(replace(ledger, probes=probes))


def _shares(row_count: int, problem_count: int, room: int | None) -> tuple[int, int]:
    """Divide *room* lines between rows and problems, two lines each; a line says what is left out."""
    if room is None:
        return row_count, problem_count
    if problem_count:
        room -= 1  # the blank line before them
    if row_count + 2 * problem_count <= room:
        return row_count, problem_count
    for_problems = min(problem_count, max(1, (room // 2 - 1) // 2))
    for_rows = room - 2 * for_problems - (for_problems < problem_count)
    if row_count <= for_rows:  # rows need less than their share: more problems fit
        return row_count, (room - 1 - row_count) // 2
    return max(1, for_rows - 1), for_problems
