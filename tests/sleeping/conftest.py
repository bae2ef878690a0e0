"""Programs that sleep on a virtual GPU of the test's own, and the waker that `vram sleep` starts for them."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parking.conftest import Machine, machine
from tests.patience import PATIENCE_S, until
from tests.sleeping import programs
from tests.virtualgpu.programs import Program

__all__ = ["machine"]


class Bedroom:
    """A machine whose programs sleep. When the test ends its programs are killed, and then its waker ends."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.folder = machine.state_home / "vram"

    def server(self, **more: str) -> tuple[Program, int]:
        """A program that answers over HTTP, and its port."""
        program = self.machine.program(programs.HTTP, **more)
        return program, program.told()

    def sleep(self, *words: object) -> str:
        return self._done("sleep", *words)

    def wake(self, *words: object) -> str:
        return self._done("wake", *words)

    def _done(self, *words: object) -> str:
        done = self.machine.vram(*words)
        assert done.returncode == 0, f"{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """What the waker says that it did, and why."""
        return "".join(file.read_text() for file in self.folder.glob("sleeping-*.log"))

    def listed(self) -> list[dict[str, Any]]:
        """What `vram sleep --json` says of each program."""
        sleeping: list[dict[str, Any]] = json.loads(self._done("sleep", "--json"))["sleeping"]
        return sleeping

    def states(self) -> dict[int, str]:
        return {each["targets"][0]["process"]["pid"]: each["state"] for each in self.listed()}

    def until(self, program: Program, state: str | None) -> None:
        """Come back when it is in this state; None: when its waker has forgotten it."""
        until(lambda: self.states().get(program.pid) == state, self.log, 0.1)

    def waker(self) -> int:
        """The pid of the waker, as the kernel says."""
        with socket.socket(socket.AF_UNIX) as connection:
            until(lambda: self._connected(connection))
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", raw)[0])

    def _connected(self, connection: socket.socket) -> bool:
        for path in self.folder.glob("waker-*.sock"):
            folder = os.open(path.parent, os.O_PATH)
            try:
                connection.connect(f"/proc/self/fd/{folder}/{path.name}")
                return True
            except OSError:
                pass
            finally:
                os.close(folder)
        return False


def until_wakers_ended(folder: Path) -> None:
    """Come back when no waker has its lock in this state folder: with its last program it ends by itself."""
    for path in folder.glob("waker-*.lock"):
        with path.open("rb") as file:
            until(lambda file=file: _is_free(file.fileno()))  # type: ignore[misc]


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def get(port: int, path: str = "/") -> str:
    """What the server at *port* answers, however long it takes to wake."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def is_paused(program: Program) -> bool:
    """Whether its first thread does not run: stopped, or held by a tracer."""
    return Path(f"/proc/{program.pid}/stat").read_text().rpartition(") ")[2][0] in "Tt"


@pytest.fixture
def bedroom(machine: Machine) -> Iterator[Bedroom]:
    made = Bedroom(machine)
    yield made
    machine.end_programs()
    until_wakers_ended(made.folder)
