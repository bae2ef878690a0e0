"""Processes that stand around while the tools are timed, and leave when the block ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

HOLDER = Path(__file__).with_name("holder.py")


class CompanyRefused(Exception):
    """The machine would not carry the processes that a case needs."""


@contextmanager
def standing(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start *command*, wait until it says it is ready, and end it by closing its input."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "ready\n":
            process.stdin.close()
            raise CompanyRefused(process.stderr.read().strip() or f"{command[0]} said nothing")
        yield
        process.stdin.close()


@contextmanager
def holders(count: int, nbytes: int) -> Iterator[None]:
    """*count* processes, each with a context and *nbytes* on every GPU."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(standing([sys.executable, str(HOLDER), str(nbytes)]))
        yield
