"""What ``vram demo`` prints: a question, the program's own answer, and what following the advice released."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping

from rich.text import Text

from vram.cli.terminal import colored, emit, render_options, show
from vram.errors import VirtualGpuError
from vram.units import size
from vram.virtualgpu import VirtualGpu

# A machine that is busy with other things gets its time: here no driver can hang.
DEADLINE_S = "60"

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


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
        rule = "| " if self._options.ascii else "│ "
        color = {"FORCE_COLOR": "1"} if colored(self._args) else {"NO_COLOR": "1"}
        words = ["--ascii"] if self._options.ascii else []
        answer = run_why(gpu, words, {"COLUMNS": str(self._options.width - len(rule)), **color})
        shown = answer if self._args.full else excerpt(answer)
        lines = (f"{rule}{line}".rstrip() for line in shown.splitlines())
        emit("$ vram why\n" + "".join(f"{line}\n" for line in lines) + "\n")

    def advice(self, sentence: str) -> None:
        self._say(Text(sentence))

    def outcome(self, deed: str, before: int, after: int) -> None:
        """Say what was done and what it released, both figures measured."""
        better = after < before
        verdict = f"released: {size(before - after)}" if better else "nothing was released"
        figures = f"{size(before)} held before, {size(after)} after; "
        self._say(Text.assemble((deed, "bold"), "\n", figures, (verdict, "green" if better else "red")))

    def end(self) -> None:
        if not self._args.full:
            self._say(Text("These were excerpts: `vram demo NAME --full` shows whole answers.", style="dim"))

    def _say(self, text: Text) -> None:
        show(text, self._args, self._options)
        emit("\n")


def excerpt(answer: str) -> str:
    """Return the GPU's bytes and the first cause: what is left out is named by :meth:`DemoOutput.end`."""
    blocks = answer.strip().split("\n\n")
    headings = [ESCAPES.sub("", block).partition("\n")[0] for block in blocks]
    last = next((at for at, heading in enumerate(headings) if heading == "Why"), len(blocks) - 1)
    wanted = (at for at in range(1, last + 1) if headings[at] != "What could not be seen")
    return "\n\n".join(blocks[at] for at in wanted)


def held_bytes(gpu: VirtualGpu) -> int:
    """Return how much of the GPU is in use, as the program itself accounts for it."""
    from msgspec import json

    from vram.model.kinds import KINDS

    answer = json.decode(run_why(gpu, ["--json"], {}))
    entries = (entry for device in answer["gpus"] for entry in device["entries"])
    return sum(entry["nbytes"] or 0 for entry in entries if KINDS[entry["kind"]].used)


def run_why(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> str:
    """Run this very program on *gpu*; return its answer, which must be a whole one."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **changes}
    command = [sys.executable, "-m", "vram", "why", "--deadline", DEADLINE_S, *words]
    ended = gpu.run(command, env=environment, capture_output=True)
    if ended.returncode:
        complaint = ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"
        raise VirtualGpuError(f"`vram why` failed in the demo: {complaint}")
    return str(ended.stdout.decode())
