"""Words for what a trace has, for the terminal and for the page, and the sentences that the page begins with.

The terminal speaks of the allocations in a table, the page of one place or process: where that makes the
words differ, they stand below each other here.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from vram.model.trace import (
    BLOCKS,
    EndReason,
    Gap,
    GapReason,
    GpuUse,
    Site,
    TracedProcess,
    TraceView,
    Verdict,
    stack_of,
)
from vram.report.escape import inert
from vram.trace.places import function_name, position, shown_frames
from vram.units import counted, duration, size

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The worst first."""

VERDICT_REASONS: dict[Verdict, str] = {
    "leaked": "Their context was destroyed or reset while the program went on, and they had not been freed.",
    "growing": "The same place allocated again and again, to the end of the recording, and freed less.",
    "not freed": "The program had not freed them when it ended. It ran no Python, whose objects may live to"
    " the end: in C and C++ each allocation has a line that should free it.",
    "in use at exit": "They were live when the recording ended, and the place did not go on allocating:"
    " usually weights, buffers and caches that are meant to stay. In Python that alone is no leak.",
}
PAGE_VERDICT_REASONS: dict[Verdict, str] = {
    "leaked": "Its context was destroyed or reset while the program went on, and nobody had freed it.",
    "growing": "The same place allocated again and again, to the end of the recording, and kept it.",
    "not freed": "The program had not freed it when it ended, and ran no Python, whose objects may live to "
    "the end.",
    "in use at exit": "Never freed, but none of the above: weights, buffers and caches that are loaded "
    "once look like this. In Python it is only a leak if the program should have been done with it.",
}

GAP_REASONS: dict[GapReason, str] = {
    "another subscriber": "another profiler used CUPTI",
    "cupti shut down": "the program shut CUPTI down",
    "detached": "the recorder was detached",
    "unknown": "for a reason that the file does not name",
}
PAGE_GAP_REASONS = GAP_REASONS | {"unknown": "the reason is unknown"}

# Endings that are as they should be are not mentioned.
EARLY_ENDS: dict[EndReason, str] = {
    "detached": "recording was stopped by `vram attach --stop` or `--for`",
    "disk full": "recording stopped early: no space was left for the file",
    "write error": "recording stopped early: the file could not be written",
    "no cupti": "recording stopped early: CUPTI could not be used",
    "cut": "the recording has no end: the process was killed, or still runs",
}
PAGE_EARLY_ENDS: dict[EndReason, str] = {
    "disk full": "stopped recording because no space was left for its file",
    "write error": "stopped recording because its file could not be written",
    "no cupti": "could not be recorded: CUPTI did not work there",
    "cut": "was killed or still runs: its trace has no end",
}

FRAMEWORK_NAMES = {"torch": "PyTorch", "cupy": "CuPy", "jax": "JAX", "other": "another framework"}
PAGE_FRAMEWORK_NAMES = FRAMEWORK_NAMES | {"other": "other frameworks"}


def framework_name(name: str) -> str:
    return FRAMEWORK_NAMES.get(name, name)


def page_framework_name(name: str) -> str:
    return PAGE_FRAMEWORK_NAMES.get(name) or shortened(name)


def gpu_name(gpu: int | None) -> str:
    return "unknown GPU" if gpu is None else f"GPU {gpu}"


def command_of(process: TracedProcess) -> str:
    """The command as it could be typed."""
    return shlex.join(process.command) or process.executable or f"pid {process.pid}"


# ---- what happened, in plain sentences: the beginning of the page ----

Tone = Literal["plain", "good", "warning", "bad"]
MAX_COMMAND_LENGTH = 160
MAX_TEXT_LENGTH = 400
MAX_GPUS = 2
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY"""


class Sentence(NamedTuple):
    tone: Tone
    text: str


def shortened(text: str) -> str:
    """Inert text; of a long one the beginning and the end."""
    half = MAX_TEXT_LENGTH // 2
    if len(text) > MAX_TEXT_LENGTH:
        text = f"{text[:half]}…{text[-half:]}"
    return inert(text)


def page_moment(nanoseconds: int) -> str:
    """Show a time since the start: "1.25 ms", "12.4 s", "3 min 5 s"."""
    if nanoseconds >= 60_000_000_000:
        return duration(nanoseconds / 1e9)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= scale:
            return f"{nanoseconds / scale:.3g} {unit}"
    return f"{max(0, nanoseconds)} ns"


def page_command(process: TracedProcess) -> str:
    """The command, its end left out where it is long."""
    line = inert(command_of(process))
    return line if len(line) <= MAX_COMMAND_LENGTH else line[: MAX_COMMAND_LENGTH - 1] + "…"


def recorded(view: TraceView) -> str:
    """When, and on which host where the trace says so: "recorded 2026-01-01 12:00 UTC on node1"."""
    if not view.processes:
        return ""
    start_s = min(process.started_wall_ns for process in view.processes) // 1_000_000_000
    hosts = dict.fromkeys(process.host for process in view.processes if process.host)
    where = f" on {', '.join(map(shortened, list(hosts)[:3]))}" if hosts else ""
    return f"recorded {time.strftime('%Y-%m-%d %H:%M', time.gmtime(start_s))} UTC{where}"


def sentences(view: TraceView, windows: Sequence[Sentence] = ()) -> list[Sentence]:
    """Everything that a reader should know before the figures, the most important first. *windows* say what a
    process that already ran had and did: it has neither a peak nor an end of its own."""
    attached = windows and all(each.attached for each in view.processes)
    return [
        Sentence("plain", _what_ran(view)),
        *(() if attached else _uses(view.gpus)),
        *windows,
        *_never_freed(view),
        *_failures(view),
        *_before(view),
        *(Sentence("warning", _gap(gap, view)) for gap in view.gaps),
        *(
            Sentence("warning", f"Process {each.pid} {PAGE_EARLY_ENDS[each.end]}.")
            for each in view.processes
            if each.end in PAGE_EARLY_ENDS
        ),
        *(Sentence("warning", f"Damaged: {shortened(text).rstrip('.')}.") for text in view.damage),
    ]


def _what_ran(view: TraceView) -> str:
    count = len(view.processes)
    who = "One process was" if count == 1 else f"{count:,} processes were"
    gpus = counted(len(view.gpus), "GPU")
    events = "1 event" if view.events == 1 else f"{view.events:,} events"
    return f"{who} recorded for {page_moment(view.duration_ns)}: {events} on {gpus}."


def _uses(gpus: tuple[GpuUse, ...]) -> Iterator[Sentence]:
    """Of many GPUs the highest; the figures of all are below."""
    shown = gpus if len(gpus) <= MAX_GPUS else (max(gpus, key=lambda gpu: gpu.peak_nbytes),)
    yield from (Sentence("plain", _use(gpu)) for gpu in shown)


def _use(gpu: GpuUse) -> str:
    name = gpu_name(gpu.gpu)
    name = name[0].upper() + name[1:]
    left = f"held {size(gpu.end_nbytes)} at the end" if gpu.end_nbytes else "held nothing at the end"
    whole = "" if gpu.total_nbytes is None else f" of {size(gpu.total_nbytes)}"
    when = page_moment(gpu.peak_ns)
    return f"{name} was highest at {size(gpu.peak_nbytes)}{whole}, after {when}, and {left}."


def _never_freed(view: TraceView) -> Iterator[Sentence]:
    """Blocks of frameworks lie inside the driver's memory: their bytes are not added to it."""
    if not any(leak.verdict != "in use at exit" for leak in view.leaks):
        yield Sentence("good", "No leak was found.")
    for blocks in (False, True):
        what = " in blocks of frameworks" if blocks else ""
        sites: dict[Verdict, list[Site]] = {verdict: [] for verdict in VERDICTS}
        for leak in view.leaks:
            if (leak.site.kind in BLOCKS) == blocks:
                sites[leak.verdict].append(leak.site)
        if leaked := sites["leaked"]:
            yield Sentence("bad", f"{_sum(leaked)}{what} leaked, from {_from(view, leaked)}.")
        if growing := sites["growing"]:
            yield Sentence("warning", f"{_sum(growing)}{what} kept growing, from {_from(view, growing)}.")
        if kept := sites["not freed"]:
            count = sum(site.count for site in kept)
            many = f"{_sum(kept)} in {counted(count, 'allocation')}"
            yield Sentence(
                "warning", f"{many} {'was' if count == 1 else 'were'} not freed, from {_from(view, kept)}."
            )


def _from(view: TraceView, sites: list[Site]) -> str:
    """How many places, and which one has most; a wrapper with the line that called it."""
    largest = max(sites, key=lambda site: site.nbytes)
    name = " ← ".join(
        f"{function_name(frame) or '?'} {position(frame).rpartition('/')[2]}"
        for frame in shown_frames(view, stack_of(view, largest.stack))
        if frame is not None
    )
    many = counted(len(sites), "place")
    if not name:
        return many
    return f"{many}{':' if len(sites) == 1 else ', most of it from'} {shortened(name)}"


def _sum(sites: list[Site]) -> str:
    return size(sum(site.nbytes for site in sites))


def _failures(view: TraceView) -> Iterator[Sentence]:
    """Of other errors nothing is said here: programs ask for what a GPU may not have, and do without it."""
    full = [failure for failure in view.failures if failure.result == OUT_OF_MEMORY]
    if not full:
        return
    most = "at least " if view.failures_in_all > len(view.failures) else ""
    largest = max(full, key=lambda failure: failure.nbytes)
    which = ": it" if len(full) == 1 and not most else "; the largest"
    text = f"{most}{counted(len(full), 'allocation')} failed for lack of memory{which} asked for"
    yield Sentence("bad", f"{text[0].upper()}{text[1:]} {size(largest.nbytes)} on {gpu_name(largest.gpu)}.")


def _before(view: TraceView) -> Iterator[Sentence]:
    for held in view.before:
        where = "" if held.gpu is None else f" on GPU {held.gpu}"
        text = f"{size(held.nbytes)}{where} were held before recording began ({shortened(held.source)})"
        yield Sentence("plain", f"{text}: where they were allocated is unknown.")


def _gap(gap: Gap, view: TraceView) -> str:
    until = "to the end" if gap.end_ns is None else f"for {page_moment(gap.end_ns - gap.start_ns)}"
    pid = next((each.pid for each in view.processes if each.index == gap.process), None)
    whose = "" if pid is None or len(view.processes) == 1 else f" of process {pid}"
    start, reason = page_moment(gap.start_ns), PAGE_GAP_REASONS[gap.reason]
    return f"Nothing{whose} was recorded {until} from {start} on: {reason}."
