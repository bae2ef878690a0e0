"""``vram watch``: a line of text, a line of JSON, or environment variables for each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vram.model.change import Change, Event, WatchedGpu, WatchState
from vram.report.escape import inert
from vram.report.json import encode
from vram.report.layout import RenderOptions
from vram.report.phrases import gpu_label, one_line, workload
from vram.units import counted, size

# Linux allows 128 KiB for one variable, and a hook that prints it wants a line.
_MAX_VALUE_LENGTH = 4096
_EVENT_CELLS, _SIZE_CELLS = 13, 11

_RED, _YELLOW, _GREEN, _CYAN, _DIM = "31", "33", "32", "36", "2"
_COLORS: dict[str, str] = {
    "ghost": _RED,
    "gpu-lost": _RED,
    "driver-gone": _RED,
    "gpu-unreadable": _YELLOW,
    "gpu-removed": _YELLOW,
    "probe-failed": _YELLOW,
    "unattributed": _YELLOW,
    "hidden": _YELLOW,
    "finding": _YELLOW,
    "stopped": _YELLOW,
    "freed": _GREEN,
    "ghost-gone": _GREEN,
    "state": _DIM,
}
# What the state of now is made of, in text: everything that calls for attention. Processes are counted.
_WORTH_A_LINE: tuple[Event, ...] = (
    *("driver-gone", "gpu-lost", "gpu-unreadable", "probe-failed"),
    *("ghost", "unattributed", "hidden", "stopped", "parked", "finding"),
)


# ---- lines of JSON ----


def json_line(record: Change | WatchState) -> bytes:
    return encode(record, compact=True)


# ---- lines of text ----

_ROOM_FOR_NAMES = 100
"""From so many columns on a line has room for the date and for the name of a GPU."""


class _Line(NamedTuple):
    """One line; only ``words``, where foreign text stands, may be shortened."""

    at: str
    where: str
    event: str
    amount: str
    words: str

    def shown(self, options: RenderOptions, color: bool) -> str:
        """The line for this output, whatever is in it; a width of 0 stands for lines of any length."""
        event = self.event.ljust(_EVENT_CELLS)
        # Who watches a narrow terminal knows the date.
        at = self.at[11:] if 0 < options.width < _ROOM_FOR_NAMES else self.at
        start, end = f"{at} {self.where:<5} ", f" {self.amount:>{_SIZE_CELLS}}  "
        room = options.width - len(start) - len(event) - len(end)
        words = options.short(self.words, max(10, room)) if options.width else options.clean(self.words)
        if color and self.event in _COLORS:
            event = f"\x1b[{_COLORS[self.event]}m{event}\x1b[0m"
        return f"{start}{event}{end}{words}".rstrip() + "\n"


def state_text(state: WatchState, options: RenderOptions, *, color: bool = False) -> str:
    """A line for each GPU, and one for everything there that calls for attention."""
    lines = [_gpu_line(state.at, gpu, named=not 0 < options.width < _ROOM_FOR_NAMES) for gpu in state.gpus]
    for each in state.present:
        if each.event in _WORTH_A_LINE:
            amount = "" if each.held_bytes is None else size(each.held_bytes)
            lines.append(_Line(each.at, _label(each), "state", amount, f"{each.event}: {_what(each)}"))
    if not lines:
        lines.append(_Line(state.at, "host", "state", "", "no GPU"))
    return "".join(line.shown(options, color) for line in lines)


def change_text(change: Change, options: RenderOptions, *, color: bool = False) -> str:
    amount = "" if change.nbytes is None else f"{'+' if change.nbytes > 0 else ''}{size(change.nbytes)}"
    line = _Line(change.at, _label(change), change.event, amount, _what(change))
    return line.shown(options, color)


def _label(change: Change) -> str:
    if change.mig is not None:
        return f"MIG {change.mig}"
    return f"GPU {','.join(map(str, change.gpus))}" if change.gpus else "host"


def _gpu_line(at: str, gpu: WatchedGpu, *, named: bool) -> _Line:
    free = "" if gpu.free_bytes is None else size(gpu.free_bytes)
    words = "size unknown" if gpu.total_bytes is None else f"free of {size(gpu.total_bytes)}"
    words += f", {counted(gpu.processes, 'process')}" + (f", {gpu.name}" if named else "")
    return _Line(at, gpu_label(gpu), "state", free, words)


def _what(change: Change) -> str:
    return _WORDS.get(change.event, _process)(change)


def _process(change: Change) -> str:
    held = change.held_bytes
    now = f", now {size(held)}" if change.event in ("grew", "shrank") and held is not None else ""
    if change.event in ("grew", "shrank") and change.kind in ("orphaned", "exported"):
        return f"{_whose(change)}, held by {_who(change)}{now}{_command(change)}"
    if change.pid is None:
        return f"{change.kind}{now}"
    return f"{_who(change)}{now}{_note(change)}{_command(change)}"


def _note(change: Change) -> str:
    notes = {"released": ", still running", "parked": ", paused until `vram unpark`"}
    if change.taken_over_from is not None:
        return f", likely memory shared with pid {change.taken_over_from}, which ended"
    return notes.get(change.event, "")


def _ghost(change: Change) -> str:
    if change.pid is None:
        return f"{_whose(change)}, no visible process holds it"
    others = f" and {counted(len(change.co_holders), 'other')}" if change.co_holders else ""
    verb = "holds" if change.confidence == "fact" else "may hold"
    verb = verb.replace("holds", "hold") if others else verb
    return f"pid {change.pid}{others} {verb} {_whose(change)}{_command(change)}"


def _ghost_gone(change: Change) -> str:
    held = "" if change.pid is None else f", was held by pid {change.pid}{_command(change)}"
    return f"{_whose(change)}{held}"


def _whose(change: Change) -> str:
    if change.kind == "exported":
        return (
            "exported memory of a dead process" if change.code != "VR104" else "a dma-buf of a dead process"
        )
    return "memory of a dead process" if change.dead_pid is None else f"memory of dead pid {change.dead_pid}"


def _who(change: Change) -> str:
    user = f" {change.user}" if change.user else ""
    origin = workload(change.workload)
    return f"pid {change.pid}{user}{f' {origin}' if origin else ''}"


def _command(change: Change) -> str:
    return f" ({one_line(change.command)})" if change.command else ""


def _reason(change: Change) -> str:
    """What a GPU, the driver or a source says of itself."""
    name = "" if change.probe is None else f"{change.probe}: "
    return f"{name}{change.message or change.code or change.status or ''}"


_WORDS: dict[str, Callable[[Change], str]] = {
    "ghost": _ghost,
    "ghost-gone": _ghost_gone,
    "freed": lambda each: f"{size(each.free_bytes or 0)} of {size(each.total_bytes or 0)} free",
    "driver-back": lambda _: "the driver answers again",
    **dict.fromkeys(
        ("unattributed", "unattributed-gone"), lambda _: "in use, and nothing visible accounts for it"
    ),
    **dict.fromkeys(
        ("hidden", "hidden-gone"), lambda _: "in use by processes that are not visible from here"
    ),
    **dict.fromkeys(("finding", "finding-resolved"), lambda each: f"{each.code}: {each.message}"),
    **dict.fromkeys(("gpu-lost", "gpu-unreadable", "gpu-back", "gpu-added", "gpu-removed"), _reason),
    **dict.fromkeys(("driver-gone", "probe-failed", "probe-recovered"), _reason),
}


# ---- for hooks ----


_VARIABLES = (
    *("event", "at", "gpu", "mig", "nbytes", "held_bytes", "free_bytes", "total_bytes", "kind", "pid"),
    *("started_at", "dead_pid", "user", "command", "workload", "confidence", "code", "message"),
)


def environment(change: Change) -> dict[str, str]:
    """The change as variables: all of them always there, empty where nothing is known, on one line each."""
    words = {"gpu": ",".join(map(str, change.gpus)), "workload": workload(change.workload)}
    return {
        f"VRAM_{name.upper()}": _value(words[name] if name in words else getattr(change, name))
        for name in _VARIABLES
    }


def _value(value: object) -> str:
    # Names of other people's processes: without line breaks, escape codes or NUL, and still no shell word.
    return "" if value is None else inert(str(value))[:_MAX_VALUE_LENGTH]
