"""``vram snapshot``: everything that was seen, in one file that `vram why --from` can judge anywhere."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_reading_arguments
from vram.cli.source import open_host, read_survey
from vram.cli.terminal import emit
from vram.errors import ExitCode
from vram.report.escape import inert

if TYPE_CHECKING:
    from vram.model.observation import Survey

HELP = "save everything vram reads to a file, for `vram why --from`"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="output file; - is standard output"
    )
    parser.add_flag("--redact", help="leave out user names, command lines and host names")
    add_reading_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host(args)
    from vram.probes import bundle

    survey = read_survey(args, host)
    if args.redact:
        survey = bundle.redact(survey)
    if args.output == "-":
        emit(bundle.dumps(survey))
        return ExitCode.OK
    bundle.write(survey, args.output)
    look = shlex.join(("vram", "why", "--from", args.output))
    emit(f"{inert(_summary(survey))}\nread it with: {inert(look)}\n")
    return ExitCode.OK


def _summary(survey: Survey) -> str:
    gpus = {seen.gpu for seen in survey.observations if seen.gpu is not None}
    pids = {seen.process.pid for seen in survey.observations if seen.process is not None}
    gaps = [f"{probe.name} {probe.status}" for probe in survey.probes if probe.status not in ("ok", "denied")]
    seen = (
        f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}, {len(pids)} process{'' if len(pids) == 1 else 'es'}"
    )
    return f"written: {seen}" + (f"; {', '.join(gaps)}" if gaps else "")
