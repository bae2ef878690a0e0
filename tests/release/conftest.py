"""Stand-ins for servers on a virtual GPU, with private folders of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, until, until_readable
from tests.reach.conftest import World
from tests.reach.conftest import world as world  # the fixture

PROGRAM = Path(__file__).with_name("server_program.py")


# A word of their command lines by which they look like a server that is known.
LOOKS = {"llamacpp": ("llama-server",), "unknown": ("vllm",), "not-http": ("vllm",)}


class StandIn:
    """One running server; ``heard`` are the requests that reached it."""

    def __init__(self, environment: Mapping[str, str], *words: str) -> None:
        argv = [sys.executable, str(PROGRAM), *words, *LOOKS.get(words[0], ())]
        self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        until_readable(self.process.stdout)
        first = json.loads(self.process.stdout.readline())
        self.pid, self.port, self.child = self.process.pid, first["port"], first.get("child")
        self.heard: list[dict[str, Any]] = []
        self._listens = threading.Thread(target=self._hear, daemon=True)
        self._listens.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard.append(json.loads(line))

    def posts(self) -> list[str]:
        return [each["path"] for each in self.heard if each.get("method") == "POST"]

    def wait_for(self, path: str) -> None:
        until(lambda: path in [each.get("path") for each in self.heard], lambda: self.heard)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        if self.child is not None and self.process.poll() is None:
            subprocess.run(["kill", "-KILL", str(self.child)], capture_output=True)
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._listens.join(PATIENCE_S)


class ServerWorld:
    """Starts servers, and asks vram about them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._started: list[StandIn] = []

    def start(self, *words: str) -> StandIn:
        made = StandIn(self.world.environment, *words)
        self._started.append(made)
        return made

    def vram(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.world.vram(*words, **environment)

    def release(self, pid: int, *words: str) -> dict[str, Any]:
        """Release, which must be possible; return the receipt."""
        done = self.vram("release", pid, "--yes", "--json", *words)
        assert done.stdout, done.stderr
        receipt: dict[str, Any] = json.loads(done.stdout)["receipt"]
        receipt["exit code"] = done.returncode
        return receipt

    def refusal(self, pid: int, *words: str) -> tuple[int, str]:
        done = self.vram("release", pid, "--yes", *words)
        assert done.stdout == ""
        return done.returncode, done.stderr

    def close(self) -> None:
        for each in self._started:
            each.close()


@pytest.fixture
def servers(world: World) -> Any:
    place = ServerWorld(world)
    yield place
    place.close()


def freed(receipt: dict[str, Any]) -> int:
    returned: int = receipt["charged_before"] - receipt["charged_after"]
    return returned
