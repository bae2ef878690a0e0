"""What the commands that record and read traces share: options, traces as one view, and sentences."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.units import counted, size

if TYPE_CHECKING:
    from vram.model.trace import TraceView
    from vram.trace.checks import CheckPlace, Violation
    from vram.trace.launch import Launched, Message, Stacks

# Reading a trace of this size takes about a second; of a larger one only its length is said.
SUMMARISED_NBYTES = 64 << 20
_WIDEST_PLACE = 160


def add_recording_arguments(parser: Parser) -> None:
    """Add the options that say what is recorded."""
    parser.add_argument("-o", "--output", metavar="FILE", help="the trace (default: %(prog)s names one here)")
    stacks = parser.add_mutually_exclusive_group()
    stacks.add_argument("--native", action="store_true", help="also record native frames, between Python's")
    stacks.add_argument("--no-stacks", action="store_true", help="record no stacks: smaller and faster")
    parser.add_argument(
        "--framework",
        choices=("auto", "torch", "cupy", "jax"),
        help="also record a framework's own blocks; auto: of all that are loaded",
    )


def stacks(args: Namespace) -> Stacks:
    return "native" if args.native else "none" if args.no_stacks else "python"


def read_view(files: Sequence[str], *, names: bool = True) -> TraceView:
    """Everything that *files* say, read as one. Raises BadTrace where one of them is no trace.

    Without *names*, native functions are those that the recorder knew: no library is opened for them.
    """
    from pathlib import Path

    from vram.trace.frameworks import with_frameworks
    from vram.trace.reader import open_trace
    from vram.trace.symbols import with_names

    with open_trace([Path(file) for file in files]) as trace:
        view = with_frameworks(trace.view(), trace)
        return with_names(view, trace.builds()) if names else view


# ---- what the recorder said ----


def sentences(launched: Launched) -> Iterator[str]:
    """What the user must know about a recording, besides its trace."""
    if launched.untraced == "another tool":
        yield ("not recorded: CUDA_INJECTION64_PATH is set already, by another tool; unset it and run again")
        return
    yield from message_sentences(launched.messages)
    if launched.left:
        names = ", ".join(shown_path(part.path) for part in launched.left[:3])
        yield f"the parts were not joined: {launched.left_reason}; `vram report` reads them too: {names}"
    for part in launched.growing:
        yield f"pid {part.pid} still runs and is recorded into {shown_path(part.path)}"
    if launched.trace is None and not launched.left and not launched.growing:
        yield _nothing(launched)


def _nothing(launched: Launched) -> str:
    if launched.untraced == "another machine":
        return (
            "nothing was recorded: the command is a program for another processor, into which vram's"
            " recorder cannot be loaded"
        )
    if any(message.code in _NOT_RECORDED for message in launched.messages):
        return "nothing was recorded"
    written = [message.text for message in launched.messages if message.code == "recording"]
    if written:
        return f"nothing is left of what was recorded: {written[0]} was removed or renamed meanwhile"
    return (
        f"nothing was recorded: the command {_without_cuda(launched.status)}, or used it where"
        " vram's environment does not reach (sudo, a container, another `vram run`, a server that was running"
        " already)"
    )


def _without_cuda(status: int) -> str:
    """That the command used no CUDA, and whether it had the time to."""
    if os.WIFSIGNALED(status):
        import signal

        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was ended by {name} before it used CUDA"
    code = os.WEXITSTATUS(status)
    return f"ended with exit code {code} before it used CUDA" if code else "used no CUDA"


_NOT_RECORDED = {
    "no-cupti": "NVIDIA's CUPTI was not found; install it into the program's environment:"
    " `pip install nvidia-cuda-cupti-cu12`, for CUDA 13 `pip install nvidia-cuda-cupti`",
    "subscriber": "another tool in it uses CUPTI, which serves one at a time; end that and run again",
    "cupti-error": "CUPTI does not work there",
    "output": "the trace could not be written",
}
_NOTED = {
    "disk-full": "recording ended early: no space is left for the trace; the program went on",
    "no-python-stacks": "no Python stacks: this version of Python is not known to vram",
}


def not_recorded(messages: Sequence[Message]) -> str:
    """Why some process was not recorded, or not to its end; empty where all were."""
    for message in messages:
        if message.code in _NOT_RECORDED:
            return f"pid {message.pid} was not recorded: {_NOT_RECORDED[message.code]}"
        if message.code == "disk-full":
            return _NOTED["disk-full"]
    return ""


def message_sentences(messages: Sequence[Message]) -> Iterator[str]:
    """One sentence for each kind of trouble: a hundred workers meet the same one."""
    for code in dict.fromkeys(message.code for message in messages):
        first, *more = (message for message in messages if message.code == code)
        who = f"pid {first.pid}" + (f" and {counted(len(more), 'other process')}" if more else "")
        detail = f" ({first.text})" if first.text else ""
        if code in _NOT_RECORDED:
            yield f"{who} was not recorded: {_NOT_RECORDED[code]}{detail}"
        elif code in _NOTED:
            yield f"{who}: {_NOTED[code]}{detail}"
        elif code != "recording":
            yield f"{who}: {code}{detail}"


# ---- a trace in one line ----


def summary(path: str, view: TraceView | None, nbytes: int) -> str:
    """The one line about a trace; *view* is None where it was too large to read just for that."""
    shown = shown_path(path)
    if view is None:
        return f"{shown}: {size(nbytes)}; `vram report {shown}`"
    events = "1 event" if view.events == 1 else f"{view.events:,} events"
    parts = [f"{events} of {counted(len(view.processes), 'process')}"]
    parts += [f"peak {size(gpu.peak_nbytes)} on {gpu_name(gpu.gpu)}" for gpu in view.gpus if gpu.peak_nbytes]
    return f"{shown}: {', '.join(parts)}; `vram report {shown}`"


def trace_line(path: str) -> str:
    """The one line about the trace at *path*, read where it is not too large for that."""
    from vram.errors import VramError

    try:
        nbytes = os.path.getsize(path)
        view = read_view([path], names=False) if nbytes <= SUMMARISED_NBYTES else None
        return summary(path, view, nbytes)
    except (OSError, ValueError) as error:  # another user's, perhaps in another container; a zero byte in it
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    except VramError as error:
        return f"{shown_path(path)}: {error}"


def shown_path(path: str) -> str:
    """*path* as it is typed from here, where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working folder is gone
        return path
    return relative if len(relative) < len(path) else path


def gpu_name(gpu: int | None) -> str:
    return "an unknown GPU" if gpu is None else f"GPU {gpu}"


# ---- checks that do not hold ----


def violation_lines(violation: Violation) -> Iterator[str]:
    """What was found, then the places, largest first."""
    check = violation.check
    most = size(check.most).replace(".0 ", "").replace(" ", "") if check.name == "peak" else check.most
    wanted = f"{check.name}={most}"
    if violation.unjudged:
        yield f"check {wanted} failed: it cannot be judged, {violation.unjudged}"
        return
    found = {
        "leaks": f"{counted(violation.found, 'allocation')} never freed",
        "unfreed": f"{counted(violation.found, 'allocation')} not freed",
        "peak": f"{size(violation.found)} on {gpu_name(violation.gpu)}",
        "failures": f"{counted(violation.found, 'allocation')} failed",
    }
    yield f"check {wanted} failed: {found[check.name]}"
    yield from (_place_line(place) for place in violation.places)
    if violation.left_out:
        yield f"  and {counted(violation.left_out, 'other place')}"


def _place_line(place: CheckPlace) -> str:
    from vram.report.layout import RenderOptions
    from vram.trace_report.lines import PlaceLabel

    options = RenderOptions(width=_WIDEST_PLACE)
    where = PlaceLabel.of_stack(place.stack).text(_WIDEST_PLACE, options)
    times = f" in {place.count:,} allocations" if place.count > 1 else ""
    verdict = f", {place.verdict}" if place.verdict else ""
    return f"  {size(place.nbytes)}{times}{verdict}: {where.plain}"
