"""Programs on every Python that is here, visited with the very text that travels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require_python
from vram.reach import payload

PROGRAMS = Path(__file__).with_name("programs")
MINORS = (9, 10, 11, 12, 13, 14)


class Subject:
    """One running subject; it is told a line, and answers one."""

    def __init__(self, python: str, *words: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [python, str(PROGRAMS / "subject.py"), *words], stdin=-1, stdout=-1, text=True, env=environment
        )
        self.pid: int = self.hear()["pid"]

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it has ended: {self._process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, word: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {json.dumps(fields)}\n")
        self._process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=MINORS, ids=lambda minor: f"3.{minor}")
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    python = require_python(f"3.{request.param}")
    file = tmp_path / "payload"
    file.write_text(payload.expression("inside", "answered", {"HERE": 1}).replace("{'HERE': 1}", "'REQUEST'"))
    started = Subject(python, str(file))
    yield started
    started.close()
