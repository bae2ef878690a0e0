"""The table of processes: its columns, and a line for each row that fits the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from vram.model.hold import STATES
from vram.report.layout import RenderOptions
from vram.report.phrases import one_line, without_folder
from vram.report.process_rows import JobRow, ProcessRow
from vram.units import size


class Column(NamedTuple):
    """A column of the table: its heading, how a row's value is shown, and on which side it is aligned."""

    heading: str
    value: Callable[[ProcessRow], str]
    right: bool = False
    widest: int = 40


_OLDEST_S = 1e10  # a snapshot may claim any age; no process is older than three centuries


def age(seconds: float | None) -> str:
    """Show an age in its largest unit: 45s, 12m, 5h, 3d."""
    if seconds is None or not 0 <= seconds < _OLDEST_S:
        return "-"
    for unit, scale, least in (("d", 86400, 2), ("h", 3600, 1), ("m", 60, 1)):
        if seconds >= scale * least:
            return f"{int(seconds // scale)}{unit}"
    return f"{int(seconds)}s"


def gpu_names(row: ProcessRow) -> str:
    """Return the GPUs of a row, with ranges: 0-3,7."""
    if not all(place.isdigit() for place in row.places):
        return ",".join(row.places) or "-"
    return ranges(map(int, row.places)) or "-"


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending *numbers* as 0-3,7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def row_size(row: ProcessRow) -> str:
    """Return a row's bytes as a person would say them."""
    return "unknown" if row.nbytes is None else size(row.nbytes)


def command_line(row: ProcessRow) -> str:
    """Return the command line without the folder of its program, in one line."""
    return without_folder(one_line(row.command or "-"))


def _pid(row: ProcessRow) -> str:
    more = f"+{len(row.others)}" if isinstance(row, JobRow) else ""
    return _number(row.pid) + more


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


COLUMNS: dict[str, Column] = {
    "gpu": Column("GPU", gpu_names, right=True, widest=11),
    "size": Column("SIZE", row_size, right=True),
    "bytes": Column("BYTES", lambda row: _number(row.nbytes), right=True),
    "pid": Column("PID", _pid, right=True),
    "ppid": Column("PPID", lambda row: _number(row.parent), right=True),
    "user": Column("USER", lambda row: row.user or "-", widest=12),
    "age": Column("AGE", lambda row: age(row.age_s), right=True),
    "state": Column("STATE", lambda row: STATES[row.state].label),
    "workers": Column("WORKERS", lambda row: str(len(row.workers)), right=True),
    "group": Column("GROUP", lambda row: row.group or "-", widest=32),
    "command": Column("COMMAND", command_line),
}
"""What `vram ps --columns` can show."""
_MIN_COMMAND_LENGTH = 8
USUAL = ("gpu", "size", "pid", "user", "age", "state", "command")
NARROW = ("gpu", "size", "pid", "state", "command")
"""For terminals of less than 60 columns."""


def process_lines(
    shown: Sequence[ProcessRow],
    options: RenderOptions,
    *,
    columns: Sequence[str] = USUAL,
    heading: bool = True,
    more: Mapping[str, Column] = {},
) -> list[Text]:
    """Return the heading and a line for each row; *more* are columns beside those that `vram ps` has."""
    known = [{**COLUMNS, **more}[name] for name in columns]
    table = [[_value(column, row, options) for column in known] for row in shown]
    widths = [max((cell_len(line[at]) for line in table), default=0) for at in range(len(columns))]
    if heading:
        widths = [max(width, len(column.heading)) for width, column in zip(widths, known, strict=True)]
    fit = _fit_command(widths, columns, shown, options) if options.cut and "command" in columns else None
    lines = [_heading(known, widths)] if heading else []
    for row, values in zip(shown, table, strict=True):
        own = list(widths)
        if fit is not None and row.note:
            own[columns.index("command")] = fit.width_beside(row, options)
        lines.append(_process_line(row, values, own, columns, known, options))
    return lines


class _Fit(NamedTuple):
    """How wide commands may be: *room* alone on a line, and as a rule *beside_notes* where one follows."""

    room: int
    beside_notes: int

    def width_beside(self, row: ProcessRow, options: RenderOptions) -> int:
        """All notes begin at one place, but a command that has room beside its own short note is not cut."""
        needed = cell_len(options.clean(command_line(row)))
        left = self.room - cell_len(options.clean(row.note)) - 2
        return max(self.beside_notes, min(needed, left))


def _value(column: Column, row: ProcessRow, options: RenderOptions) -> str:
    text = column.value(row)
    return options.clean(text) if column.heading == "COMMAND" else options.short(text, column.widest)


def _fit_command(
    widths: list[int], columns: Sequence[str], shown: Sequence[ProcessRow], options: RenderOptions
) -> _Fit:
    """Let the command take what the others leave; beside a note it is cut first: that says what is wrong."""
    at = columns.index("command")
    room = options.width - sum(widths) + widths[at] - (len(widths) - 1)
    widths[at] = max(len(COLUMNS["command"].heading), min(widths[at], room))
    noted = [row for row in shown if row.note]
    longest_note = max((cell_len(options.clean(row.note)) for row in noted), default=0)
    longest_command = max((cell_len(options.clean(command_line(row))) for row in noted), default=0)
    return _Fit(room, min(longest_command, max(min(_MIN_COMMAND_LENGTH, room), room - longest_note - 2)))


def _heading(columns: Sequence[Column], widths: Sequence[int]) -> Text:
    words = [
        f"{column.heading:{'>' if column.right else '<'}{width}}"
        for column, width in zip(columns, widths, strict=True)
    ]
    return Text(" ".join(words).rstrip(), style="dim", no_wrap=True)


_STYLES = {"ghost": "bold red", "unattributed": "bold red", "idle": "dim", "open": "dim", "hidden": "dim"}


def _process_line(
    row: ProcessRow,
    values: Sequence[str],
    widths: Sequence[int],
    columns: Sequence[str],
    known: Sequence[Column],
    options: RenderOptions,
) -> Text:
    style = _STYLES.get(row.state, "yellow" if row.trouble else "")
    line = Text(no_wrap=True, overflow="ignore")
    for name, column, value, width in zip(columns, known, values, widths, strict=True):
        if line:
            line.append(" ")
        text = options.short(value, width) if name == "command" else value
        blanks = " " * max(0, width - cell_len(text))
        own = style if name == "state" else "bold" if name in ("size", "command") and row.trouble else ""
        line.append(blanks + text if column.right else text + blanks, style=own)
    if row.note and "command" in columns:
        room = options.width - line.cell_len - 2
        line.append("  ").append(_short_note(row.note, room, options), style=style or "dim")
    line.rstrip()
    return line


def _short_note(note: str, width: int, options: RenderOptions) -> str:
    """Leave out the last parts of a note that does not fit: its first one says what is wrong."""
    parts = note.split(", ")
    for count in range(len(parts), 0, -1):
        shown = options.clean(", ".join((*parts[:count], *(["…"] if count < len(parts) else []))))
        if not options.cut or cell_len(shown) <= width:
            return shown
    return options.short(note, width)
