"""``vram explain``: the manual page of a finding, of a check of the doctor, or of a kind of out-of-memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

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
    from vram.report.look import Look
    from vram.report.manual_page import listing, manual_page

    look = Look(width=columns(), ascii=not carries_unicode())
    if args.code is None:
        emit("\n".join(f"{title}\n{listing(names, look)}" for title, names in _groups().items()))
    else:
        emit(manual_page(_page(args.code), look))
    return ExitCode.OK


def _groups() -> dict[str, Names]:
    from vram.diagnosis import manual
    from vram.doctor import manual as checks
    from vram.oom import judge as kinds

    return {
        "findings of `vram why`": tuple((code, manual.summary(code)) for code in manual.codes()),
        "checks of `vram doctor`": tuple((check, checks.summary(check)) for check in checks.ids()),
        "kinds of `vram oom`": tuple((kind, kinds.summary(kind)) for kind in kinds.ids()),
    }


def _page(name: str) -> str:
    from vram.diagnosis import manual
    from vram.doctor import manual as checks
    from vram.oom import judge as kinds

    if "." in name:
        return checks.page(name)
    return kinds.page(name) or manual.page(name)
