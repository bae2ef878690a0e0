"""``vram history`` for people: tables of who held what, ghosts, waste, and memory over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple

from vram.model.history import (
    Held,
    HistoryReport,
    HoldersReport,
    PastGhostsReport,
    SearchReport,
    SeriesPoint,
    SeriesReport,
    UserWaste,
    WasteReport,
)
from vram.model.moment import read_rfc3339
from vram.report.layout import RenderOptions, padded
from vram.report.phrases import one_line, workload
from vram.units import GIB, duration, size

_BYTE_S_OF_A_GIB_HOUR = GIB * 3600
_MIN_COMMAND_LENGTH = 12
_WIDE = 120
_BAR_CELLS = 30


class Page(NamedTuple):
    """How a page is shown: a width of 0 is for lines of any length, ``zone`` None for the machine's own."""

    options: RenderOptions
    zone: tzinfo | None = None

    @property
    def is_wide(self) -> bool:
        return self.options.width == 0 or self.options.width >= _WIDE

    def when(self, text: str) -> str:
        """A time of the report as the reader's clock shows it."""
        return self._local(text).strftime("%b %d %H:%M:%S" if self.is_wide else "%b %d %H:%M")

    def full(self, text: str) -> str:
        return self._local(text).strftime("%Y-%m-%d %H:%M:%S %Z")

    def _local(self, text: str) -> datetime:
        return read_rfc3339(text).astimezone(self.zone)


# ---- the pages ----


def history_text(report: HistoryReport, page: Page) -> str:
    """The page of any answer."""
    lines = _lines(report, page)
    lines += [f"note: {note}" for note in report.notes]
    if isinstance(report, PastGhostsReport | SearchReport) and report.more:
        lines.append("note: there are more: --limit shows them, --since and --until choose")
    first, last = report.recorded.first, report.recorded.last
    if first is not None and last is not None:
        lines.append(f"recorded from {page.full(first)} to {page.full(last)}")
    return "".join(f"{page.options.clean(line)}\n" for line in lines)


def _lines(report: HistoryReport, page: Page) -> list[str]:
    match report:
        case HoldersReport():
            where = "" if report.gpu is None else f"GPU {report.mig or report.gpu} "
            read = "" if report.read_at == report.at else f", by the reading of {page.full(report.read_at)}"
            heading = f"{where}at {page.full(report.at)}{read}"
            return [heading, *(_held_table(report.holders, page) or ["no process held memory then"])]
        case PastGhostsReport():
            return _held_table(report.ghosts, page, ghosts=True) or ["no ghosts in that time"]
        case SearchReport():
            nothing = f"nothing that was held matches {report.query!r}"
            return _held_table(report.rows, page) or [nothing]
        case WasteReport():
            return _waste_lines(report, page)
        case SeriesReport():
            return _series_lines(report, page)


def _waste_lines(report: WasteReport, page: Page) -> list[str]:
    """Users by what they held without using it, in GiB times hours."""
    columns = (
        _Column("USER", lambda each: each.user or ("" if each.uid is None else str(each.uid)) or "unknown"),
        _Column("IDLE GiB·h", lambda each: _gib_hours(each.idle_byte_s), right=True),
        _Column("GHOST GiB·h", lambda each: _gib_hours(each.leftover_byte_s), right=True),
        _Column("HELD GiB·h", lambda each: _gib_hours(each.held_byte_s), right=True),
        _Column("UNUSED", _unused, right=True),
    )
    if not report.users:
        return ["no process held memory in that time"]
    heading, *table = _table(report.users, columns, page)
    lines = [heading]
    for user, line in zip(report.users, table, strict=True):
        lines += [line, *(_longest(held, page) for held in user.longest)]
    return lines


def _series_lines(report: SeriesReport, page: Page) -> list[str]:
    """One GPU's memory over time, a bar for each point."""
    gpu = report.mig or report.gpu
    most = max((point.total_bytes or 0 for point in report.points), default=0)
    if not most:
        return [f"nothing is known of GPU {gpu} in that time"]
    return [f"GPU {gpu}, {size(most)}", *(_bar(point, page) for point in report.points)]


# ---- what was held ----


def _held_table(rows: Sequence[Held], page: Page, *, ghosts: bool = False) -> list[str]:
    """A line for each of *rows*; none where there are none."""
    if not rows:
        return []
    columns: list[_Column] = [
        _Column("GPU", lambda each: each.mig or str(each.gpu), right=True),
        _Column("MOST" if ghosts else "SIZE", _most if ghosts else _size, right=True),
        _Column("PID", lambda each: "" if each.pid is None else str(each.pid), right=True),
        _Column("USER", lambda each: each.user or "", widest=12),
        _Column("SINCE", lambda each: _since(each, page)),
        _Column("UNTIL", lambda each: _until(each, page)),
    ]
    if page.is_wide or ghosts:
        columns.append(_Column("HELD", lambda each: duration(each.held_s), right=True))
    if page.is_wide and not ghosts:
        idle = _Column("IDLE", lambda each: duration(each.idle_s) if each.idle_s else "-", right=True)
        columns.append(idle)
    if page.is_wide:
        columns.append(_Column("FROM", lambda each: workload(each.workload), widest=24))
    columns.append(_Column("WHAT", what, is_last=True))
    return _table(rows, tuple(columns), page)


def what(held: Held) -> str:
    """The command, and what is wrong with what it held; plain, not yet escaped."""
    command = one_line(held.command or "")
    if held.kind == "orphaned":
        whose = "a dead process" if held.dead_pid is None else f"dead pid {held.dead_pid}"
        return f"GHOST of {whose}" + (f", held by {command}" if command else ", no visible holder")
    if held.kind == "exported":
        return "GHOST, exported by a dead process" + (f", held by {command}" if command else "")
    if held.kind == "unattributed":
        return "UNKNOWN, no holder was found"
    if held.kind in ("hidden", "guest", "windows") and not command:
        return "hidden: not visible from here"
    return command


def _size(held: Held) -> str:
    return "?" if held.nbytes is None else size(held.nbytes)


def _most(held: Held) -> str:
    return "?" if held.most_bytes is None else size(held.most_bytes)


def _since(held: Held, page: Page) -> str:
    """With a mark where it was there before the recording began."""
    return page.when(held.since) if held.since_seen else f"<{page.when(held.since)}"


def _until(held: Held, page: Page) -> str:
    if held.until is None:
        return "still"
    return page.when(held.until) if held.until_seen else f">{page.when(held.until)}"


# ---- waste and series ----


def _gib_hours(byte_s: int) -> str:
    return f"{byte_s / _BYTE_S_OF_A_GIB_HOUR:,.1f}"


def _unused(user: UserWaste) -> str:
    share = (user.idle_byte_s + user.leftover_byte_s) / user.held_byte_s if user.held_byte_s else 0.0
    return f"{min(1.0, share):.0%}"


def _longest(held: Held, page: Page) -> str:
    rested = held.held_s if held.kind in ("orphaned", "exported", "unattributed") else held.idle_s
    state = "idle" if rested is held.idle_s else "left behind"
    pid = "" if held.pid is None else f"pid {held.pid}, "
    start = f"  {pid}GPU {held.mig or held.gpu}, {_most(held)}, {state} {duration(rested)}: "
    return start + _fit(what(held), page, len(start))


def _bar(point: SeriesPoint, page: Page) -> str:
    at = page.when(point.at)
    if point.total_bytes is None:
        return f"{at}  not recorded"
    used = point.total_bytes - point.kinds.get("free", 0)
    cells = round(used * _BAR_CELLS / point.total_bytes) if point.total_bytes else 0
    full, empty = ("#", ".") if page.options.ascii else ("█", "·")
    left = f"  {size(point.leftover_bytes)} of ghosts" if point.leftover_bytes else ""
    return f"{at} {full * cells}{empty * (_BAR_CELLS - cells)} {size(used):>10}{left}"


# ---- tables ----


class _Column(NamedTuple):
    heading: str
    value: Callable[..., str]
    right: bool = False
    widest: int = 0
    is_last: bool = False


def _table(rows: Sequence[object], columns: tuple[_Column, ...], page: Page) -> list[str]:
    """A heading and a line for each row; only the last column is cut to fit."""
    options = page.options
    cells = [[_cell(column, row, options) for column in columns] for row in rows]
    headings = [options.clean(column.heading) for column in columns]
    widths = [max(map(_width, values)) for values in zip(headings, *cells, strict=True)]
    lines = []
    for values in (headings, *cells):
        line = ""
        for column, value, width in zip(columns, values, widths, strict=True):
            text = _fit(value, page, len(line)) if column.is_last else value
            line += (" " * (width - _width(text)) + text if column.right else padded(text, width)) + " "
        lines.append(line.rstrip())
    return lines


def _cell(column: _Column, row: object, options: RenderOptions) -> str:
    text = column.value(row)
    return options.short(text, column.widest) if column.widest else options.clean(text)


def _fit(text: str, page: Page, used: int) -> str:
    if page.options.width == 0:
        return page.options.clean(text)
    return page.options.short(text, max(_MIN_COMMAND_LENGTH, page.options.width - used))


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
