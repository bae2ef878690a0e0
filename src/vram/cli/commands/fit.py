"""``vram fit``: which cards a traced program would have fitted, and how much would be left.

The need is the highest live memory of the trace and a context for each process. What a trace cannot know
(caches that would shrink, fragmentation, other kernels on other cards) is listed with the answer.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.terminal import add_terminal_arguments, emit, render_options, show
from vram.errors import ExitCode
from vram.units import parse_size, size

NAME = "fit"
HELP = "read a trace: which cards would it have fitted, and how much would be left"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="trace; several are the processes of one run"
    )
    parser.add_argument(
        "--memory", type=parse_size, metavar="SIZE", help="judge a card with this much memory only: 24GiB"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.cli.traces import read_view
    from vram.model.fit import GraphicsCard
    from vram.report import trace_fit
    from vram.trace.fit import CARDS, fit

    view = read_view(args.files)
    cards = CARDS if args.memory is None else (GraphicsCard(f"a card with {size(args.memory)}", args.memory),)
    found = fit(view, cards)
    if args.json:
        emit(trace_fit.json(view, found))
        return ExitCode.OK
    options = render_options(args)
    show(trace_fit.text(view, found, options), args, options)
    return ExitCode.OK
