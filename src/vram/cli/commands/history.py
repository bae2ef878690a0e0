"""``vram history``: who held which GPU when, ghosts, waste, memory over time; as `vram serve` recorded it.

vram history --gpu 3 --at 04:12
vram history ghosts
vram history waste --since -7d
vram history series --gpu 3 --since yesterday
vram history search train.py --parquet rows.parquet
"""

from __future__ import annotations

import re
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, accept_old_option, whole_number
from vram.cli.terminal import add_terminal_arguments, emit, emit_json, is_fitted, render_options
from vram.errors import BadInput, ExitCode, UsageError

if TYPE_CHECKING:
    from vram.history.questions import Questions
    from vram.model import history as model

HELP = (
    "who held which GPU when, since when a ghost exists, who wastes memory; from what `vram serve` recorded"
)

VIEWS = {
    "holders": "who held memory at --at, or at the last reading (the default)",
    "ghosts": "memory of dead processes, and since when",
    "waste": "users by memory that they held without using it",
    "series": "one GPU's memory over time",
    "search": "what processes held whose command, user, container or job has a word in it",
}
_EPILOG = (
    "views:\n"
    + "\n".join(f"  {name:<8} {meaning}" for name, meaning in VIEWS.items())
    + """

TIME is 04:12, 'yesterday 04:12', 'mon 04:12', 2026-11-16T04:12, -2h, or seconds since 1970;
without a zone it is local time. SINCE with < and UNTIL with > are bounds: nothing was recorded there."""
)
_LIMIT, _MOST = 100, 10_000
_POINTS, _LINES = 400, 24
_MAX_S = 30.0
_OPTIONS = {"at": ("holders",), "start": ("ghosts", "waste", "series", "search"), "points": ("series",)}
_count = whole_number(_MOST)


def known_names() -> tuple[tuple[str, str], ...]:
    """The views."""
    return tuple(VIEWS.items())


def add_arguments(parser: Parser) -> None:
    parser.usage, parser.epilog = "vram history [options] [VIEW] [TEXT]", _EPILOG
    # "-2h" is a time and no option.
    parser._negative_number_matcher = re.compile(r"-\d")
    parser.add_argument("view", nargs="?", metavar="VIEW", help="what to ask (default: holders)")
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="for search: a part of a command or name, or a pid"
    )
    parser.add_argument("--gpu", metavar="GPU", help="only this one: its number, UUID, or MIG device as 0:1")
    parser.add_argument("--at", metavar="TIME", help="who held memory then")
    since = parser.add_argument(
        "--since", dest="start", metavar="TIME", help="from then on (default: all that is recorded)"
    )
    accept_old_option(parser, since, "--from")
    until = parser.add_argument("--until", dest="end", metavar="TIME", help="until then (default: now)")
    accept_old_option(parser, until, "--to")
    parser.add_argument(
        "--limit", type=_count, default=_LIMIT, metavar="N", help="rows of a table (default: %(default)s)"
    )
    parser.add_argument(
        "--points", type=_count, metavar="N", help=f"points of a series (default: {_LINES}; JSON: {_POINTS})"
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_argument("--parquet", metavar="FILE", help="write the rows as Parquet instead")
    parser.add_flag("--force", help="replace a Parquet file that exists")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="the history (default: /var/lib/vram/history.sqlite, or your own service's)",
    )
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    view = _view(args)
    times, notes = _times(args)
    if args.parquet:
        from vram.history.export import require_library

        require_library()
    from contextlib import closing

    from vram.history import default_path
    from vram.history.file import open_for_reading
    from vram.history.questions import Questions, within

    path = args.file or default_path()
    with closing(open_for_reading(path)) as connection, _damage_said(path), within(connection, _MAX_S):
        # All that is asked sees one state of the file, whatever the service writes meanwhile.
        connection.execute("BEGIN")
        report = _ask(view, Questions(connection), args, times)
    from msgspec.structs import replace

    _show(replace(report, notes=(*notes, *report.notes)), args)
    return ExitCode.OK


def _view(args: Namespace) -> str:
    view = args.view or "holders"
    if view not in VIEWS:
        raise UsageError(
            f"there is no view {view!r}: there are {', '.join(VIEWS)}", hint=f"vram history search {view}"
        )
    if (view == "search") != (args.text is not None):
        hint = "vram history search train.py"
        raise UsageError("search needs a word" if view == "search" else f"{view} takes no word", hint=hint)
    for name, views in _OPTIONS.items():
        given = getattr(args, name) is not None or (name == "start" and args.end is not None)
        if given and view not in views:
            words = {"at": "--at", "start": "--since and --until", "points": "--points"}
            raise UsageError(f"{words[name]} is for {', '.join(views)}", hint="see `vram history --help`")
    if args.json and args.parquet:
        raise UsageError("--json and --parquet exclude each other", hint="ask twice")
    return view


def _times(args: Namespace) -> tuple[dict[str, float | None], list[str]]:
    """Seconds since 1970 of --at, --since and --until, and what had to be chosen."""
    from vram.history.times import read_time

    now, notes = time.time(), []
    found: dict[str, float | None] = {}
    for name in ("at", "start", "end"):
        text = getattr(args, name)
        found[name] = None
        if text is not None:
            read = read_time(text, now)
            found[name] = read.wall
            notes += [read.note] if read.note else []
    return found, notes


@contextmanager
def _damage_said(path: str) -> Iterator[None]:
    """Say of a damaged file that it is one: bytes that were changed can also be values that make no sense."""
    from vram.history.file import DAMAGE, cannot_read

    try:
        yield
    except DAMAGE as error:
        raise cannot_read(path, error) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: it says what cannot be ({type(error).__name__}: {error})",
            hint="if it is not, this is a bug in vram: please report it",
        ) from error


def _ask(view: str, ask: Questions, args: Namespace, times: dict[str, float | None]) -> model.HistoryReport:
    start, end = times["start"], times["end"]
    if view == "ghosts":
        return ask.ghosts(start, end, gpu=args.gpu, limit=args.limit)
    if view == "search":
        return ask.search(args.text, start, end, gpu=args.gpu, limit=args.limit)
    if view == "waste":
        return ask.waste(start, end, limit=args.limit)
    if view == "series":
        points = args.points or (_POINTS if args.json or args.parquet else _LINES)
        return ask.series(ask.only_gpu() if args.gpu is None else args.gpu, start, end, points=points)
    return ask.holders_at(args.gpu, times["at"])


def _show(report: model.HistoryReport, args: Namespace) -> None:
    if args.parquet:
        from vram.files import new_file
        from vram.history import export

        with new_file(args.parquet, force=args.force) as stream:
            export.write(report, stream)
    elif args.json:
        emit_json(report)
    else:
        from vram.report.history import Page, history_text

        options = render_options(args)
        emit(history_text(report, Page(options if is_fitted() else options._replace(width=0))))
