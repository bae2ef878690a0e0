"""``vram demo``: five questions about GPU memory, shown by real processes on a virtual GPU.

Nothing is prerecorded: every answer is ``vram why`` itself, run beside the demo's processes. Then
the memory is freed by the command that does the least harm (``vram free``, ``trim`` or ``park``),
and what it freed is measured.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from vram.cli.terminal import add_terminal_arguments, emit
from vram.errors import ExitCode, UsageError
from vram.units import GIB

if TYPE_CHECKING:
    from vram.cli.demo_output import DemoOutput
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import Demo

NAME = "demo"
HELP = "five questions about GPU memory, shown by real processes on a virtual GPU"

# Small enough that a few GiB can be seen in its bar.
GPU: dict[str, Any] = {"memory_bytes": 24 * GIB, "name": "NVIDIA GPU"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these demos")
    parser.add_argument(
        "--full", action="store_true", help="show `vram why -v`: every byte, and the evidence"
    )
    parser.add_argument("--list", action="store_true", help="name the demos and their questions")
    parser.add_argument("--keep", action="store_true", help="open a shell in every demo; `exit` goes on")
    parser.add_argument("--svg", metavar="FILE", help="draw `vram why` with three demos at once instead")
    add_terminal_arguments(parser)


def known_names() -> tuple[tuple[str, str], ...]:
    """The demos, each with its question."""
    from vram.virtualgpu.demos import DEMOS

    return tuple((demo.name, demo.question) for demo in DEMOS)


def run(args: Namespace) -> int:
    from vram.cli.app import exit_on_signals
    from vram.virtualgpu.demos import DEMOS

    demos = _chosen(args.names, DEMOS)
    if args.list:
        emit("".join(f"{demo.name:9}{demo.question}\n" for demo in demos))
        return ExitCode.OK
    with exit_on_signals():
        return _draw(args.svg) if args.svg else _run_all(demos, args)


def _chosen(names: list[str], demos: tuple[Demo, ...]) -> tuple[Demo, ...]:
    known = [demo.name for demo in demos]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no demo {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return tuple(demo for demo in demos if not names or demo.name in names)


def _run_all(demos: tuple[Demo, ...], args: Namespace) -> int:
    from vram.cli.demo_output import DemoOutput

    output = DemoOutput(args)
    better = []
    for at, demo in enumerate(demos, 1):
        output.title(f"{at} of {len(demos)}", demo.question)
        better.append(_run_one(demo, output, stay=args.keep))
    output.end()
    return ExitCode.OK if all(better) else ExitCode.PARTIAL


def _run_one(demo: Demo, output: DemoOutput, *, stay: bool) -> bool:
    """Run one demo; return whether its remedy freed memory."""
    from vram.cli.demo_output import held_bytes
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import DemoProgram

    with VirtualGpu.create(**GPU) as gpu, DemoProgram(gpu, demo.program, demo.size) as program:
        pids = program.pids
        demo.prepare(program)
        output.happened(demo.happened.format_map(pids))
        output.why(gpu)
        if stay:
            _shell(gpu)
        output.advice(demo.advice)
        before = held_bytes(gpu)
        if not (demo.remedy and output.command(gpu, demo.remedy.format_map(pids))) and demo.own_call:
            program.go()
            output.own_call(demo.own_call.format_map(pids))
        after = held_bytes(gpu)
    output.outcome(before, after)
    return after < before


def _shell(gpu: VirtualGpu) -> None:
    """Give the user a shell on the demo's GPU, with this very program on its path."""
    from vram.virtualgpu import launch

    environment = gpu.environment()
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment.get('PATH', os.defpath)}"
    with launch.signals_held() as mask:
        launch.run([os.environ.get("SHELL") or "/bin/sh"], environment, mask)


def _draw(path: str) -> int:
    """Draw what `vram why` answers while three demos run at once."""
    from vram.cli.demo_output import run_why
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import EXPORT, FORK, POOL, DemoProgram

    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(**GPU))
        for demo in (FORK, EXPORT, POOL):
            demo.prepare(cleanup.enter_context(DemoProgram(gpu, demo.program, demo.size)))
        run_why(gpu, ["--svg", path], {})
    return ExitCode.OK
