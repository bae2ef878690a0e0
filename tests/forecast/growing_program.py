"""A program that leaks as its test tells it, on a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

PROGRAM = Path(__file__).with_name("leaking.py")


class GrowingProgram:
    """It holds its context when the constructor returns, and its leaks when :meth:`grow` does.

    *environment* is a whole one, with a GPU, in place of the usual one.
    """

    def __init__(self, gpu: VirtualGpu, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={**(environment or gpu.environment(dict(os.environ))), "PYTHONPATH": str(PROGRAMS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._answers = self._process.stdout
        self.pid = int(self._answers.readline())

    def grow(self, mib: int | None = None) -> None:
        """Have it keep so much more; None: as much as it leaks in the time since it was asked last."""
        assert self._process.stdin is not None
        self._process.stdin.write("leak\n" if mib is None else f"{mib}\n")
        self._process.stdin.flush()
        assert self._answers.readline().strip().isdigit()

    def __enter__(self) -> GrowingProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._answers.close()
