"""``vram report``: what a trace says: which line allocated, what was live at the peak, what never came back.

`vram run` and `vram attach` write traces. Without a view, one screen; with one, a table, a chart or a tree.
Exit code 0 means that the trace was read, also where it has leaks.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, gpu_numbers, whole_number
from vram.cli.terminal import add_terminal_arguments, emit, say, show
from vram.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vram.model.trace import TraceView
    from vram.report.layout import RenderOptions
    from vram.trace_report.lines import ReportOptions
    from vram.trace_report.rows import By

HELP = "read a trace: which line allocated, what was live at the peak, what was never freed, which card fits"

VIEWS = {
    "summary": "one screen (the default)",
    "peak": "what was live at the highest moment",
    "window": "a program that goes on: is it growing, what holds most, what churns",
    "leaks": "what was never freed, and whether that is a leak",
    "timeline": "live memory over time",
    "churn": "places that allocate and free again and again",
    "frag": "how scattered the live allocations are",
    "diff": "what the second of two traces holds more",
    "fit": "the smallest card that it would have fitted, and how much would be left",
}
EXPORTS = ("perfetto", "speedscope", "torch", "parquet")
_ROWS = 10
_EPILOG = "views:\n" + "\n".join(f"  {name:<9} {meaning}" for name, meaning in VIEWS.items())
_row_count = whole_number(10**9 - 1, "a number of rows", least=0)


def known_names() -> tuple[tuple[str, str], ...]:
    """The views; a trace may stand in their place."""
    return tuple(VIEWS.items())


def add_arguments(parser: Parser) -> None:
    parser.usage, parser.epilog = "vram report [options] [VIEW] FILE...", _EPILOG
    parser.add_argument("view", nargs="?", metavar="VIEW", help="what to show of it (default: summary)")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="trace; several are read as one, as the processes of one run. diff takes two",
    )
    parser.add_argument(
        "--by",
        choices=("line", "function", "file", "library", "stack"),
        help="gather allocations by this (default: line; for diff: stack)",
    )
    parser.add_argument(
        "--gpu", action="append", metavar="N", help="only this GPU, as the traced program numbers them"
    )
    parser.add_pid("--process", action="append", help="only this process of the trace")
    parser.add_argument(
        "--limit", type=_row_count, metavar="N", help=f"rows of a table (default: {_ROWS}); 0 shows all"
    )
    parser.add_flag("--tree", help="with peak: the calls that lead to what was live")
    parser.add_size("--memory", help="with fit: judge a card with this much, e.g. 24GiB")
    parser.add_flag("-v", "--verbose", help="whole stacks; with fit: every card")
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_argument("--html", metavar="FILE", help="write one HTML page that works offline instead")
    parser.add_argument("--export", choices=EXPORTS, help="write the trace for another tool, with -o")
    parser.add_argument("-o", "--output", metavar="FILE", help="output file of --export")
    parser.add_flag("--force", help="replace an output file that exists")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    view, files = _view_and_files(args)
    _require_options_agree(args, view)
    if args.export:
        return _export(args, files)
    if view == "diff":
        return _diff(args, files)
    if view == "fit":
        return _fit(args, files)
    trace = _read(args, files)
    if args.html:
        return _html(args, trace)
    if args.json:
        from vram.trace_report import json

        emit(json.report(trace, view, args.by or "line", args.limit or None))  # type: ignore[arg-type]
        return ExitCode.OK
    from vram.trace_report.views import REPORTERS

    render = REPORTERS["tree" if args.tree else view]
    show(args, lambda screen: render(trace, _options(args, screen)))
    return ExitCode.OK


# ---- the words ----


def _view_and_files(args: Namespace) -> tuple[str, list[str]]:
    """The first word is a view or, where it is none, a trace."""
    if args.view is None or (args.view in VIEWS and not args.files):
        hint = "`vram run -- COMMAND` records one; then `vram report FILE`"
        raise UsageError("no trace given", hint=hint)
    if args.view in VIEWS:
        return args.view, args.files
    files = [args.view, *args.files]
    for word in files[1:]:
        if word in VIEWS and not Path(word).exists():
            others = [file for file in files if file != word]
            raise UsageError("the view comes first", hint=f"vram report {word} {' '.join(others)}")
    first = files[0]
    if len(files) > 1 and "/" not in first and not Path(first).exists():
        from difflib import get_close_matches

        close = get_close_matches(first.lower(), VIEWS, n=1)
        meant = f"did you mean `vram report {close[0]}`?" if close else f"the views are {', '.join(VIEWS)}"
        raise UsageError(f"{first!r} is neither a view nor a trace", hint=meant)
    return "summary", files


def _require_options_agree(args: Namespace, view: str) -> None:
    if args.tree and view != "peak":
        raise UsageError("--tree draws the calls of one view", hint="vram report peak --tree FILE")
    if args.tree and args.json:
        raise UsageError("--tree has no JSON form", hint="leave out --tree: every row has its stack")
    if args.memory is not None and view != "fit":
        raise UsageError("--memory is for one view", hint="vram report fit --memory 24GiB FILE")
    if view == "fit" and (args.by or args.gpu or args.process or args.limit is not None):
        raise UsageError(
            "fit judges the whole trace",
            hint="leave out --by, --gpu, --process and --limit; -v lists every card",
        )
    if sum(map(bool, (args.json, args.html, args.export))) > 1:
        raise UsageError("--json, --html and --export exclude each other", hint="choose one of them")
    if (args.html or args.export) and view != "summary":
        option = "--html" if args.html else "--export"
        raise UsageError(f"{option} writes the whole trace, not a view", hint=f"leave out {view}")
    if bool(args.export) != bool(args.output):
        hint = "for example: --export perfetto -o trace.json"
        raise UsageError("--export and -o belong together", hint=hint)


# ---- traces ----


def _read(args: Namespace, files: list[str]) -> TraceView:
    from vram.cli.tracing import read_view
    from vram.trace_report.rows import narrowed

    whole = read_view(files)
    part = narrowed(whole, gpu_numbers(args.gpu) if args.gpu else (), args.process or ())
    if len(part.processes) < len(whole.processes) and not args.json:
        say(f"the figures of a GPU as a whole are those of all {len(whole.processes)} processes")
    return part


def _options(args: Namespace, screen: RenderOptions, by: By = "line") -> ReportOptions:
    from vram.trace_report.lines import ReportOptions

    limit = _ROWS if args.limit is None else args.limit
    return ReportOptions(screen=screen, by=args.by or by, limit=limit, verbose=args.verbose)


def _diff(args: Namespace, files: list[str]) -> int:
    if len(files) != 2:
        raise UsageError(
            f"diff compares two traces, {len(files)} given", hint="vram report diff BEFORE AFTER"
        )
    before, after = (_read(args, [file]) for file in files)
    if args.json:
        from vram.trace_report import json

        emit(json.diff(before, after, args.by or "stack", args.limit or None))
        return ExitCode.OK
    from vram.trace_report.views import diff

    show(args, lambda screen: diff(before, after, _options(args, screen, "stack")))
    return ExitCode.OK


def _fit(args: Namespace, files: list[str]) -> int:
    """The need is the highest live memory of the trace, and a context for each process."""
    from vram.cli.tracing import read_view
    from vram.model.trace import GraphicsCard
    from vram.trace.fit import CARDS, fit

    view = read_view(files)
    cards = CARDS if args.memory is None else (GraphicsCard("a card", args.memory),)
    found = fit(view, cards)
    if args.json:
        from vram.trace_report import json

        emit(json.fit(view, found))
        return ExitCode.OK
    from vram.trace_report import summary

    show(args, lambda screen: summary.cards(view, found, _options(args, screen)))
    return ExitCode.OK


# ---- files for other programs ----


def _html(args: Namespace, view: TraceView) -> int:
    from vram.files import new_file
    from vram.trace_report.pages import page

    args.html = _target(args.html)
    title = ", ".join(Path(path).name for path in view.paths)
    contents = page(view, title=title).encode("utf-8", "backslashreplace")
    with new_file(args.html, force=args.force) as stream:
        stream.write(contents)
    return _written(args.html)


def _export(args: Namespace, files: list[str]) -> int:
    from vram.trace.exports import export
    from vram.trace.reader import open_trace

    if args.gpu or args.process:
        raise UsageError("--export writes the whole trace", hint="leave out --gpu and --process")
    args.output = _target(args.output)
    with open_trace([Path(file) for file in files]) as trace:
        export(trace, args.export, args.output, force=args.force)
    return _written(args.output)


def _target(path: str) -> str:
    return "/dev/stdout" if path == "-" else path


def _written(path: str) -> int:
    from vram.report.escape import inert

    if path != "/dev/stdout":
        emit(f"written: {inert(path)}\n")
    return ExitCode.OK
