"""``vram explain``: the manual page of a finding, of a check of the doctor, or of a kind of out-of-memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli import manual
from vram.cli.terminal import carries_unicode, columns, emit
from vram.errors import ExitCode

NAME = "explain"
HELP = "the manual page of a finding: what it means, how to confirm it, what to do"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="a finding's code, like VR101, a check, like driver.versions, or a kind, like fragmented;"
        " without it, all of them are listed",
    )


Names = tuple[tuple[str, str], ...]


def known_names() -> Names:
    """Everything that has a page, with its summary."""
    return tuple(name for names in _groups().values() for name in names)


def run(args: Namespace) -> int:
    from vram.report.layout import RenderOptions, listing, manual_page

    options = RenderOptions(width=columns(), ascii=not carries_unicode())
    if args.code is None:
        emit("\n".join(f"{title}\n{listing(names, options)}" for title, names in _groups().items()))
    else:
        emit(manual_page(manual.page(args.code), options))
    return ExitCode.OK


def _groups() -> dict[str, Names]:
    return {
        "findings of `vram why`": manual.summaries(manual.rules()),
        "checks of `vram doctor`": manual.summaries(manual.checks()),
        "kinds of `vram oom`": manual.summaries(manual.kinds()),
    }
