"""Processes to be reached, on a virtual GPU, with private folders of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

import vram
from tests.needs import require_python
from tests.patience import PATIENCE_S, until_readable
from vram.host.local import LocalHost
from vram.model.plan import Target
from vram.reclaim.identity import identify
from vram.units import GIB
from vram.virtualgpu.demos import PROGRAMS

SOURCES = Path(vram.__file__).parents[1]
SUBJECT = Path(__file__).with_name("subject.py")
CACHED = 2 * GIB


class Subject:
    """One running subject; everything is said to it, and heard from it, in lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: "it does not answer: it is stopped, or hangs")
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self) -> dict[str, Any]:
        """Show that it goes on working."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def tracer(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid"))


class World:
    """A virtual GPU, private folders, and whoever was started there."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.runtime, self.state = folder / "runtime", folder / "state"
        for each in (self.runtime, self.state):
            each.mkdir(mode=0o700)
        self.environment = {
            **environment,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": f"{SOURCES}:{PROGRAMS}",
        }
        self._subjects: list[Subject] = []

    def popen(
        self, argv: list[str], stderr: IO[bytes] | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def subject(
        self,
        *words: str,
        python: str = sys.executable,
        options: Sequence[str] = (),
        stderr: IO[bytes] | None = None,
        **environment: str,
    ) -> Subject:
        argv = [python, *options, str(SUBJECT), str(CACHED), *words]
        subject = Subject(self.popen(argv, stderr, **environment))
        self._subjects.append(subject)
        return subject

    def vram(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "vram", *map(str, words)],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def trim(self, pid: int, *words: str) -> dict[str, Any]:
        """Trim one process, which must work; return its receipt."""
        done = self.vram("trim", pid, "--json", *words)
        assert done.returncode == 0, done.stderr
        (receipt,) = json.loads(done.stdout)["trimmed"]
        assert not receipt["answer"]["notes"], receipt["answer"]["notes"]
        return dict(receipt)

    def audit(self) -> list[dict[str, Any]]:
        path = self.state / "vram" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        for subject in self._subjects:
            subject.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    gpu = request.getfixturevalue("virtual_gpu")
    place = World(gpu.environment(), tmp_path)
    # Tests that go in themselves, without the command line, use the same folders.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(place.state))
    yield place
    place.close()


@pytest.fixture(scope="session")
def python314() -> str:
    """An interpreter with sys.remote_exec: ours, or another that is found."""
    if sys.version_info >= (3, 14):
        return sys.executable
    return require_python("3.14")


def target_of(pid: int) -> Target:
    return identify(LocalHost(), pid)


def released(receipt: dict[str, Any]) -> int:
    """What the driver says has come back."""
    returned: int = receipt["charged_before"] - receipt["charged_after"]
    return returned


def by_name(receipt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in receipt["answer"]["lines"]}
