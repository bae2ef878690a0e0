"""``vram limit``: how much of a GPU a control group may have: shown, set or removed, through the driver.

vram limit                                                   every limit, and what each group uses
vram limit --gpu 0 --slice user-1000.slice 20GiB             at most so much for a user
vram limit --gpu 0 --pid 4711 20GiB --guarantee 10GiB        for the group of a process, as of a container
vram limit --gpu 0 --cgroup /user.slice/a.scope --remove
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_deadline_argument
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, ask, emit, is_dialogue, show
from vram.errors import ExitCode, NoSuchProcess, UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost

HELP = "show or set how much GPU memory a control group may have (driver 615 and later)"

_EPILOG = """\
Limits are the driver's, by control group: a systemd slice or scope, a container, a pod. An
allocation beyond the limit fails with out of memory. What a group has already is not taken
away. --guarantee is memory that the driver keeps for the group; the least is 0.
Needs driver 615 (CUDA 13.4), cgroup v2 and, to set, root; not under MIG. Where the kernel
counts device memory (Linux 6.14), a group needs its controller (dmem). In a container whose
own group has a limit, the limit is the total that CUDA and NVML report; with the limit on
a slice above it, they report the whole GPU. A group that is removed takes its limit along,
but what was guaranteed to it stays taken from those above: use --remove first.
vram sets limits through the driver, and writes no file of the kernel."""


def add_arguments(parser: Parser) -> None:
    parser.usage = "vram limit [--gpu N (--cgroup PATH | --slice NAME | --pid PID) (SIZE | --remove)]"
    parser.epilog = _EPILOG
    parser.add_size("size", nargs="?", help="the most that the group may have, e.g. 20GiB")
    parser.add_argument("--gpu", type=int, metavar="N", help="the GPU's number")
    parser.add_argument("--cgroup", metavar="PATH", help="the group, as in /proc/PID/cgroup")
    parser.add_argument("--slice", metavar="NAME", help="a slice of systemd, e.g. user-1000.slice")
    parser.add_argument("--pid", type=int, metavar="PID", help="the group that this process is in")
    parser.add_size("--guarantee", default=0, help="keep so much for the group (default: 0)")
    parser.add_flag("--remove", help="take the limit and the guarantee off")
    parser.add_flag("--yes", "-y", help="set it without a question; without it it is only shown")
    parser.add_flag("--json", help="one JSON object instead of text; never asks")
    add_deadline_argument(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    wants_change = args.size is not None or args.remove
    named = [each for each in (args.cgroup, args.slice, args.pid) if each is not None]
    if not wants_change and not named and args.guarantee == 0:
        return _list(args)
    if len(named) != 1 or args.gpu is None or (args.size is None) == (not args.remove):
        raise UsageError(
            "a limit needs a GPU, one group, and a size or --remove",
            hint="vram limit --gpu 0 --slice user-1000.slice 20GiB",
        )
    return _change(args)


def _list(args: Namespace) -> int:
    from vram.reclaim.limits import list_limits
    from vram.report import limits as report

    host = open_host()
    found = list_limits(host, host.nvml.read(args.deadline), args.deadline)
    found = [each for each in found if args.gpu in (None, each.gpu)]
    if args.json:
        emit(report.json_of(found))
    else:
        show(args, lambda options: report.table(found, options))
    return ExitCode.OK


def _change(args: Namespace) -> int:
    from vram.reclaim.audit import refusals_logged
    from vram.reclaim.limits import plan_limit, set_limit
    from vram.report import limits as report

    host = open_host()
    cgroup = _cgroup(args, host)
    soft = 0 if args.remove else args.guarantee
    with refusals_logged("limit", []):
        seen = host.nvml.read(args.deadline)
        change = plan_limit(host, seen, args.gpu, cgroup, args.size, soft, args.deadline)
    if not args.json:
        show(args, lambda options: report.plan(change, options))
    if not _agreed(args):
        if args.json:
            emit(report.json_of_change(change, None, done=False))
        return ExitCode.HELD
    after = set_limit(host, change, args.deadline)
    if args.json:
        emit(report.json_of_change(change, after, done=True))
    else:
        show(args, lambda options: report.done(change))
    return ExitCode.OK


def _agreed(args: Namespace) -> bool:
    return args.yes or (not args.json and is_dialogue() and ask("Proceed?"))


def _cgroup(args: Namespace, host: LocalHost) -> str:
    """The path of the group that is meant, below the root of all groups."""
    if args.pid is not None:
        found = host.proc.facts(args.pid)
        if found is None:
            raise NoSuchProcess(f"process {args.pid} does not exist")
        if not found[1].cgroup:
            raise UsageError(f"the control group of pid {args.pid} is not readable")
        return found[1].cgroup
    if args.slice is not None:
        return slice_path(args.slice)
    path = args.cgroup.removeprefix("/sys/fs/cgroup")
    return path if path.startswith("/") else f"/{path}"


def slice_path(name: str) -> str:
    """Where systemd keeps a slice: a-b.slice is below a.slice."""
    stem = name.removesuffix(".slice")
    parts = stem.split("-")
    if not stem or not all(parts) or "/" in stem:
        raise UsageError(f"{name!r} is no slice of systemd", hint="as `systemctl status` names it")
    return "".join(f"/{'-'.join(parts[: at + 1])}.slice" for at in range(len(parts)))
