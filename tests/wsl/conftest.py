"""A virtual GPU as WSL2 shows one, and a stand-in for Windows beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.reclaim.conftest import NO_DOOR
from tests.wsl.windows import encoded, install, search_path
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

HOLDER = Path(__file__).parents[1] / "virtualgpu" / "holder.py"
NAME = "NVIDIA GeForce RTX 4090"

Hold = Callable[..., "subprocess.Popen[str]"]


class Wsl:
    """One machine: its GPUs, its Windows, and vram run on it."""

    def __init__(self, gpu: VirtualGpu, windows: Path) -> None:
        self.gpu, self.windows = gpu, windows

    def says(self, said: object, **acts: str) -> None:
        """Windows answers so from now on."""
        install(self.windows, said if isinstance(said, bytes) else encoded(said), **acts)

    def environment(self) -> dict[str, str]:
        private = self.windows.parent / "private"
        private.mkdir(mode=0o700, exist_ok=True)
        folders = dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(private))
        plain = {"PATH": search_path(self.windows), "COLUMNS": "100", "NO_COLOR": "1"}
        return self.gpu.environment() | folders | plain | NO_DOOR

    def vram(self, *words: str, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "vram", *words],
            env=self.environment() | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def why(self, *words: str, code: int | None = 0, deadline_s: int = 60) -> dict[str, Any]:
        """What it tells a program; with patience, for the machine may be busy with other tests."""
        done = self.vram("why", "--json", "--deadline", f"{deadline_s}s", *words, code=code)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def wsl(native_libraries: Path, tmp_path: Path) -> Iterator[Wsl]:
    """A 24 GiB GPU under Windows' driver; no powershell.exe until a test installs one."""
    windows = tmp_path / "windows"
    windows.mkdir()
    with VirtualGpu.create(memory_bytes=24 * GIB, name=NAME, wddm=True) as gpu:
        yield Wsl(gpu, windows)


@pytest.fixture
def hold(wsl: Wsl) -> Iterator[Hold]:
    """Start programs that hold GPU memory; all are gone after the test."""
    with ExitStack() as stack:

        def start(nbytes: int, gpu: int = 0, *words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, HOLDER, str(nbytes), str(gpu), *words],
                env=wsl.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip().isdigit()
            return process

        yield start
