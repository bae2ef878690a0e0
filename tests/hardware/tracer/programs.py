"""Runs the programs of this folder with the recorder in them, and says which planted leaks were found.

A line that leaks ends with ``# planted leak: COUNT``. Everything else in the programs is honest: kept from
the start, or freed. On real hardware tests/hardware/test_tracer.py runs them, and tests/tracer/
test_planted_leaks.py those that the virtual GPU carries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.hardware.tracer.pace import STALLED
from vram.host.local.system_info import cupti_places
from vram.model.trace import CallStack, LeakSite, TraceView
from vram.trace.frameworks import with_frameworks
from vram.trace.reader import open_trace
from vram.trace.symbols import function_names

HERE = Path(__file__).parent
PACKAGE = HERE.parents[2] / "src" / "vram"
RECORDER = PACKAGE / "trace" / "lib" / "libvramtracer.so"
PAYLOAD = PACKAGE / "payloads" / "tracer" / "frameworks.py"
PLANTED = re.compile(r"# planted leak: (\d+)$")


class Started(NamedTuple):
    """A program that was started; its traces are ``FOLDER/trace.*.part``."""

    process: subprocess.Popen[str]
    folder: Path
    again: Callable[[], Started]

    def finish(self, timeout_s: float = 60.0) -> str:
        """Wait for its end; return what it printed. One that a busy machine stalled is started again."""
        output, errors = self.process.communicate(timeout=timeout_s)
        if self.process.returncode == STALLED:
            for part in self.folder.glob("trace.*.part"):
                part.unlink()
            return self.again().finish(timeout_s)
        assert self.process.returncode == 0, errors[-3000:]
        return output

    def view(self) -> TraceView:
        return read(self.folder)


def environment(folder: Path, base: Mapping[str, str], stacks: str = "python") -> dict[str, str]:
    """*base* with the recorder, as `vram run` sets it."""
    return {
        **base,
        "CUDA_INJECTION64_PATH": str(RECORDER),
        "VRAM_TRACE_OUTPUT": str(folder / "trace"),
        "VRAM_TRACE_STACKS": stacks,
        "VRAM_TRACE_PAYLOAD": str(PAYLOAD),
        "VRAM_TRACE_MESSAGES": str(folder / "messages"),
        "VRAM_TRACE_CUPTI": ":".join(cupti_places("", base)),
    }


def start(
    argv: list[str],
    folder: Path,
    base: Mapping[str, str] | None = None,
    *,
    stacks: str = "python",
    **variables: str,
) -> Started:
    """Start *argv* with the recorder; a word that ends with .py is a program of this folder."""
    folder.mkdir(exist_ok=True)
    (folder / "messages").touch()
    words = [str(HERE / word) if word.endswith(".py") else word for word in argv]
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    process = subprocess.Popen(
        words,
        env=environment(folder, {**(base or os.environ), **variables}, stacks),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Started(process, folder, lambda: start(argv, folder, base, stacks=stacks, **variables))


def read(folder: Path) -> TraceView:
    """What was recorded, with what the frameworks say."""
    parts = sorted(folder.glob("trace.*.part"))
    assert parts, (folder / "messages").read_text() or "nothing was recorded"
    with open_trace(parts) as trace:
        return with_frameworks(trace.view(), trace)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Wait until the program says *word*, on a line of its own."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"it ended before it said {word}: {process.communicate()[1][-3000:]}")


# ---- what was found ----


def planted(program: str) -> dict[int, int]:
    """Line to count, of the leaks in a program of this folder."""
    lines = (HERE / program).read_text().splitlines()
    found = {at: match for at, line in enumerate(lines, 1) if (match := PLANTED.search(line))}
    return {at: int(match.group(1)) for at, match in found.items()}


def leaks(view: TraceView) -> tuple[LeakSite, ...]:
    return tuple(row for row in view.leaks if row.verdict != "in use at exit")


def check_lines(view: TraceView, program: str) -> None:
    """Every planted leak was found at its line with its count, and nothing else is called a leak."""
    expected = planted(program)
    found: dict[int, int] = {}
    for row in leaks(view):
        lines = [line for line in _lines(view.stacks[row.site.stack], program) if line in expected]
        assert lines, f"an invented leak: {row} {view.stacks[row.site.stack]}"
        found[lines[0]] = found.get(lines[0], 0) + row.site.count
    assert found == expected, f"{program}: {found} instead of {expected}: {view.leaks}"


def _lines(stack: CallStack, program: str) -> list[int]:
    return [frame.line for frame in stack.frames if os.path.basename(frame.file) == program]


def check_functions(view: TraceView, expected: dict[tuple[str, str], int]) -> None:
    """The same for native frames: {(file, function): count}, wherever in the stack."""
    found: dict[tuple[str, str], int] = {}
    for row in leaks(view):
        names = set(native_functions(view.stacks[row.site.stack]))
        known = [each for each in expected if each in names]
        assert known, f"an invented leak: {row} {names}"
        found[known[0]] = found.get(known[0], 0) + row.site.count
    assert found == expected


def native_functions(stack: CallStack) -> list[tuple[str, str]]:
    """(file, function) of each native frame, innermost first; names come from the files' symbols."""
    named = []
    for frame in stack.frames:
        if frame.language == "native":
            # A return address points behind the call, which may be the function's last instruction.
            names = function_names(frame.file, [max(0, frame.line - 1)])
            name = frame.function or next(iter(names.values()), "")
            named.append((os.path.basename(frame.file), name))
    return named


def build(source: str, output: Path, *flags: str) -> Path:
    """A C file of this folder, compiled."""
    subprocess.run(["cc", "-g", "-O1", *flags, str(HERE / source), "-o", str(output), "-ldl"], check=True)
    return output


def until(condition: object, timeout_s: float = 30.0) -> None:
    """Wait until *condition*, a function, returns something."""
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)
