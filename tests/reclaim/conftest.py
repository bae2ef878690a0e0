"""Machines with a GPU whose records go to a folder of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ghosts.conftest import Machine
from tests.needs import skip_without
from tests.patience import PATIENCE_S
from vram.host.local import LocalHost

# From Python 3.14 on a way leads into every program; here it leads only where a test has made one.
NO_DOOR = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}


class Bench(Machine):
    """A machine on which vram acts; knows what it wrote down."""

    def __init__(self, environment: dict[str, str], state: Path, *, real: bool) -> None:
        super().__init__({**environment, **NO_DOOR, "XDG_STATE_HOME": str(state)}, real=real)
        self.state = state

    def environment(self, **more: str) -> dict[str, str]:
        return {**self._environment, **more}

    def ask(self, *words: str, **options: Any) -> dict[str, Any]:
        """Run a command with --json, which must work; return its answer.

        A plan that is only shown has given nothing back: then that is its exit code.
        """
        done = self.vram(*words, "--json", **options)
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
        shown = "--dry-run" in words
        held = shown and (answer["plan"]["steps"] or any(each["leftover"] for each in answer["skipped"]))
        assert done.returncode == (1 if held else 0), done.stderr
        return answer

    def fault(self, line: str) -> None:
        """Make the virtual driver fail from here on."""
        self.require_virtual("a real driver does not fail on request")
        done = self.vram("virtual", "fault", line)
        assert done.returncode == 0, done.stderr

    def require_virtual(self, detail: str) -> None:
        if self.real:
            skip_without("virtual-gpu", detail)

    def audit(self) -> list[dict[str, Any]]:
        path = self.state / "vram" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, **options
        )


@pytest.fixture
def machine(real_gpu: bool, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if real_gpu:
        place = Bench(dict(os.environ), tmp_path / "state", real=True)
    else:
        gpu = request.getfixturevalue("virtual_gpu")
        place = Bench(gpu.environment(), tmp_path / "state", real=False)
    yield place
    place.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this very process writes its records."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder / "vram"


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture
def new_namespaces() -> tuple[str, ...]:
    """The words before a command that is to run in PID and mount namespaces of its own."""
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    enter = ("unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child")
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new PID namespace may be made here")
    return enter
