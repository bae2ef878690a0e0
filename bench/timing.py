"""Wall time and peak memory of commands, measured in turns so that all share the weather."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """What a command cost over all its turns. Peak memory is that of its largest process."""

    median_s: float
    fastest_s: float
    slowest_s: float
    peak_rss_bytes: int
    turns: int


class CommandFailed(Exception):
    """A contender that does not do its job has no speed."""


def interleaved(
    commands: Mapping[str, Sequence[str]], *, turns: int, accepted: Iterable[int] = (0,)
) -> dict[str, Sample]:
    """Time every command *turns* times, a different one going first in every round."""
    names = list(commands)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    # The first run caches files and writes bytecode, so that nobody pays for being first; it is weighed.
    peak = {name: _weighed(commands[name], accepted) for name in names}
    for turn in range(turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(once(commands[name], accepted))
    return {name: _sample(seconds[name], peak[name]) for name in names}


def once(command: Sequence[str], accepted: Iterable[int] = (0,)) -> float:
    """Run *command* to its end. Returns its seconds."""
    silence = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], list(command), os.environ, file_actions=silence)
    _, status = os.waitpid(pid, 0)
    elapsed_s = time.perf_counter() - begin
    _check(command, os.waitstatus_to_exitcode(status), accepted)
    return elapsed_s


# The kernel starts a child's high-water mark at its parent's size: a small parent weighs better than this.
_SCALE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=-3, stdout=-3, stderr=-3)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def _weighed(command: Sequence[str], accepted: Iterable[int]) -> int:
    """Run *command* to its end. Returns the bytes of its largest process."""
    argv = [sys.executable, "-I", "-S", "-c", _SCALE, *command]
    code, nbytes = map(int, subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout.split())
    _check(command, code, accepted)
    return nbytes


def _check(command: Sequence[str], code: int, accepted: Iterable[int]) -> None:
    if code not in accepted:
        raise CommandFailed(f"{os.path.basename(command[0])} {' '.join(command[1:])}: exit status {code}")


def program(name: str) -> str | None:
    """A program's path: beside this interpreter first, where `make` installs the contenders."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return beside if os.access(beside, os.X_OK) else shutil.which(name)


def _sample(seconds: list[float], peak: int) -> Sample:
    ordered = sorted(seconds)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Sample(median, ordered[0], ordered[-1], peak, len(ordered))
