"""Programs on a virtual GPU, written into the tests that run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import TracebackType
from typing import Any

from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

HERE = Path(__file__).parent
PREAMBLE = "import ctypes, os, sys\nimport libcuda as cuda\nfrom libcuda import GIB, MIB\n"


def source(program: str) -> str:
    """*program* with its imports; those that take longer than Python's own start only where it uses them."""
    used = [name for name in ("socket", "threading") if f"{name}." in program]
    return PREAMBLE + "".join(f"import {name}\n" for name in used) + dedent(program)


def environment(gpu: VirtualGpu) -> dict[str, str]:
    return gpu.environment() | {"PYTHONPATH": str(HERE)}


def result(gpu: VirtualGpu, program: str, **variables: str) -> Any:
    """Run *program* to its end, with *variables* in its environment; the last JSON value it told."""
    done = gpu.run(
        [sys.executable, "-c", source(program)],
        env=environment(gpu) | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Program:
    """A program that runs beside the test: it tells values, and waits to be sent on."""

    def __init__(self, gpu: VirtualGpu, program: str, **options: Any) -> None:
        self.process = gpu.popen(
            [sys.executable, "-c", source(program)],
            env=environment(gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def told(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(gpu: VirtualGpu, program: str, **options: Any) -> Iterator[Program]:
    with Program(gpu, program, **options) as started:
        yield started
