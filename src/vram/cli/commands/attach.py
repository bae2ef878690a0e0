"""``vram attach``: record the allocations of a process that already runs, Python or not.

    vram attach 4711                     until `vram attach 4711 --stop`, or until the process ends
    vram attach 4711 --for 60s           for a minute, then its trace is complete
    vram attach 4711 --stop              stop recording, begun by vram attach or vram run

The process needs no preparation. What it allocated before has no lines: the report says how much it was,
and with --framework what its arrays are called. The recorder and the trace belong to the process: it goes on
when vram ends, and with --for it stops by itself, also when vram is killed meanwhile.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from vram.cli.arguments import (
    Parser,
    add_attach_arguments,
    add_yes_argument,
    wanted_via,
)
from vram.cli.prestart import open_host
from vram.cli.terminal import say
from vram.cli.tracing import add_recording_arguments, shown_path, stacks, trace_line
from vram.errors import ExitCode, UsageError
from vram.units import interruption, size

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.trace.attach import AttachReceipt

HELP = "record the GPU allocations of a running process; --stop ends it"

DEADLINE_S = 30.0
EPILOG = """\
Only your own processes, unless you are root. Ways to attach are those of `vram trim`; the process, or
one thread of a program without Python, stops for about a millisecond. Frames are Python's where there
are any, else the program's own. The process itself creates the file, and must be able to. It may also
be one that `vram run` launched.

After --stop the process continues, and its trace is complete; the recorder's library stays loaded in
it, without work. A trace of `vram run` is put together with the others of that run when the command
ends.
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_pid("pid", help="the process to record")
    parser.add_flag("--stop", help="stop recording it")
    add_recording_arguments(parser)
    parser.add_duration(
        "--for",
        dest="for_s",
        help="stop after this time, e.g. 60s, 5min or 2h, and wait for it; Ctrl-C stops earlier",
    )
    add_attach_arguments(parser, DEADLINE_S)
    add_yes_argument(parser)


def run(args: Namespace) -> int:
    if args.stop:
        return _stop(args)
    host = open_host()
    from vram.reach.target_root import sees_our_files
    from vram.trace.attach import attach
    from vram.trace.output import absolute, require_writable, unused_name

    name = args.output
    if not name:
        found = host.proc.facts(args.pid)
        name = unused_name((found[1].executable or "") if found else "", args.pid)
    name = absolute(name)
    if not sees_our_files(args.pid):
        if args.output and args.for_s is None:
            hint = f"`vram attach {args.pid} --stop -o FILE` brings it here"
            raise UsageError(f"pid {args.pid} sees other files: its trace is written there", hint=hint)
        name = require_writable(name, force=False)
    receipt = attach(
        host,
        args.pid,
        name,
        stacks=stacks(args),
        framework=args.framework,
        for_s=args.for_s,
        via=wanted_via(args),
        deadline_s=args.deadline,
    )
    if args.for_s is not None:
        return _wait(host, receipt, name, args.for_s)
    _say_begun(receipt, name)
    ends = "ends it" + (" and brings the trace here" if receipt.apart else "")
    say(f"`vram attach {args.pid} --stop` {ends}")
    return ExitCode.OK


def _stop(args: Namespace) -> int:
    from vram.reach.target_root import sees_our_files

    # A trace in a container is brought here when its recording ends.
    allowed = () if sees_our_files(args.pid) else ("output",)
    for option in ("output", "native", "no_stacks", "framework", "for_s"):
        if getattr(args, option) and option not in allowed:
            raise UsageError("--stop records nothing", hint=f"vram attach {args.pid} --stop")
    host = open_host(reads_driver=False)
    from vram.trace.attach import detach

    receipt = detach(host, args.pid, via=wanted_via(args), deadline_s=args.deadline)
    say(f"pid {args.pid} is no longer recorded")
    say(trace_line(_brought_here(receipt, args.output) if receipt.apart else receipt.answer.file))
    return ExitCode.OK


def _brought_here(receipt: AttachReceipt, output: str | None) -> str:
    """The trace of a process that sees other files, copied to *output*, or into the working folder."""
    from vram.trace.elsewhere import TraceElsewhere
    from vram.trace.output import absolute, unused_name

    pid = receipt.target.process.pid
    name = absolute(output or unused_name(receipt.target.executable or "", pid))
    trace = TraceElsewhere(receipt.target, receipt.answer.file)
    try:
        trace.bring(name)
    finally:
        trace.close()
    return name


def _say_begun(receipt: AttachReceipt, name: str) -> None:
    answer, pid = receipt.answer, receipt.target.process.pid
    if receipt.apart:
        say(f"recording pid {pid} into {answer.file} in its container")
    else:
        say(f"recording pid {pid} into {shown_path(answer.file or name)}")
    say(f"it was {interruption(receipt.stopped_s, receipt.waited_s)}")
    for line in answer.held:
        where = f" on its GPU {line.device}" if line.device >= 0 else ""
        say(f"it held {size(line.nbytes)}{where} before, according to {line.source}")
    if not answer.uses_cuda:
        say("it has not used CUDA yet: its trace begins when it does")


def _wait(host: LocalHost, receipt: AttachReceipt, name: str, for_s: float) -> int:
    """Until the time is over. Ctrl-C ends the recording, too; a killed vram leaves it to its timer."""
    from vram.errors import CannotRecord
    from vram.trace.attach import detach, wait_for_end
    from vram.trace.elsewhere import TraceElsewhere

    pid = receipt.target.process.pid
    elsewhere = TraceElsewhere(receipt.target, receipt.answer.file) if receipt.apart else None
    try:
        try:
            _say_begun(receipt, name)
            if not wait_for_end(host, receipt, for_s):
                say(f"pid {pid} is still being recorded, into {receipt.answer.file if elsewhere else name}")
                return ExitCode.PARTIAL
        except KeyboardInterrupt:
            with suppress(CannotRecord):  # its timer came first
                detach(host, pid)
        if elsewhere is not None:
            elsewhere.bring(name)
    finally:
        if elsewhere is not None:
            elsewhere.close()
    say(trace_line(name))
    return ExitCode.OK
