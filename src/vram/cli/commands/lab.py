"""``vram lab``: what people say about GPU memory, put to the test on this machine."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.terminal import Counter, add_terminal_arguments, emit, render_options, show_report
from vram.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.lab.claim import DefinedClaim
    from vram.lab.experiment import LabDevice
    from vram.model.lab import LabReport, Result

HELP = "test claims about GPU memory on this machine"

_EPILOG = """\
An experiment starts its own processes, uses no more memory than its page says,
and leaves nothing behind. None resets a GPU or changes a setting. Those that
make a kernel fail run only by name or with --faults: the driver logs each
failure (Xid), and monitoring may take it for a fault of the GPU.

exit codes of `vram lab run`:
  0  every claim was found true or false here
  2  the call was wrong
  3  some could not be decided; one line for each says why
  4  no GPU answers"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "verb",
        nargs="?",
        choices=("list", "run", "show"),
        default="list",
        metavar="list|run|show",
        help="list the claims (default), run them, or show an experiment's page",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these experiments")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="test on this GPU (default: 0)")
    parser.add_duration("--deadline", help="stop an experiment after this time (default: as on its page)")
    parser.add_flag(
        "--faults", help="also run the experiments that make a kernel fail, which the driver logs (Xid)"
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_argument(
        "--evidence",
        metavar="FOLDER",
        help="write the results to a file there, named by date, GPU and driver",
    )
    add_terminal_arguments(parser)


def known_names() -> tuple[tuple[str, str], ...]:
    """The experiments, each with its claim."""
    from vram.lab.topics import chosen

    return tuple((each.name, each.describe().claim) for each in chosen([]))


def run(args: Namespace) -> int:
    if args.evidence == "":
        raise UsageError("--evidence needs the name of a folder")
    if args.faults and args.verb != "run":
        raise UsageError("--faults is for `vram lab run`", hint="add `run`")
    if args.evidence and args.verb != "run":
        raise UsageError("--evidence saves the results of `vram lab run`", hint="add `run`")
    return {"list": _list, "show": _show, "run": _run}[args.verb](args)


def _list(args: Namespace) -> int:
    from vram.lab.topics import chosen
    from vram.model.lab import LabCatalogue
    from vram.report import lab

    experiments = tuple(each.describe() for each in chosen(args.names))
    report = LabCatalogue(experiments=experiments)
    show_report(args, report, lambda options: lab.listing(experiments, options))
    return ExitCode.OK


def _show(args: Namespace) -> int:
    if not args.names:
        raise UsageError("no experiment given", hint="`vram lab list` lists them")
    if args.json:
        return _list(args)
    from vram.lab.topics import chosen
    from vram.report import lab

    options = render_options(args)
    emit("\n".join(lab.page(each.describe(), options) for each in chosen(args.names)))
    return ExitCode.OK


def _run(args: Namespace) -> int:
    from vram.cli.app import exit_on_signals
    from vram.cli.prestart import open_host
    from vram.lab.experiment import LabSession, find_device
    from vram.lab.topics import chosen, to_run

    chosen(args.names)  # a wrong name is told before anything is started
    host = open_host(reads_driver=False)
    host.nvml.prepare()
    device = find_device(host, args.gpu)
    if args.evidence and device.facts.virtual:
        hint = "its results show only the model; leave out --evidence"
        raise UsageError("results of a virtual GPU are no evidence", hint=hint)
    # On a virtual GPU no kernel runs, and nothing is logged.
    claims, without_faults = to_run(args.names, faults=args.faults or device.facts.virtual)
    results: list[Result] = []
    counter = Counter(len(claims))
    try:
        with exit_on_signals(), LabSession(host, device, args.deadline) as session, counter:
            for number, claim in enumerate(claims, 1):
                counter.next(claim.name)
                results.append(session.run(claim, claims[number:]))
    except (KeyboardInterrupt, SystemExit):  # those that were finished are shown
        _write(_report(host, device, results, without_faults, claims[len(results) :]), args)
        raise
    report = _report(host, device, results, without_faults)
    _write(report, args)
    decided = all(result.verdict != "cannot tell" for result in report.results)
    return ExitCode.OK if decided else ExitCode.PARTIAL


def _report(
    host: LocalHost,
    device: LabDevice,
    results: Sequence[Result],
    without_faults: Sequence[DefinedClaim],
    left_out: Sequence[DefinedClaim] = (),
) -> LabReport:
    import platform

    from vram import __version__
    from vram.model.lab import LabReport

    return LabReport(
        taken_at=host.clock.now(),
        program=f"vram {__version__}",
        gpu=device.facts.name,
        index=device.index,
        driver=device.driver.driver_version,
        cuda=device.driver.cuda_version,
        # Without what its builder added: that would name the machine.
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        virtual=device.facts.virtual,
        results=tuple(results),
        left_out=tuple(claim.name for claim in left_out),
        without_faults=tuple(claim.name for claim in without_faults),
    )


def _write(report: LabReport, args: Namespace) -> None:
    from vram.report import lab

    if args.evidence and not report.left_out:  # evidence is whole, or none
        from vram.files import write_files

        write_files(args.evidence, lab.files(report))
    show_report(args, report, lambda options: lab.results(report, options))
