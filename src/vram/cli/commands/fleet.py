"""``vram fleet``: the GPUs of many machines in one table, and their leftovers freed by their own services."""

from __future__ import annotations

import time
from argparse import SUPPRESS, Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, accept_old_option, whole_number
from vram.cli.terminal import add_terminal_arguments, ask, emit, is_dialogue, lines, show_report
from vram.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vram.fleet.collect import CollectOptions
    from vram.fleet.transport import Transport
    from vram.fleet.transports.recorded import RecordedNodes
    from vram.model.fleet import FleetFreeReport, FleetReport

HELP = "the GPUs of many machines, over ssh, Ray or Slurm; frees their leftovers"

_EPILOG = """\
One of --snapshots, --hosts, --ray and --srun says where the nodes are. Each
runs `vram snapshot`; the snapshots are judged here. A node that gives none, or
one that cannot be true, is a line with its reason, neither counted nor acted on.

`vram fleet free` asks the service of each node with leftovers (`vram serve`)
for its plan, shows all plans, asks once, and has each node run its own, if it
is still the same plan.

exit codes:
  0  every node answered; for `free`: all that was planned is freed
  1  for `free`: plans were only shown, or declined
  2  the call was wrong
  3  partial: some node gave no whole answer, or did not do what it had planned"""
_count = whole_number(1000)


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    option = parser.add_argument
    option("verb", nargs="?", choices=("free",), metavar="free", help="free leftovers, node by node")
    folder = option(
        "--snapshots", dest="folder", metavar="FOLDER", help="recorded snapshots, one file NODE.json a node"
    )
    accept_old_option(parser, folder, "--from")
    option("--hosts", metavar="HOST[,HOST...]", help="over ssh; @FILE names a file with one host a line")
    option("--ray", metavar="ADDRESS", help="the nodes of a Ray cluster: HOST:6379, ray://HOST:10001, auto")
    parser.add_flag("--srun", help="the nodes of the Slurm allocation that this runs in")
    option(
        "--node", action="append", default=[], metavar="HOST", help="only this node, GPU by GPU (repeatable)"
    )
    option("--by", choices=("user", "job", "pod"), help="sum over the fleet by this instead of by node")
    parser.add_flag("-v", "--verbose", help="every node and every GPU")
    parser.add_flag("--json", help="one JSON object instead of text")
    option("--parquet", metavar="FOLDER", help="also add what was read to this history of Parquet files")
    parser.add_flag("--yes", "-y", help="with free: run the plans without asking")
    option("--socket", metavar="PATH", help="with free: the services' socket on the nodes")
    option("--vram", metavar="WORDS", help="the command on the nodes (default: vram), e.g. 'sudo -n vram'")
    option("--parallel", type=_count, default=32, metavar="N", help="ask N nodes at once (default: 32)")
    parser.add_duration("--deadline", default=20.0, help="time for each node")
    parser.add_duration("--all-within", default=120.0, help="time for all nodes")
    parser.add_flag("--any-name", help="accept a node whatever host name its snapshot has")
    option("--ssh-config", metavar="FILE", help="ssh's configuration instead of your own (ssh -F)")
    option(
        "--ssh-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option for ssh -o (repeatable)",
    )
    option("--workers", type=_count, metavar="N", help="processes that judge (default: one for each core)")
    option("--height", type=_count, help=SUPPRESS)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.cli.app import exit_on_signals

    _require_sense(args)
    with exit_on_signals():
        source = _source(args)
        try:
            report = _read(args, source)
            return _free(args, source, report) if args.verb else _show(args, report)
        finally:
            source.close()


def _require_sense(args: Namespace) -> None:
    ways = [name for name in ("folder", "hosts", "ray") if getattr(args, name) is not None]
    if len(ways) + args.srun != 1:
        hint = "--snapshots FOLDER, --hosts a,b,c, --ray ADDRESS or --srun"
        raise UsageError("one of --snapshots, --hosts, --ray and --srun says where the nodes are", hint=hint)
    if args.verb and args.folder is not None:
        raise UsageError("recorded nodes cannot be acted on", hint="--hosts, --ray or --srun reach them")
    if args.verb and (args.by or args.parquet):
        raise UsageError("--by and --parquet are about reading", hint="leave them out, or leave out `free`")
    if (args.yes or args.socket is not None) and not args.verb:
        raise UsageError("--yes and --socket are for `vram fleet free`")
    if (args.ssh_config or args.ssh_option) and args.hosts is None:
        raise UsageError("--ssh-config and --ssh-option are for --hosts")
    if args.folder is not None and args.vram:
        raise UsageError("--vram is a command on the nodes; recorded ones run nothing")


def _source(args: Namespace) -> Transport | RecordedNodes:
    vram = _words(args.vram)
    if args.folder is not None:
        from vram.fleet.transports.recorded import RecordedNodes

        return RecordedNodes(args.folder)
    if args.hosts is not None:
        from vram.fleet.transports.ssh import SshNodes, host_list

        return SshNodes(
            host_list(args.hosts),
            vram=vram or ("vram",),
            connect_s=args.deadline / 2,
            config=args.ssh_config,
            options=args.ssh_option,
        )
    if args.ray is not None:
        from vram.fleet.transports.ray import RayNodes

        return RayNodes(args.ray, vram=vram, connect_s=args.all_within)
    from vram.fleet.transports.srun import SrunNodes

    return SrunNodes(vram=vram or ("vram",))


def _words(text: str | None) -> tuple[str, ...]:
    import shlex

    try:
        words = tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"--vram {text!r}: {error}") from error
    if text is not None and not words:
        raise UsageError("--vram is empty", hint="--vram /opt/vram/bin/vram")
    return words


def _options(args: Namespace) -> CollectOptions:
    from vram.fleet.collect import CollectOptions
    from vram.fleet.judges import usual_workers

    return CollectOptions(
        node_s=args.deadline,
        fleet_s=args.all_within,
        parallel=args.parallel,
        workers=args.workers or usual_workers(),
        by=args.by,
        names=tuple(args.node),
        any_name=args.any_name,
    )


def _read(args: Namespace, source: Transport | RecordedNodes) -> FleetReport:
    from vram.fleet.collect import fleet_report, read_nodes

    began = time.monotonic()
    nodes = read_nodes(source, _options(args))
    return fleet_report(nodes, source=source.source, took_s=time.monotonic() - began, by=args.by)


def _show(args: Namespace, report: FleetReport) -> int:
    from vram.fleet.collect import completeness

    if args.parquet is not None:
        from vram.fleet.parquet import append

        append(report, args.parquet)
    from vram.report.fleet import SCREEN_LINES, fleet

    height = args.height or lines() or SCREEN_LINES
    every_node = args.verbose or bool(args.node)
    show_report(args, report, lambda options: fleet(report, options, height=height, every_node=every_node))
    return completeness(report)


# ---- free ----


def _free(args: Namespace, source: Transport | RecordedNodes, read: FleetReport) -> int:
    from vram.fleet.free import FleetPlanner, exit_code

    planner = FleetPlanner(source, _options(args), args.socket)  # type: ignore[arg-type]
    plans = planner.plan(read)
    is_planned = any(node.state == "planned" for node in plans.nodes)
    if not args.json:
        _show_free(args, plans)
    if not is_planned or not (args.yes or (not args.json and is_dialogue() and ask("Proceed?"))):
        if args.json:
            _show_free(args, plans)
        elif is_planned:
            emit("\nNothing was touched. --yes runs these plans.\n")
        return ExitCode.HELD if is_planned else exit_code(plans)
    if not args.json:
        emit("\n")
    try:
        done = planner.run(plans)
    except BaseException:  # what is known by now is said, also where we were told to stop
        _show_free(args, planner.report(plans))
        raise
    _show_free(args, done)
    return exit_code(done)


def _show_free(args: Namespace, report: FleetFreeReport) -> None:
    from vram.report.fleet import free

    show_report(args, report, lambda options: free(report, options))
