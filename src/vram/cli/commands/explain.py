"""``vram explain``: the manual page of a finding, of a check of the doctor, or of a kind of out-of-memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.terminal import emit
from vram.errors import ExitCode

NAME = "explain"
HELP = "the manual page of a finding: what it means, how to confirm it, what to do"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="a finding's code, like VR101, a check, like driver.versions, or a kind, like fragmented;"
        " without it, findings and checks are listed",
    )


def known_names() -> tuple[tuple[str, str], ...]:
    """Everything that has a page: findings, checks and kinds."""
    from vram.diagnosis import manual
    from vram.doctor import manual as checks
    from vram.oom import manual as kinds

    return (
        *((code, manual.summary(code)) for code in manual.codes()),
        *((check, checks.summary(check)) for check in checks.ids()),
        *((kind, kinds.summary(kind)) for kind in kinds.ids()),
    )


def run(args: Namespace) -> int:
    from vram.diagnosis import manual
    from vram.oom.manual import page as kind_page

    if args.code is None:
        emit("".join(f"{code}  {manual.summary(code)}\n" for code in manual.codes()) + _checks())
    elif "." in args.code:
        from vram.doctor import manual as checks

        emit(checks.page(args.code).rstrip() + "\n")
    elif kind := kind_page(args.code):
        emit(kind.rstrip() + "\n")
    else:
        emit(manual.page(args.code).rstrip() + "\n")
    return ExitCode.OK


def _checks() -> str:
    from vram.doctor import manual

    width = max(map(len, manual.ids()))
    return "".join(f"{check:<{width}}  {manual.summary(check)}\n" for check in manual.ids())
