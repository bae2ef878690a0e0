"""Parked processes for people and for programs: who, how large, since when, by whom, how it stands."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.parking import GpuShare, Parked, Purpose, SetAside, Unrecorded
from vram.report.layout import RenderOptions
from vram.report.phrases import one_line
from vram.units import counted, duration, size

_UNKNOWN = "?"
ELSEWHERE = "elsewhere"
ASLEEP = "asleep"
STANDINGS = {
    "parked": "parked",
    "locked": "locked",
    "busy": "being moved",
    "no room": "to be resumed, no room",
    "failed": "failed: restart it",
    "unknown": "unknown to the driver",
    ELSEWHERE: "other namespace",
    ASLEEP: "asleep",
}


class ParkedLine(Struct, frozen=True, kw_only=True):
    """One process of ``vram park --json``."""

    pid: int
    started_at: int | None
    user: str | None
    command: str
    nbytes: int | None
    shares: tuple[GpuShare, ...]
    since: str | None
    by: str | None
    purpose: Purpose | None
    state: str
    detail: str | None = None
    """What the driver said, where that is more than ``state`` tells."""
    known_from: Literal["journal", "driver"] = "journal"
    """"driver": no journal entry tells of it: its size, since when and by whom are unknown."""


class ParkedReport(Struct, frozen=True, kw_only=True):
    """What ``vram park --json`` prints."""

    schema: int = 1
    taken_at: str
    parked: tuple[ParkedLine, ...]
    set_aside: tuple[SetAside, ...] = ()


def report(lines: Sequence[ParkedLine], set_aside: Sequence[SetAside], now: str) -> ParkedReport:
    return ParkedReport(taken_at=now, parked=tuple(lines), set_aside=tuple(set_aside))


def line(entry: Parked, state: str, detail: str | None = None) -> ParkedLine:
    """The line of a process that the journal has."""
    return ParkedLine(
        **_target(entry),
        nbytes=entry.nbytes,
        shares=entry.shares,
        since=entry.since,
        by=entry.by_user,
        purpose=entry.purpose,
        # While it sleeps, its waker has the claim on it.
        state=ASLEEP if entry.purpose == "sleep" and state in ("busy", "parked") else state,
        detail=detail,
    )


def unrecorded_line(entry: Unrecorded) -> ParkedLine:
    """The line of a process of which only the driver says that it is parked."""
    unknown: dict[str, Any] = dict.fromkeys(("nbytes", "since", "by", "purpose"))
    return ParkedLine(**_target(entry), **unknown, shares=(), state=entry.state, known_from="driver")


def _target(entry: Parked) -> dict[str, Any]:
    target = entry.target
    return {
        "pid": target.process.pid,
        "started_at": target.process.started_at,
        "user": target.user,
        "command": target.command,
    }


def text(told: ParkedReport, options: RenderOptions) -> RenderableType:
    if not told.parked:
        return Text("Nothing is parked.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("size", "pid", "GPU", "for", "by", "state"):
        table.add_column(heading, justify="right" if heading in ("size", "pid") else "left", no_wrap=True)
    table.add_column("command", no_wrap=True)
    for line in told.parked:
        table.add_row(*map(Text, _cells(line, told.taken_at, options)))
    return Group(table, Text(), Text(f"{_whole(told.parked)} {_way_back(told.parked)}"))


def _whole(lines: Sequence[ParkedLine]) -> str:
    known = [line.nbytes for line in lines if line.nbytes is not None]
    processes = counted(len(lines), "process")
    if not known:
        return f"{processes}, of unknown size."
    unknown = f", {len(lines) - len(known)} of unknown size" if len(known) < len(lines) else ""
    return f"{processes}, {size(sum(known))} in host memory{unknown}."


def _way_back(lines: Sequence[ParkedLine]) -> str:
    found = [line.known_from == "driver" for line in lines]
    asleep = [line.state == ASLEEP for line in lines]
    resume = "Resume them with `vram unpark PID` or `vram unpark --all`. "
    words = "" if all(found) or all(asleep) else resume
    if any(found):
        words += (
            "Those of unknown size were found by querying the driver; only `vram unpark PID` resumes them."
        )
    words = words.strip()
    if any(asleep):
        words = f"{words} Those asleep wake when they are wanted, or by `vram wake PID`.".strip()
    if any(line.state == ELSEWHERE for line in lines):
        words += " Unpark those parked in another PID namespace from there."
    return words


def _cells(line: ParkedLine, now: str, options: RenderOptions) -> tuple[str, ...]:
    return (
        _UNKNOWN if line.nbytes is None else size(line.nbytes),
        str(line.pid),
        ",".join(str(share.gpu) for share in line.shares) or _UNKNOWN,
        _UNKNOWN if line.since is None else duration(_seconds(now) - _seconds(line.since)),
        options.short(line.by or _UNKNOWN, 16) + (" (borrow)" if line.purpose == "borrow" else ""),
        STANDINGS.get(line.state, line.state),
        options.short(one_line(line.command), max(12, options.width - 54)),
    )


def _seconds(moment: str) -> int:
    return calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ"))
