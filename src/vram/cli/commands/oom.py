"""``vram oom``: an out-of-memory message, or a whole log: which kind it is, and what to do."""

from __future__ import annotations

import codecs
import io
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

from vram.cli.arguments import add_deadline_argument, add_windows_argument, narrowed
from vram.cli.source import open_host, require_driver, take_survey
from vram.cli.terminal import add_terminal_arguments, emit, render_options, show
from vram.errors import BadInput, ExitCode, NothingFound, UsageError

if TYPE_CHECKING:
    from vram.model.ledger import Ledger
    from vram.model.oom import Case

NAME = "oom"
HELP = "explain an out-of-memory error from a message or a log"

_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
PASTE = "Paste the message or the log, then press Enter and Ctrl-D:"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="log file, also gzip; - or nothing reads standard input",
    )
    parser.add_argument(
        "--live", action="store_true", help="combine it with this machine's state: who holds that memory now"
    )
    parser.add_argument(
        "--from", dest="snapshot", metavar="FILE", help="combine it with a snapshot of its machine instead"
    )
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help="with --live or --from: the GPU that the message means, by number, UUID or PCI address; 0:1"
        " is MIG device 1 of GPU 0",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--kinds", action="store_true", help="list the kinds; `vram explain KIND` has more")
    add_deadline_argument(parser)
    add_windows_argument(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    if args.kinds and args.json:
        raise UsageError("--kinds has no JSON form", hint="leave out --json")
    if args.kinds:
        return _kinds()
    joins = args.live or args.snapshot
    if args.gpu is not None and not joins:
        raise UsageError("--gpu works only with --live or --from FILE", hint="add --live, or --from FILE")
    from vram.oom.cases import cases
    from vram.oom.reader import find_messages

    with open_log(args.file) as log:
        found, unkept = cases(find_messages(log))
        nbytes = log.nbytes
    ledger = _ledger(args) if joins and found else None
    if ledger is not None:
        found = _joined(found, ledger, chosen=args.gpu is not None)
    _tell(_to_paste(found, args.file), unkept, nbytes, args)
    if ledger is not None:
        require_driver(ledger)
    return ExitCode.PARTIAL if any(case.judgement.kind == "unknown" for case in found) else ExitCode.OK


def _kinds() -> int:
    from vram.cli import manual

    kinds = manual.summaries(manual.kinds())
    width = max(len(kind) for kind, _ in kinds)
    emit("".join(f"{kind:<{width}}  {summary}\n" for kind, summary in kinds))
    return ExitCode.OK


def _ledger(args: Namespace) -> Ledger:
    host = open_host(args)
    from vram.ledger.build import build_ledger

    # A GPU that was named and is not there is a wrong call, as it is for `vram why`.
    return narrowed(build_ledger(take_survey(args, host)), None if args.gpu is None else [args.gpu])


def _joined(found: tuple[Case, ...], ledger: Ledger, *, chosen: bool) -> tuple[Case, ...]:
    from vram.diagnosis.engine import diagnose
    from vram.oom.live import join

    findings = diagnose(ledger)
    return tuple(join(case, ledger, findings, chosen=chosen) for case in found)


def _to_paste(found: tuple[Case, ...], file: str) -> tuple[Case, ...]:
    """Name the log in what is advised; what came through a pipe has no name."""
    from msgspec.structs import replace

    from vram.oom.remedies import naming

    if file == "-":
        return found
    return tuple(
        replace(case, judgement=replace(case.judgement, remedies=naming(file, case.judgement.remedies)))
        for case in found
    )


def _tell(found: tuple[Case, ...], unkept: int, nbytes: int, args: Namespace) -> None:
    if args.json:
        from vram.report import json_reports

        emit(json_reports.oom(found, unkept, nbytes))
    if not found:
        raise NothingFound(
            "no out-of-memory message found" if nbytes else "the input is empty",
            hint="paste all lines from the first error to the end, with their figures",
        )
    if not args.json:
        from vram.report import oom

        options = render_options(args)
        show(oom.text(found, unkept, nbytes, options), args, options)


# ---- logs: a file, compressed or not, or what is piped or pasted ----


class CountedLog(io.RawIOBase):
    """A log being read: counts its bytes; raises BadInput where it cannot be read."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._ended = False
        self.nbytes = 0

    def read(self, most: int = -1) -> bytes:
        if self._ended:
            return b""
        try:
            portion = self._stream.read(most)
        except EOFError as error:
            raise BadInput(f"{self._name} is truncated: its gzip stream is incomplete") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"cannot read {self._name}: {reason}") from error
        self.nbytes += len(portion)
        # A terminal goes on after its end of file: asked again, it would want a second Ctrl-D.
        self._ended = len(portion) < most
        return portion


class _Utf16(io.RawIOBase):
    """A log in UTF-16, as Windows PowerShell writes one for ``>``, read as UTF-8."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def read(self, most: int = -1) -> bytes:
        """Exactly *most* bytes, fewer at the end only: whoever reads takes fewer for the end."""
        raw = b"more"
        while raw and len(self._ready) < most:
            raw = self._stream.read(most)
            self._ready += self._decoder.decode(raw, final=not raw).encode("utf-8", "replace")
        portion, self._ready = self._ready[:most], self._ready[most:]
        return portion


@contextmanager
def open_log(path: str) -> Iterator[CountedLog]:
    """Open *path*; - is standard input."""
    if path == "-":
        yield CountedLog(_unpacked(_standard_input()), "standard input")
        return
    if not path:
        raise UsageError("file name is empty", hint=_hint(path))
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_hint(path)) from error
    with stream:
        yield CountedLog(_unpacked(stream), path)


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="name a file")
    if sys.stdin.isatty():
        print(PASTE, file=sys.stderr, flush=True)
    return cast("io.BufferedReader", sys.stdin.buffer)


def _unpacked(stream: io.BufferedReader) -> BinaryIO:
    try:
        first = b"" if stream.isatty() else stream.peek(2)[:2]
    except OSError:  # met again, and reported, by whoever reads
        first = b""
    if first in _UTF16:
        return cast("BinaryIO", _Utf16(stream))
    if first != _GZIP:
        return cast("BinaryIO", stream)
    import gzip

    return cast("BinaryIO", gzip.GzipFile(fileobj=stream))


def _hint(path: str) -> str:
    if os.path.isdir(path):
        return "name a file in it"
    return "name a log, or pipe one in: tail -n 500 train.log | vram oom"
