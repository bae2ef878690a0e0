"""``vram demo``: five questions about GPU memory, shown by real processes on a virtual GPU.

Nothing is prerecorded: every answer is ``vram why`` itself, run beside the demo's processes. Then
the memory is freed by the command that does the least harm (``vram free``, ``trim`` or ``park``),
and what it freed is measured.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

from vram.cli.arguments import Parser
from vram.cli.terminal import add_terminal_arguments, emit, render_options, show
from vram.errors import ExitCode, UsageError, VirtualGpuError
from vram.units import GIB, size

if TYPE_CHECKING:
    from rich.text import Text

    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import Demo

HELP = "five questions about GPU memory, shown by real processes on a virtual GPU"

# A machine that is busy with other things gets its time: here no driver can hang.
DEADLINE = "60s"
# Small enough that a few GiB can be seen in its bar.
GPU: dict[str, Any] = {"memory_bytes": 24 * GIB, "name": "NVIDIA GPU"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these demos")
    parser.add_flag("--full", help="show `vram why -v`: every byte, and the evidence")
    parser.add_flag("--list", help="name the demos and their questions")
    parser.add_flag("--keep", help="open a shell in every demo; `exit` goes on")
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
    output = _Output(args)
    better = []
    for at, demo in enumerate(demos, 1):
        output.title(f"{at} of {len(demos)}", demo.question)
        better.append(_run_one(demo, output, stay=args.keep))
    if not args.full:
        output.say("`vram demo NAME --full` shows every byte, and how we know.", style="dim")
    return ExitCode.OK if all(better) else ExitCode.PARTIAL


def _run_one(demo: Demo, output: _Output, *, stay: bool) -> bool:
    """Run one demo; return whether its remedy freed memory."""
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import DemoProgram

    with VirtualGpu.create(**GPU) as gpu, DemoProgram(gpu, demo.program, demo.size) as program:
        pids = program.pids
        demo.prepare(program)
        output.say(demo.happened.format_map(pids))
        output.why(gpu)
        if stay:
            _shell(gpu)
        output.say(demo.advice)
        before = _held_bytes(gpu)
        if not (demo.remedy and output.command(gpu, demo.remedy.format_map(pids))) and demo.own_call:
            program.go()
            output.say(demo.own_call.format_map(pids), style="bold")
        after = _held_bytes(gpu)
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
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.demos import EXPORT, FORK, POOL, DemoProgram

    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(**GPU))
        for demo in (FORK, EXPORT, POOL):
            demo.prepare(cleanup.enter_context(DemoProgram(gpu, demo.program, demo.size)))
        _run_why(gpu, ["--svg", path], {})
    return ExitCode.OK


# ---- vram itself, run beside the demo's processes ----


def _held_bytes(gpu: VirtualGpu) -> int:
    """Return how much of the GPU is in use, as the program itself accounts for it."""
    from msgspec import json

    from vram.model.ledger import KINDS

    answer = json.decode(_run_why(gpu, ["--json"], {}))
    entries = (entry for device in answer["gpus"] for entry in device["entries"])
    return sum(entry["nbytes"] or 0 for entry in entries if KINDS[entry["kind"]].used)


def _run_why(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> str:
    """Run `vram why` on *gpu*; return its answer, which must be a whole one."""
    ended = _run_vram(gpu, ["why", "--deadline", DEADLINE, *words], changes)
    if ended.returncode:
        complaint = ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"
        raise VirtualGpuError(f"`vram why` failed in the demo: {complaint}")
    return str(ended.stdout.decode())


def _run_vram(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> CompletedProcess[bytes]:
    """Run vram on *gpu*. Its log and its journal belong to the demo and go with it, and the user's own
    parked processes have no part in it."""
    state = gpu.folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **changes, "XDG_STATE_HOME": str(state)}
    # They name trees of another machine, whose processes have no part in the demo.
    for name in ("VRAM_PROC_ROOT", "VRAM_SYS_ROOT"):
        environment.pop(name, None)
    return gpu.run([sys.executable, "-m", "vram", *words], env=environment, capture_output=True)


# ---- what is printed: a question, vram's own answer, and what its remedy freed ----


class _Output:
    """Prints demos on standard output, as *args* ask for."""

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._options = render_options(args)
        self._rule = "| " if self._options.ascii else "│ "

    def title(self, place: str, question: str) -> None:
        from rich.text import Text

        line = "-" if self._options.ascii else "─"
        head = f"{line * 2} {place} {line * 2} "
        tail = line * max(0, self._options.width - len(head) - len(question) - 1)
        self._show(Text.assemble((head, "dim"), (question, "bold"), " ", (tail, "dim")))

    def say(self, sentence: str, style: str = "") -> None:
        from rich.text import Text

        self._show(Text(sentence, style=style))

    def why(self, gpu: VirtualGpu) -> None:
        """Run `vram why` on the demo's GPU, and show its answer beside a vertical line."""
        words = ["-v"] if self._args.full else []
        answer = _run_why(gpu, words, self._surface())
        self._show_beside_line(" ".join(["vram why", *words]), answer)

    def command(self, gpu: VirtualGpu, line: str) -> bool:
        """Run a command that frees memory, and show what it prints; return whether it succeeded."""
        done = _run_vram(gpu, line.split()[1:], self._surface())
        self._show_beside_line(line, done.stdout.decode() + done.stderr.decode(errors="replace"))
        return done.returncode == 0

    def outcome(self, before: int, after: int) -> None:
        """Say what was freed, both figures measured."""
        from rich.text import Text

        better = after < before
        verdict = f"freed: {size(before - after)}" if better else "nothing was freed"
        figures = f"{size(before)} held before, {size(after)} after; "
        self._show(Text.assemble(figures, (verdict, "green" if better else "red")))

    def _surface(self) -> dict[str, str]:
        """What tells a command how wide its lines may be, in which characters and colours."""
        return {
            "COLUMNS": str(self._options.width - len(self._rule)),
            "PYTHONIOENCODING": "ascii" if self._options.ascii else "utf-8",
            **({"FORCE_COLOR": "1"} if self._options.colored else {"NO_COLOR": "1"}),
        }

    def _show_beside_line(self, command: str, answer: str) -> None:
        room = self._options.width - len(self._rule)
        lines = (part for line in answer.strip("\n").splitlines() for part in _fold(line, room))
        shown = "".join(f"{self._rule}{line}".rstrip() + "\n" for line in lines)
        emit(f"$ {command}\n{shown}\n")

    def _show(self, text: Text) -> None:
        show(self._args, lambda options: text)
        emit("\n")


def _fold(line: str, room: int) -> list[str]:
    """A sentence that its command left to the terminal to break; lines with colours fit already."""
    from textwrap import wrap

    return wrap(line, room, subsequent_indent="  ") if len(line) > room and "\x1b" not in line else [line]
