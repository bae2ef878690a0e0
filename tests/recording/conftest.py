"""Programs on a virtual GPU, recorded as users record them: by the command line, each in its own process."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import vram
from tests.patience import PATIENCE_S
from tests.recording.terminal import Terminal
from vram.model.trace import TraceView
from vram.trace.launch import LIBRARY
from vram.trace.reader import EVENT_TYPES, open_trace
from vram.virtualgpu import VirtualGpu

SOURCES = Path(vram.__file__).parents[1]
VRAM = [sys.executable, "-m", "vram"]
PROGRAMS = Path(__file__).parents[1] / "tracer"
"""Where ``program.py`` is: the driver, ``context``, ``alloc``, ``free``, ``say``."""


class Workplace:
    """A folder, a virtual GPU, and private folders of vram's; everything that was started ends with it."""

    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        self.gpu = gpu
        self.folder = folder / "work"
        self.runtime, self.state = folder / "runtime", folder / "state"
        for each in (self.folder, self.runtime, self.state):
            each.mkdir(mode=0o700)
        self.environment = {
            **{name: value for name, value in gpu.environment().items() if name != "CUDA_INJECTION64_PATH"},
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.state),
            "TMPDIR": str(folder),
            "PYTHONPATH": f"{SOURCES}:{PROGRAMS}",
        }
        self._started: list[subprocess.Popen[Any]] = []
        self._terminals: list[Terminal] = []

    def vram(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*VRAM, *map(str, words)],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def record(self, *options: str, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`vram run` with *options* on a Python *program* that begins with ``program.py``."""
        code = f"from program import *\n{program}"
        return self.vram("run", *options, "--", sys.executable, "-c", code, **environment)

    def quoted(self, program: str) -> str:
        """*program*, with its beginning, as a word of a shell."""
        return shlex.quote(f"from program import *\n{program}")

    def view(self, name: str) -> TraceView:
        """The trace of this name in the folder, read."""
        return open_trace([self.folder / name]).view()

    def recorder_environment(self, output: str) -> dict[str, str]:
        """The variables with which `vram run` starts a command, without vram around it."""
        return {
            **self.environment,
            "CUDA_INJECTION64_PATH": LIBRARY,
            "VRAM_TRACE_OUTPUT": str(self.folder / output),
            "VRAM_TRACE_CUPTI": str(self.gpu.folder / "lib" / "libcupti.so.13"),
        }

    def sizes(self, name: str) -> tuple[set[int], set[int]]:
        """The sizes of all allocations of device memory in a trace, and of all that were freed."""
        allocated: set[int] = set()
        freed: set[int] = set()
        sides = {"alloc": allocated, "free": freed}
        for batch in open_trace([self.folder / name]).events():
            for kind, what, nbytes in zip(batch.kind, batch.type, batch.nbytes, strict=True):
                if kind == 0 and EVENT_TYPES[what] in sides:
                    sides[EVENT_TYPES[what]].add(nbytes)
        return allocated, freed

    def start(self, argv: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a program that is told and says lines; it is killed at the end."""
        process = subprocess.Popen(
            argv,
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def start_vram(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        return self.start([*VRAM, *map(str, words)], **environment)

    def terminal(self) -> Terminal:
        """A shell in which ``vram`` is this one."""
        program = self.folder.with_name("bin") / "vram"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vram "$@"\n')
        program.chmod(0o700)
        path = f"{program.parent}:{self.environment['PATH']}"
        self._terminals.append(Terminal(self.folder, {**self.environment, "PATH": path}))
        return self._terminals[-1]

    def held(self, gpu: int) -> int:
        """What is held on a GPU beyond what its driver reserves."""
        checked = json.loads(self.vram("check", "--json").stdout)
        return int(checked["gpus"][gpu]["held_bytes"])

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workplace]:
    with closing(Workplace(request.getfixturevalue("virtual_gpu"), tmp_path)) as place:
        yield place


@pytest.fixture
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workplace]:
    """The same with two GPUs."""
    with closing(Workplace(request.getfixturevalue("two_virtual_gpus"), tmp_path)) as place:
        yield place
