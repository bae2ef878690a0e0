"""What ``vram demo`` prints: a question, vram's own answer, and what its remedy freed."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from subprocess import CompletedProcess
from textwrap import wrap

from rich.text import Text

from vram.cli.terminal import colored, emit, render_options, show
from vram.errors import VirtualGpuError
from vram.units import size
from vram.virtualgpu import VirtualGpu

# A machine that is busy with other things gets its time: here no driver can hang.
DEADLINE = "60s"


class DemoOutput:
    """Prints demos on standard output, as *args* ask for."""

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._options = render_options(args)

    def title(self, place: str, question: str) -> None:
        line = "-" if self._options.ascii else "─"
        head = f"{line * 2} {place} {line * 2} "
        tail = line * max(0, self._options.width - len(head) - len(question) - 1)
        self._say(Text.assemble((head, "dim"), (question, "bold"), " ", (tail, "dim")))

    def happened(self, sentence: str) -> None:
        self._say(Text(sentence))

    def why(self, gpu: VirtualGpu) -> None:
        """Run `vram why` on the demo's GPU, and show its answer beside a vertical line."""
        words = ["-v"] if self._args.full else []
        answer = run_why(gpu, words, self._surface())
        self._beside_a_line(" ".join(["vram why", *words]), answer)

    def advice(self, sentence: str) -> None:
        self._say(Text(sentence))

    def command(self, gpu: VirtualGpu, line: str) -> bool:
        """Run a command that frees memory, and show what it prints; return whether it succeeded."""
        done = _run(gpu, line.split()[1:], self._surface())
        self._beside_a_line(line, done.stdout.decode() + done.stderr.decode(errors="replace"))
        return done.returncode == 0

    def own_call(self, sentence: str) -> None:
        self._say(Text(sentence, style="bold"))

    def outcome(self, before: int, after: int) -> None:
        """Say what was freed, both figures measured."""
        better = after < before
        verdict = f"freed: {size(before - after)}" if better else "nothing was freed"
        figures = f"{size(before)} held before, {size(after)} after; "
        self._say(Text.assemble(figures, (verdict, "green" if better else "red")))

    def end(self) -> None:
        if not self._args.full:
            hint = "`vram demo NAME --full` shows every byte, and how we know."
            self._say(Text(hint, style="dim"))

    def _surface(self) -> dict[str, str]:
        """What tells a command how wide its lines may be, in which characters and colours."""
        return {
            "COLUMNS": str(self._options.width - len(self._rule)),
            "PYTHONIOENCODING": "ascii" if self._options.ascii else "utf-8",
            **({"FORCE_COLOR": "1"} if colored(self._args) else {"NO_COLOR": "1"}),
        }

    @property
    def _rule(self) -> str:
        return "| " if self._options.ascii else "│ "

    def _beside_a_line(self, command: str, answer: str) -> None:
        room = self._options.width - len(self._rule)
        lines = (part for line in answer.strip("\n").splitlines() for part in _folded(line, room))
        shown = "".join(f"{self._rule}{line}".rstrip() + "\n" for line in lines)
        emit(f"$ {command}\n{shown}\n")

    def _say(self, text: Text) -> None:
        show(text, self._args, self._options)
        emit("\n")


def _folded(line: str, room: int) -> list[str]:
    """A sentence that its command left to the terminal to break; lines with colours fit already."""
    return wrap(line, room, subsequent_indent="  ") if len(line) > room and "\x1b" not in line else [line]


def held_bytes(gpu: VirtualGpu) -> int:
    """Return how much of the GPU is in use, as the program itself accounts for it."""
    from msgspec import json

    from vram.model.kinds import KINDS

    answer = json.decode(run_why(gpu, ["--json"], {}))
    entries = (entry for device in answer["gpus"] for entry in device["entries"])
    return sum(entry["nbytes"] or 0 for entry in entries if KINDS[entry["kind"]].used)


def run_why(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> str:
    """Run this very program on *gpu*; return its answer, which must be a whole one."""
    ended = _run(gpu, ["why", "--deadline", DEADLINE, *words], changes)
    if ended.returncode:
        complaint = ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"
        raise VirtualGpuError(f"`vram why` failed in the demo: {complaint}")
    return str(ended.stdout.decode())


def _run(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> CompletedProcess[bytes]:
    """Run vram on *gpu*. Its log and its journal belong to the demo and go with it, and the user's own
    parked processes have no part in it."""
    state = gpu.folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **changes, "XDG_STATE_HOME": str(state)}
    # They name trees of another machine, whose processes have no part in the demo.
    for name in ("VRAM_PROC_ROOT", "VRAM_SYS_ROOT"):
        environment.pop(name, None)
    return gpu.run([sys.executable, "-m", "vram", *words], env=environment, capture_output=True)
