"""``vram explain``: the page of a finding, a check of the doctor, a kind of out-of-memory, or a line."""

from __future__ import annotations

from argparse import Namespace

from vram.cli import manual
from vram.cli.arguments import Parser
from vram.cli.terminal import carries_unicode, columns, emit
from vram.errors import ExitCode

HELP = "explain a finding: what it means, how to confirm it, what to do"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="finding (VR101), check (driver.versions), kind of out-of-memory error (fragmented) or line"
        " of `vram why` (ghost); without it, list all",
    )


def known_names() -> tuple[tuple[str, str], ...]:
    """Everything that has a page, with its summary; a name that means two things is there once."""
    return tuple({name: text for names in _groups().values() for name, text in names}.items())


def run(args: Namespace) -> int:
    from vram.report.layout import RenderOptions, listing, manual_page

    options = RenderOptions(width=columns(), ascii=not carries_unicode())
    if args.code is None:
        emit("\n".join(f"{title}\n{listing(names, options)}" for title, names in _groups().items()))
    else:
        emit(manual_page(manual.page(args.code), options))
    return ExitCode.OK


def _groups() -> dict[str, tuple[tuple[str, str], ...]]:
    return {
        "findings of `vram why`": manual.summaries(manual.rules()),
        "checks of `vram doctor`": manual.summaries(manual.checks()),
        "kinds of `vram oom`": manual.summaries(manual.kinds()),
        "lines of `vram why`": manual.summaries(manual.lines()),
    }
