"""``vram slurm``: clean GPUs between jobs, for Prolog, Epilog and HealthCheckProgram of slurm.conf."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_yes_argument
from vram.cli.prestart import open_host
from vram.cli.terminal import columns, emit, is_terminal, say
from vram.errors import ExitCode, UsageError, VramError

if TYPE_CHECKING:
    from vram.model.slurm import HookResult, SlurmJob
    from vram.slurm.log import HookLog

HELP = "clean GPUs between Slurm jobs: prolog, epilog and health check"

# Slurm wants a prolog to take less than MessageTimeout (10 s), and kills a health check after 60 s.
_DEADLINES_S = {"epilog": 30.0, "prolog": 8.0, "health": 20.0}

_EPILOG = """\
Frees what the ended job left on its GPUs: processes in the job's control group or, where Slurm
keeps none, processes of the job's user that slurmd started and whose environment names the job.
SIGTERM, --grace, SIGKILL; then the GPUs are read again. Nothing else is touched: no other job, no
login, no service, no container.

exit codes (slurmd drains the node for any other than 0):
  0  no memory of the job is held; or unknown, without --unknown-counts
  1  memory of the job is still held
  2  the call was wrong
  3  unknown, with --unknown-counts"""

_PROLOG = """\
Frees what jobs left on the GPUs of the job that is about to start, if their epilog (`vram slurm
epilog`) has seen them end, and reads the GPUs.

exit codes (for any other than 0 slurmd drains the node, and the job is queued again):
  0  ready; or nothing was required
  1  --require or --require-clean is not met
  2  the call was wrong
  3  unknown, with --require, --require-clean or --unknown-counts"""

_HEALTH = """\
Only reads. Memory counts that an ended job left; memory without a visible holder, or of a job that
nobody has seen end, is "unknown".

exit codes:
  0  healthy
  1  an ended job's memory is held
  2  the call was wrong
  3  unknown: a GPU does not answer, or it is unknown whose memory it is"""


def add_arguments(parser: Parser) -> None:
    hooks = parser.add_subparsers(dest="hook", required=True, metavar="HOOK")
    epilog = hooks.add_parser("epilog", help="free what the ended job left on its GPUs")
    epilog.epilog = _EPILOG
    epilog.set_defaults(drain=False, expect=None, require=None, require_clean=False)
    _add_action_arguments(epilog)
    _add_common_arguments(epilog)
    prolog = hooks.add_parser("prolog", help="free what earlier jobs left, and check the job's GPUs")
    prolog.epilog = _PROLOG
    prolog.set_defaults(drain=False, expect=None)
    prolog.add_size("--require", help="fail unless each GPU has SIZE free")
    prolog.add_flag("--require-clean", help="fail if memory is held by anything but running jobs")
    _add_action_arguments(prolog)
    _add_common_arguments(prolog)
    health = hooks.add_parser("health", help="check all GPUs of this node; never acts on a process")
    health.epilog = _HEALTH
    health.set_defaults(grace=0.0, all_gpus=False, cgroup_only=False, dry_run=False)
    health.set_defaults(require=None, require_clean=False, job_output=False)
    health.add_argument("--expect", type=_count, metavar="N", help="unknown unless N GPUs answer")
    health.add_flag("--drain", help="drain the node if an ended job's memory is held")
    health.add_argument("--node", metavar="NODE", help="the node to drain (default: $SLURMD_NODENAME)")
    health.add_argument(
        "--scontrol",
        default="/usr/bin/scontrol",
        metavar="PATH",
        help="Slurm's command for --drain (default: %(default)s)",
    )
    _add_common_arguments(health)


def _add_action_arguments(parser: Parser) -> None:
    parser.add_duration(
        "--grace",
        zero=True,
        default=2.0,
        help="wait this long after SIGTERM before SIGKILL, for all processes together",
    )
    parser.add_flag("--all-gpus", help="every GPU of the node, not only those that Slurm gave the job")
    parser.add_flag("--cgroup-only", help="ignore what a process's environment says of its job")
    add_yes_argument(parser)
    parser.add_flag("--dry-run", help="only show what is held, and touch nothing")
    parser.add_flag("--job-output", help="also append what was done to the job's own output file")


def _add_common_arguments(parser: Parser) -> None:
    hook = parser.prog.rpartition(" ")[2]
    parser.add_flag("--unknown-counts", help=_UNKNOWN_HELP[hook])
    parser.add_size("--allow", default=0, help="ignore up to SIZE on each GPU")
    parser.add_argument(
        "--log", metavar="FILE", help="append a JSON line per action; %%j is the job's number"
    )
    parser.add_flag("--syslog", help="send the same lines to syslog")
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_duration("--deadline", default=_DEADLINES_S[hook], help="end after this time whatever happens")


_UNKNOWN_HELP = {
    "epilog": "exit with 3, and so drain the node, also where the answer is unknown",
    "prolog": "exit with 3 where the answer is unknown, even if nothing is required",
    "health": "with --drain, drain the node also where the answer is unknown",
}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise UsageError(f"{text!r} is not a number of GPUs", hint="for example --expect 8")
    return int(text)


def run(args: Namespace) -> int:
    from vram.slurm.jobs import job_of
    from vram.slurm.log import HookLog

    if args.log is not None and not os.path.isabs(args.log):
        raise UsageError(f"--log {args.log} is not an absolute path", hint="slurmd runs hooks in /")
    if args.drain:
        from vram.slurm.hooks import require_drainable

        require_drainable(_node(args), args.scontrol)
    job = None if args.hook == "health" else job_of(os.environ)
    log = HookLog(args.hook, job, path=args.log, syslog=args.syslog)
    with _watchdog(args, log):
        try:
            result = _result(args, job, log)
        except UsageError:
            raise
        except Exception as error:
            # A bug or a broken machine is no reason to drain a node: it is one more way of not knowing.
            return _report_failure(args, log, error)
        code = _exit_code(args, result)
        log.result(result, code)
        _show(args, result)
        if args.drain:
            _drain(args, result, log)
        if job is not None and args.job_output and (result.ended or result.held):
            from vram.report.slurm import text
            from vram.slurm.log import append_to_job_output

            lines = "".join(f"vram: {line}\n" for line in text(result).splitlines())
            append_to_job_output(os.environ, job, lines)
        return code


def _result(args: Namespace, job: SlurmJob | None, log: HookLog) -> HookResult:
    from vram.slurm import hooks

    options = hooks.HookOptions(
        deadline_s=args.deadline,
        grace_s=args.grace,
        all_gpus=args.all_gpus,
        cgroup_only=args.cgroup_only,
        dry_run=args.dry_run,
        require_bytes=args.require,
        require_clean=args.require_clean,
        allow_bytes=args.allow,
        expect_gpus=args.expect,
    )
    if job is not None and job.gpu_words is None and not options.all_gpus:
        host = open_host(reads_driver=False)  # nothing will be asked of it
    else:
        host = open_host(read_ahead_s=min(5.0, args.deadline))
    if args.hook == "health":
        return hooks.health(host, options)
    assert job is not None
    hook = hooks.epilog if args.hook == "epilog" else hooks.prolog
    return hook(host, job, options, log.ended)


def _node(args: Namespace) -> str:
    return args.node or os.environ.get("SLURMD_NODENAME") or ""


def _drain(args: Namespace, result: HookResult, log: HookLog) -> None:
    if result.verdict != "held" and not (result.verdict == "unknown" and args.unknown_counts):
        return
    from vram.report.slurm import drain_reason
    from vram.slurm.hooks import drain

    reason = drain_reason(result)
    try:
        if drain(_node(args), reason, args.scontrol):
            log.drained(_node(args), reason)
    except VramError as error:
        # The answer stays the same; the next check tries again.
        say(str(error))
        log.failed(str(error), _exit_code(args, result))


def _exit_code(args: Namespace, result: HookResult) -> ExitCode:
    if args.hook == "health":
        return {"clean": ExitCode.OK, "held": ExitCode.HELD, "unknown": ExitCode.PARTIAL}[result.verdict]
    required = args.hook == "epilog" or args.require is not None or args.require_clean
    if result.verdict == "held" and required:
        return ExitCode.HELD
    if result.verdict == "unknown":
        return _unknown_code(args)
    return ExitCode.OK


def _unknown_code(args: Namespace) -> ExitCode:
    """What "unknown" means to Slurm: trouble for a node only where the site said so."""
    counts = args.unknown_counts or args.hook == "health"
    if args.hook == "prolog":
        counts = counts or args.require is not None or args.require_clean
    return ExitCode.PARTIAL if counts else ExitCode.OK


def _report_failure(args: Namespace, log: HookLog, error: Exception) -> ExitCode:
    from vram.report.escape import inert

    code = _unknown_code(args)
    message = f"{error}" if isinstance(error, VramError) else f"{type(error).__name__}: {error}"
    with suppress(OSError):
        if not isinstance(error, VramError):
            sys.excepthook(*sys.exc_info())
        hint = f"\n  hint: {inert(error.hint)}" if isinstance(error, VramError) and error.hint else ""
        print(f"vram: unknown: {inert(message)}{hint}", file=sys.stderr, flush=True)
    log.failed(message, code)
    return code


def _show(args: Namespace, result: HookResult) -> None:
    from vram.report import slurm

    width = columns() if is_terminal() else None
    try:
        emit(slurm.json(result) if args.json else slurm.text(result, width))
    except (OSError, VramError):
        # slurmd may have closed what it does not keep, and a disk may be full: the answer is the same. What
        # could not be written must not be tried again at the end, where it would become the exit code.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def _watchdog(args: Namespace, log: HookLog) -> Iterator[None]:
    """End this process when the deadline has passed, whatever it waits for.

    A signal and not a thread: processes that read the driver are forked, and should find one thread.
    """

    def expire(*_: object) -> None:
        code = _unknown_code(args)
        message = f"the deadline of {args.deadline:g} s has passed; whether memory is held is unknown"
        with suppress(Exception):
            log.failed(message, code)
            os.write(2, f"vram: {message}\n".encode())  # what was interrupted may be writing itself
        os._exit(code)

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, args.deadline)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
