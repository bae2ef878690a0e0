"""Programs that the recorder is loaded into, on a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.tracer.records import Section, read
from vram.virtualgpu import VirtualGpu

HERE = Path(__file__).parent
TRACER = HERE.parents[1] / "src" / "vram" / "trace" / "lib" / "libvramtracer.so"


class Traced:
    """Runs programs with the recorder, and reads what they left."""

    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        self.gpu, self.folder = gpu, folder
        self.messages_file = folder / "messages"
        self.messages_file.touch()

    def environment(self, *, injected: bool = True, **settings: str) -> dict[str, str]:
        made = {**os.environ, **self.gpu.environment(), "TRACER": str(TRACER), "PYTHONPATH": str(HERE)}
        if injected:
            made["CUDA_INJECTION64_PATH"] = str(TRACER)
            made["VRAM_TRACE_OUTPUT"] = str(self.folder / "trace")
            made["VRAM_TRACE_MESSAGES"] = str(self.messages_file)
        return made | {f"VRAM_TRACE_{key.upper()}": value for key, value in settings.items()}

    def run(self, program: str, *, python: str = sys.executable, check: bool = True, **settings: str) -> str:
        """Output of this Python program, which ran with the recorder injected."""
        return self._run(program, python, self.environment(**settings), check)

    def run_alone(self, program: str, *, python: str = sys.executable) -> str:
        """The same with nothing injected: the program starts the recorder itself."""
        return self._run(program, python, self.environment(injected=False), True)

    def _run(self, program: str, python: str, environment: dict[str, str], check: bool) -> str:
        line = [python, "-c", f"from program import *\n{program}", str(self.folder)]
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def parts(self) -> list[Path]:
        return sorted(self.folder.glob("trace.*.part"))

    def section(self) -> Section:
        """What the only process that recorded wrote."""
        [part] = self.parts()
        return read(part)

    def messages(self) -> list[list[str]]:
        """(code, text) of each line that the recorder left for `vram run`."""
        return [line.split(" ", 2)[1:] for line in self.messages_file.read_text().splitlines()]


@pytest.fixture
def traced(virtual_gpu: VirtualGpu, tmp_path: Path) -> Traced:
    return Traced(virtual_gpu, tmp_path)


@pytest.fixture
def compile_library(tmp_path: Path) -> Callable[..., Path]:
    """Compiles C source to a shared library."""

    def compiled(name: str, source: str, *flags: str) -> Path:
        output = tmp_path / f"lib{name}.so"
        line = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(output), *flags]
        subprocess.run(line, input=source, text=True, check=True)
        return output

    return compiled
