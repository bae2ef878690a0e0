"""Functions and lines of addresses in programs and libraries: asked of a process, ``line_worker.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).parent / "lib" / "libvramlines.so"
WORKER = Path(__file__).with_name("line_worker.py")

_MAX_S = 15.0  # the worker has ten seconds of CPU time
_MAX_ROUNDS = 3  # each but the last loses a file that takes too much
_MAX_OFFSETS = 200_000  # of all files together
_MAX_LENGTH = 4096


class WantedLines(NamedTuple):
    """Addresses in a file, less its load bias. Without *build_id*, nothing is said of a file that was changed
    after *not_after_ns*: it may be another build than the recorded one."""

    path: str
    build_id: str | None
    not_after_ns: int
    offsets: Sequence[int]


class SourceLine(NamedTuple):
    """A function, as the linker knows it, and a line in it; empty and 0 where they are unknown."""

    function: str
    file: str
    line: int


def find_lines(
    wanted: Sequence[WantedLines], descriptors: Sequence[int] = ()
) -> dict[tuple[str, int], tuple[SourceLine, ...]]:
    """What is known of the addresses, by file and offset: the functions that have each, inlined ones first.

    Empty where there is no debug information, and for files that make the worker fail or take too long.
    *descriptors* are those that a path below /proc/self/fd may name.
    """
    found: dict[tuple[str, int], tuple[SourceLine, ...]] = {}
    waiting = _limited(wanted)
    for _ in range(_MAX_ROUNDS):
        if not waiting:
            break
        answers, was_ended = _ask(waiting, descriptors)
        for file, answer in zip(waiting, answers, strict=False):
            found.update(_checked(file.path, answer))
        if not was_ended:
            break
        waiting = waiting[len(answers) + 1 :]
    return found


def _limited(wanted: Sequence[WantedLines]) -> list[WantedLines]:
    left, kept = _MAX_OFFSETS, []
    for file in wanted:
        offsets = [each for each in file.offsets if 0 <= each < 1 << 64][:left]
        left -= len(offsets)
        if offsets:
            kept.append(file._replace(offsets=offsets))
    return kept


def _ask(files: Sequence[WantedLines], descriptors: Sequence[int]) -> tuple[list[object], bool]:
    """The worker's first answers, and whether it was ended in the middle."""
    question = {"library": str(LIBRARY), "files": [file._asdict() for file in files]}
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", str(WORKER)]
    try:
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, pass_fds=descriptors
        ) as process:
            try:
                output, _ = process.communicate(json.dumps(question).encode(), timeout=_MAX_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    except OSError:
        return [], False
    lines = output.split(b"\n")[:-1][: len(files)]
    return [json.loads(line) for line in lines], process.returncode != 0


def _checked(path: str, answer: object) -> dict[tuple[str, int], tuple[SourceLine, ...]]:
    assert isinstance(answer, list)  # of our own process
    return {
        (path, offset): tuple(
            SourceLine(function[:_MAX_LENGTH], file[:_MAX_LENGTH], line) for function, file, line in frames
        )
        for offset, frames in answer
    }
