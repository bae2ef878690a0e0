"""``vram virtual``: run a command on a GPU that is not there.

    vram virtual -- bash                     a shell with one virtual H200; gone when it ends
    vram virtual --gpus 2 --memory 24GiB -- python train.py
    vram virtual --mig 3g.71gb,2g.35gb -- nvitop -1
    vram virtual --fault 'nvmlDeviceGet* gpu=1 after=9 error=GPU_IS_LOST' -- gpustat

    vram virtual fault 'cuMemAlloc* nth=3 error=OUT_OF_MEMORY'     inside: from now on
    vram virtual fault                                             inside: what is in force
    vram virtual fault --clear                                     inside: no more

The command has the terminal and gets our signals; its exit code is ours, 128+N where signal N
ended it, 127 where it is not found and 126 where it cannot be run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from vram.cli.arguments import Parser
from vram.cli.terminal import say
from vram.errors import ExitCode, UsageError
from vram.virtualgpu import VirtualGpu, launch, static_runtime
from vram.virtualgpu.config import read_fault

HELP = "run a command on a virtual GPU"

USAGE = "vram virtual [options] [-- COMMAND...]\n       vram virtual fault [LINE... | --clear]"
EPILOG = "Without a COMMAND your shell is started. `vram virtual fault` is for use inside."


def add_arguments(parser: Parser) -> None:
    parser.usage, parser.epilog = USAGE, EPILOG
    option = parser.add_argument
    option("--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: 1)")
    parser.add_size("--memory", help="memory of each (default: 140.4GiB)")
    option("--name", help='name; "(virtual)" is added (default: NVIDIA H200)')
    parser.add_size("--context", help="memory that a context costs (default: 518MiB)")
    parser.add_flag(
        "--wsl", help="behave like Windows' driver under WSL2: one device, no figures per process"
    )
    parser.add_flag(
        "--unified", help="behave like a GB10: no memory of its own, the driver refuses to give totals"
    )
    option(
        "--mig",
        metavar="PROFILES",
        help="MIG instances of each, e.g. 3g.71gb,2g.35gb, or none for no instance",
    )
    option("--fault", action="append", default=[], metavar="LINE", help="make calls fail (repeatable)")
    parser.add_flag("--keep", help="keep the folder and print its path")
    option("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.words[:1] == ["fault"]:
        return _change_faults(args.words[1:])
    command = _command(args.words)
    lines = [read_fault(line) for line in args.fault]
    if static_runtime.is_out_of_reach(command[0]):
        say(
            f"{command[0]} has NVIDIA's CUDA runtime linked in and is stripped:"
            " its CUDA calls will fail (801)",
            ["  hint: build it with `nvcc -cudart shared`, or do not strip it"],
        )
    with launch.signals_held() as mask, _made(args, lines) as gpu:
        code = launch.run(command, gpu.environment(), mask)
        if count := gpu.launches():
            kernels = "1 kernel launch was" if count == 1 else f"{count:,} kernel launches were"
            print(f"vram virtual: {kernels} counted and not run: nothing was computed", file=sys.stderr)
        return code


def _command(words: Sequence[str]) -> list[str]:
    if not words or words == ["--"]:
        return [os.environ.get("SHELL") or "/bin/sh"]
    if words[0] != "--":
        raise UsageError(
            f"unexpected argument {words[0]!r}",
            hint="put -- before the command: vram virtual -- COMMAND",
        )
    return list(words[1:])


def _made(args: argparse.Namespace, lines: Sequence[str]) -> VirtualGpu:
    said: dict[str, Any] = {"context_bytes": args.context, "mig": args.mig, "wddm": args.wsl or None}
    said["unified"] = args.unified or None
    settings = {key: value for key, value in said.items() if value is not None}
    gpu = VirtualGpu.create(args.gpus, args.memory, args.name, **settings)
    for line in lines:
        gpu.add_fault(line)
    if args.keep:
        gpu.keep()
        print(f"vram: the virtual GPU stays in {gpu.folder}", file=sys.stderr)
    return gpu


def _change_faults(words: Sequence[str]) -> int:
    gpu = VirtualGpu.inside()
    if words == ["--clear"]:
        gpu.clear_faults()
        return ExitCode.OK
    for line in words:
        gpu.add_fault(line)
    if not words:
        sys.stdout.writelines(f"{line}\n" for line in gpu.faults())
    return ExitCode.OK
