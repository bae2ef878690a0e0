"""Programs that sleep, for people and for programs: how each stands, and what wakes it."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.parking import GpuShare
from vram.model.plan import Target
from vram.model.sleeping import HiddenWait, SleepCheck, Sleeper, WaitFacts, WakeFile, WakeReason
from vram.report.escape import inert
from vram.report.layout import RenderOptions
from vram.report.phrases import one_line
from vram.units import counted, duration, size

_MAX_ADDRESSES = 4
# What a check says of waits that no open file shows: a heading, and where.
_HIDDEN: dict[HiddenWait, tuple[str, str]] = {
    "time": ("comes late", "time-outs, in"),
    "shared memory": ("not visible", "changes of memory that processes share, awaited by"),
    "io_uring": ("not visible", "answers of the kernel by io_uring, awaited by"),
}
_ARRIVED = {
    "listening": "a connection",
    "connection": "data",
    "datagrams": "a datagram",
    "pipe": "data in a pipe",
    "terminal": "a line at a terminal",
    "event": "an event",
}


class SleepReport(Struct, frozen=True, kw_only=True):
    """What ``vram sleep --json`` and ``vram wake --json`` print."""

    schema: int = 1
    taken_at: str
    sleeping: tuple[Sleeper, ...]


class SleepCheckReport(Struct, frozen=True, kw_only=True):
    """What ``vram sleep --check --json`` prints."""

    schema: int = 1
    taken_at: str
    checked: SleepCheck


def sleep_text(sleepers: Sequence[Sleeper], now: str, options: RenderOptions) -> RenderableType:
    """The list: one line for each program, and one more where something is wrong with it."""
    if not sleepers:
        return Text("Nothing sleeps.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("size", "pid", "GPU", "for", "state", "wakes", "last"):
        right = heading in ("size", "pid", "wakes", "last")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    table.add_column("command", no_wrap=True)
    for each in sleepers:
        table.add_row(*map(Text, _cells(each, now, options)))
    notes = [Text(inert(line)) for each in sleepers for line in _notes(each)]
    return Group(table, Text(), *notes, Text(_whole(sleepers)))


def _cells(each: Sleeper, now: str, options: RenderOptions) -> tuple[str, ...]:
    more = f" +{len(each.pids) - 1}" if len(each.pids) > 1 else ""
    return (
        size(each.nbytes) if each.shares else "",
        f"{each.pids[0]}{more}",
        ",".join(dict.fromkeys(str(share.gpu) for share in each.shares)),
        duration(_seconds(now) - _seconds(each.since)),
        each.state,
        str(each.wakes),
        wake_time(each.last_wake_s[-1]) if each.last_wake_s else "",
        options.short(one_line(each.targets[0].command), max(12, options.width - 54)),
    )


def _notes(each: Sleeper) -> list[str]:
    pid = each.pids[0]
    lines = [f"pid {pid} was woken by {cause(each.reason)}"] if each.reason is not None else []
    return [*lines, f"pid {pid}: {each.trouble}"] if each.trouble else lines


def _whole(sleepers: Sequence[Sleeper]) -> str:
    asleep = [each for each in sleepers if each.state != "awake"]
    if not asleep:
        return f"{counted(len(sleepers), 'program')}, awake. They sleep when they are idle."
    held = sum(each.nbytes for each in asleep)
    asleep_now = f"{counted(len(asleep), 'program')} asleep, {size(held)} in host memory"
    return f"{asleep_now}; woken by requests, or by `vram wake PID`."


def wake_time(seconds: float) -> str:
    """How long a wake took, to a tenth of a second."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def cause(reason: WakeReason) -> str:
    """Why a program was woken, in a few words."""
    if reason.file is not None:
        return f"{_ARRIVED[reason.file.kind]} {_where(reason.file)}"
    if reason.cause == "signal":
        return f"the signal {reason.signal}"
    return {"asked": "`vram wake`", "ended": "the end of a part of it"}.get(reason.cause, reason.detail)


def _where(file: WakeFile) -> str:
    return f"at {file.address}" if file.address else f"(descriptor {file.fd})"


def slept_sentence(each: Sleeper, waits: Sequence[WaitFacts]) -> str:
    """What ``vram sleep PID`` says when it is done."""
    moved = f"{size(each.nbytes)} moved from {_gpus(each.shares)} to host memory"
    return f"{_named(each.targets)} sleeps: {moved}\nwoken by {woken_by(waits, each.options.ports)}"


def watched_sentence(each: Sleeper, waits: Sequence[WaitFacts]) -> str:
    """What ``vram sleep --idle`` says: it is awake now, and will sleep."""
    idle = duration(each.options.idle_s or 0.0)
    return (
        f"{_named(each.targets)} sleeps when it has been idle for {idle}\n"
        f"woken by {woken_by(waits, each.options.ports)}"
    )


def woke_sentence(each: Sleeper) -> str:
    """What ``vram wake PID`` says."""
    return f"{_named(each.targets)} is awake, {size(each.nbytes)} on {_gpus(each.shares)}"


def woken_by(waits: Sequence[WaitFacts], ports: Sequence[int] = ()) -> str:
    """What wakes these processes, in one line."""
    files = [file for each in waits for file in each.files or () if not ports or file.port in ports]
    addresses = list(dict.fromkeys(_readable(file.address) for file in files if file.kind == "listening"))
    words = []
    if addresses:
        more = " ..." if len(addresses) > _MAX_ADDRESSES else ""
        words.append(f"a connection to {' or '.join(addresses[:_MAX_ADDRESSES])}{more}")
    for kind, noun in (
        ("connection", "connection"),
        ("datagrams", "datagram socket"),
        ("pipe", "pipe"),
        ("terminal", "terminal"),
        ("event", "event descriptor"),
    ):
        count = sum(file.kind == kind for file in files)
        if count:
            words.append(f"data on {counted(count, noun)}")
    return inert(", ".join([*words, "a signal, `vram wake`"]))


def _readable(address: str) -> str:
    """An address that people know; a socket in an open folder has none."""
    return "a Unix socket" if not address or address.startswith("/proc/") else address


def check_text(check: SleepCheck) -> RenderableType:
    """What ``vram sleep --check`` prints."""
    lines = [("wakes it", woken_by(check.waits, check.options.ports))]
    for kind, (name, words) in _HIDDEN.items():
        count = sum(each.hidden.get(kind, 0) for each in check.waits)
        if count:
            lines.append((name, f"{words} {counted(count, 'thread')}"))
    unread = [file for each in check.waits for file in each.files or () if file.unread]
    if unread:
        lines.append(
            ("unread", f"{counted(len(unread), 'file')}, ignored while what is unread does not grow")
        )
    realtime = sum(each.realtime for each in check.waits)
    if realtime:
        lines.append(
            ("real time", f"{counted(realtime, 'thread')} with a real-time priority will be stopped")
        )
    left = "" if check.memory_left is None else f"; {size(check.memory_left)} are left"
    lines.append(("host memory", f"it needs {size(check.nbytes)}{left}"))
    lines.append(("its place", "others may take it meanwhile: then it waits until there is room again"))
    table = Table.grid(padding=(0, 2, 0, 2))
    for name, words in lines:
        table.add_row(Text(name, style="dim"), Text(inert(words)))
    verdict = f"cannot sleep now: {check.refusal}" if check.refusal else "can sleep"
    head = f"{_named(check.targets)}, {size(check.nbytes)} on {_gpus(check.shares)}: {verdict}"
    return Group(Text(inert(head)), table)


def _named(targets: Sequence[Target]) -> str:
    command = inert(one_line(targets[0].command))
    short = command if len(command) <= 40 else command[:39] + "…"
    others = f" and {counted(len(targets) - 1, 'other')}" if len(targets) > 1 else ""
    return f"pid {targets[0].process.pid} ({short}){others}"


def _gpus(shares: Sequence[GpuShare]) -> str:
    return "GPU " + ", ".join(dict.fromkeys(str(share.gpu) for share in shares))


def _seconds(moment: str) -> int:
    return calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ"))
