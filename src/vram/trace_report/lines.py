"""Lines that the views of a trace share: head, places, times, stacks, what was not recorded."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from textwrap import wrap
from typing import NamedTuple

from msgspec import Struct
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from vram.model.trace import CallStack, FailedAllocation, Frame, Gap, TracedProcess, TraceView
from vram.report.layout import RenderOptions, paragraph, shorten
from vram.trace.places import NO_STACK, caller, function_name, last_name, place, position
from vram.trace_report.rows import AllocationRow, By, CallerShare
from vram.trace_report.words import EARLY_ENDS, GAP_REASONS, command_of, gpu_name
from vram.units import counted, duration, size

NOTHING = "Nothing was allocated on a GPU."
_CALLERS = 3
_MAX_FRAMES = 200
_SECOND_NS, _MS_NS = 10**9, 10**6

# CUresult, as cuda.h numbers them.
_RESULTS = {
    1: "invalid value",
    2: "out of memory",
    3: "CUDA not initialised",
    201: "invalid context",
    700: "illegal address",
    719: "launch failed",
    800: "not permitted",
    801: "not supported",
}


class ReportOptions(Struct, frozen=True, kw_only=True):
    """What a reporter shows of its rows, and the screen that it shows them on."""

    screen: RenderOptions
    by: By = "line"
    limit: int = 10
    """0: all of them."""
    verbose: bool = False

    @property
    def most(self) -> int | None:
        return self.limit or None


Reporter = Callable[[TraceView, ReportOptions], RenderableType]

# ---- words ----


def moment(ns: int) -> str:
    """A time since the recording began, or a length of time: "12.3 ms", "4.21 s", "3 min 5 s"."""
    if ns < _MS_NS:
        return f"{max(0, ns) / 1e3:.0f} µs"
    if ns < _SECOND_NS:
        return f"{ns / 1e6:.1f} ms"
    if ns < 60 * _SECOND_NS:
        return f"{ns / 1e9:.2f} s" if ns < 10 * _SECOND_NS else f"{ns / 1e9:.1f} s"
    return duration(ns / 1e9)


# ---- places and stacks ----


def place_text(frame: Frame | None, width: int, options: RenderOptions) -> Text:
    """``function  file:line`` in at most *width* cells; of a long name or path the end is kept."""
    if frame is None:
        return Text(options.short(NO_STACK, width), style="dim")
    where = position(frame)
    # Folders give way before the name does; the file's own name does not.
    beside_file = width - 2 - cell_len(options.clean("…/" * ("/" in where) + _short_position(frame)))
    name = _name(frame, max(8, min(max(width * 2 // 5, beside_file), 48)), options)
    room = width - cell_len(name) - 2
    return Text.assemble((name, "bold"), "  ", path_end(where, max(8, room), options))


# The last column of a table is asked for in the width that is left.
Cell = Callable[[int], Text]


class PlaceLabel(NamedTuple):
    """What a line is about: a place and who called it, or *words* where there is no place.

    *wraps*: several lines are about this place, so that its caller says more.
    """

    frame: Frame | None
    words: str = NO_STACK
    caller: Frame | None = None
    wraps: bool = False

    @classmethod
    def of_stack(cls, stack: CallStack, *, wraps: bool = False) -> PlaceLabel:
        return cls(place(stack), caller=caller(stack), wraps=wraps)

    def text(self, width: int, options: RenderOptions) -> Text:
        """The place, and who called it where there is room."""
        if self.frame is None:
            return Text(path_end(self.words, width, options))
        both = None
        if self.caller is not None:
            both = _with_caller(self.frame, self.caller, width, options, wraps=self.wraps)
        return both or place_text(self.frame, width, options)

    def cell(self, options: RenderOptions, aside: str = "") -> Cell:
        """The same for a table, with *aside* in parentheses where there is room for it."""

        def cell(width: int) -> Text:
            shown = f"  ({options.clean(aside)})" if aside else ""
            if width - cell_len(shown) < 24:
                shown = ""
            return self.text(width - cell_len(shown), options).append(shown, style="dim")

        return cell


def row_cell(row: AllocationRow, options: RenderOptions, note: str = "", *, kinds: bool = True) -> Cell:
    """What a row is about: its place, or its library or file; with its *kinds* where that is not plain."""
    shown_kinds = row.kinds if kinds and row.kinds != ("device",) else ()
    aside = ", ".join(filter(None, [*shown_kinds, note]))
    return PlaceLabel(row.place, row.label, row.caller, row.wraps).cell(options, aside)


def _with_caller(
    frame: Frame, calling: Frame, width: int, options: RenderOptions, *, wraps: bool
) -> Text | None:
    """The place and who called it, where both fit: in full, or without folders, then without classes."""
    arrow = options.clean(" ← ")
    name, short_name = function_name(frame), last_name(frame)
    calling_name, short_calling_name = function_name(calling), last_name(calling)
    forms = [
        (name, calling_name, position),
        (name, calling_name, _short_position),
        (name, short_calling_name, _short_position),
        (short_name, short_calling_name, _short_position),
    ]
    if wraps:  # the caller says more than the wrapper's own name
        forms += [("", calling_name, _short_position), ("", short_calling_name, _short_position)]
    for own, calling_own, shown in forms:
        function = options.clean(own)
        where = options.clean(shown(frame))
        caller = options.clean(f"{calling_own}  {shown(calling)}")
        gap = "  " if function else ""
        if sum(map(cell_len, (function, gap, where, arrow, caller))) <= width:
            return Text.assemble((function, "bold"), gap, where, (arrow + caller, "dim"))
    alone = options.clean(f"← {short_calling_name}  {_short_position(calling)}")
    # Else the lines of all callers would be the same.
    return Text(alone) if wraps and cell_len(alone) <= width else None


def _short_position(frame: Frame) -> str:
    return position(frame).rpartition("/")[2]


def branch_lines(found: Sequence[CallerShare], indent: int, options: RenderOptions) -> Iterator[Text]:
    """Who a row's allocations come from, a line each."""
    for branch in found[:_CALLERS]:
        lead = f"{' ' * indent}{size(branch.nbytes):>10} from "
        line = place_text(branch.frame, options.width - len(lead), options)
        line.stylize("dim")
        yield Text.assemble((lead, "dim"), line)
    if len(found) > _CALLERS:
        nbytes = sum(branch.nbytes for branch in found[_CALLERS:])
        words = f"{size(nbytes):>10} from {len(found) - _CALLERS:,} others; --by stack shows them"
        yield Text(" " * indent + words, style="dim")


def path_end(path: str, width: int, options: RenderOptions) -> str:
    """*path* in at most *width* cells: folders are left out at its beginning."""
    path = options.clean(path)
    if cell_len(path) <= width:
        return path
    mark = options.clean("…")
    parts = path.split("/")
    for at in range(1, len(parts)):
        shown = f"{mark}/" + "/".join(parts[at:])
        if cell_len(shown) <= width:
            return shown
    return shorten(parts[-1], width, mark=mark)


def _name(frame: Frame, width: int, options: RenderOptions) -> str:
    """The function in at most *width* cells: outer functions and classes are left out first."""
    name = options.clean(function_name(frame) or "?")
    if cell_len(name) <= width or frame.language == "native":
        return options.short(name, width)
    mark = options.clean("…")
    parts = name.split(".")
    for at in range(max(1, len(parts) - width), len(parts)):
        shown = mark + ".".join(parts[at:])
        if cell_len(shown) <= width:
            return shown
    return shorten(parts[-1] or name, width, mark=mark)


def stack_lines(
    stack: CallStack, shown: Frame | None, indent: int, options: RenderOptions, *, whole: bool
) -> Iterator[Text]:
    """The frames below a row, innermost first, without *shown*, which the row names: a few, or *whole*."""
    frames = stack.frames[1:] if stack.frames and stack.frames[0] == shown else stack.frames
    kept = frames[: _MAX_FRAMES if whole else _CALLERS]
    for frame in kept:
        line = place_text(frame, options.width - indent, options)
        line.stylize("dim")
        yield Text.assemble(" " * indent, line)
    left = len(frames) - len(kept)
    if left:
        more = "" if whole else "; -v shows all"
        yield Text(" " * indent + options.clean(f"… {counted(left, 'frame')} more{more}"), style="dim")


# ---- tables: figures to the right, then what they are about ----


def table(
    heads: Sequence[str], body: Iterable[tuple[Sequence[str], Cell, Iterable[Text]]], options: RenderOptions
) -> list[Text]:
    """Columns of figures as wide as their contents, then the text; further lines below a row."""
    kept = [(list(map(options.clean, cells)), text, below) for cells, text, below in body]
    columns = [
        max([cell_len(head), *(cell_len(cells[at]) for cells, _, _ in kept)])
        for at, head in enumerate(heads[:-1])
    ]
    lead = "  "
    room = max(16, options.width - len(lead) - sum(columns) - 2 * len(columns))
    first = "".join(f"{head:>{width}}  " for head, width in zip(heads, columns, strict=False)) + heads[-1]
    lines = [Text(shorten(lead + first, options.width, mark=options.clean("…")), style="dim")]
    for cells, text, below in kept:
        figures = "".join(
            " " * (width - cell_len(cell)) + cell + "  " for cell, width in zip(cells, columns, strict=True)
        )
        lines += [Text.assemble(lead, figures, text(room)), *below]
    return lines


def rest_line(
    hidden: int,
    nbytes: int,
    options: RenderOptions,
    *,
    noun: str = "place",
    more: str = "--limit 0",
) -> list[Text]:
    if hidden <= 0:
        return []
    what = noun if hidden == 1 else noun + "s"
    words = options.clean(f"  … and {hidden:,} {what} more, {size(nbytes)} together; {more} shows all")
    return [Text(shorten(words, options.width, mark=options.clean("…")), style="dim")]


def sentence(
    text: str, options: RenderOptions, *, mark: str = "", style: str = "", indent: int = 2
) -> RenderableType:
    """Prose under a hanging indent, no wider than reads well."""
    if not mark and not indent:
        return Text("\n".join(wrap(options.clean(text), options.measure)), style=style)
    return paragraph(mark, Text(options.clean(text), style=style), options, indent=indent)


def heading(text: str, options: RenderOptions, *, style: str = "bold") -> Text:
    return Text(options.clean(text), style=style)


def gpu_heading(name: str, words: str, options: RenderOptions) -> Text:
    return Text.assemble((options.clean(name), "bold"), options.clean(f"  {words}"))


# ---- who was recorded, and what was not ----


def head(view: TraceView, options: RenderOptions) -> list[RenderableType]:
    """What was recorded: the command, its processes, how long, how many events."""
    if not view.processes:
        return [Text("no process recorded anything", style="bold")]
    first = view.processes[0]
    others = len(view.processes) - 1
    tail = f"  and {counted(others, 'more process')}" if others else ""
    command = options.short(command_of(first), options.width - cell_len(tail))
    lines: list[RenderableType] = [Text.assemble((command, "bold"), (tail, "dim"))]
    when = (
        datetime.fromtimestamp(first.started_wall_ns / 1e9, timezone.utc)
        if _is_date(first.started_wall_ns)
        else None
    )
    parts = [
        f"pid {first.pid}" if not others else f"pids {_pids(view.processes)}",
        f"{moment(view.duration_ns)}",
        f"{view.events:,} events",
        *([f"Python {first.python}"] if first.python else []),
        *([f"{when:%Y-%m-%d %H:%M} UTC"] if when else []),
    ]
    if first.attached:
        parts.append("attached while it ran")
    lines.append(sentence(" · ".join(parts), options, style="dim"))
    return lines


def _is_date(ns: int) -> bool:
    return 0 < ns < 253402300800 * 10**9


def _pids(processes: Sequence[TracedProcess]) -> str:
    shown = [str(each.pid) for each in processes[:4]]
    return ", ".join(shown) + (" …" if len(processes) > 4 else "")


def missing(view: TraceView) -> list[str]:
    """What the trace does not have, a sentence each: gaps, early ends, damage, no stacks."""
    words = [*_early_ends(view), *_gap_sentences(view)]
    if view.processes and all(process.stacks == "none" for process in view.processes):
        words.append("No stacks were recorded (--no-stacks): places are unknown.")
    words += _unpaired(view)
    words += [
        _as_sentence(block.note) for block in view.frameworks if block.note and not block.reserved_nbytes
    ]
    words += [_as_sentence(text) for text in view.damage]
    return words


def missing_lines(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    """What the trace does not have, below a blank line."""
    notes = missing(view)
    if notes:
        yield Text()
    for text in notes:
        yield sentence(text, options, mark="- ")


def _unpaired(view: TraceView) -> Iterator[str]:
    """Frees whose allocation was not recorded, and the other way round."""
    for process in view.processes:
        if process.unknown_frees:
            what = "a free was" if process.unknown_frees == 1 else f"{process.unknown_frees:,} frees were"
            yield f"pid {process.pid}: {what} of memory whose allocation was not recorded."
        if process.missing_frees:
            what = "a free is" if process.missing_frees == 1 else f"{process.missing_frees:,} frees are"
            yield f"pid {process.pid}: {what} not in the trace: the address was given out again."


def _early_ends(view: TraceView) -> Iterator[str]:
    for process in view.processes:
        if process.end in EARLY_ENDS:
            number = (
                process.end_errno if process.end_errno in errno.errorcode else 0
            )  # the file may say anything
            error = f" ({os.strerror(number)})" if number else ""
            yield f"pid {process.pid}: {EARLY_ENDS[process.end]}{error}."


def _gap_sentences(view: TraceView) -> Iterator[str]:
    pids = {process.index: process.pid for process in view.processes}
    for gap in view.gaps[:3]:
        pid, reason = pids.get(gap.process, "?"), GAP_REASONS[gap.reason]
        yield f"pid {pid}: nothing was recorded {_span(gap)}: {reason}."
    if len(view.gaps) > 3:
        yield f"{len(view.gaps) - 3} more gaps."


def _span(gap: Gap) -> str:
    until = "to the end" if gap.end_ns is None else f"to {moment(gap.end_ns)}"
    return f"from {moment(gap.start_ns)} {until}"


def _as_sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def before_sentences(view: TraceView) -> list[str]:
    return [
        f"{size(held.nbytes)} on {gpu_name(held.gpu)} were held before recording began ({held.source})."
        for held in view.before
    ]


def failure_text(failure: FailedAllocation) -> str:
    return (
        f"{size(failure.nbytes)} on {gpu_name(failure.gpu)} after {moment(failure.time_ns)}:"
        f" {_RESULTS.get(failure.result, f'CUDA error {failure.result}')}"
    )
