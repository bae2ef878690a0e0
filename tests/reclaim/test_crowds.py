"""Processes that come and go by the hundred while vram looks and acts: no error, nobody wrong."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.ghosts.conftest import held_by
from tests.reclaim.conftest import Bench
from vram.units import GIB, MIB

# A shell that starts and reaps processes as fast as it can: about a thousand a second.
RUSH = "while :; do for i in 1 2 3 4 5 6 7 8; do /bin/true & done; wait; done"


@pytest.fixture
def rush() -> Iterator[None]:
    shell = subprocess.Popen(["/bin/sh", "-c", RUSH])
    yield
    shell.kill()
    shell.wait()


class Churn:
    """A thread that raises and lays ghosts on the GPU, one after the other."""

    def __init__(self, machine: Bench) -> None:
        self._machine = machine
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.failure: BaseException | None = None

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._done.is_set():
                with self._machine.demo("forks.orphan", 64 * MIB) as demo:
                    demo.kill("parent")
        except BaseException as error:
            self.failure = error


@pytest.mark.fault(11)
def test_plans_are_made_whatever_comes_and_goes(machine: Bench, rush: None):
    with Churn(machine) as churn:
        answers = [machine.ask("free", "--up-to", "kill", "--dry-run") for _ in range(3)]
    assert churn.failure is None
    assert len(answers) == 3


@pytest.mark.fault(11)
def test_the_healthy_survive_while_leftovers_end_around_them(machine: Bench, rush: None):
    """Whatever a run meets, it ends well or refuses; who works is never touched."""
    worker = machine.demo("memory.plain", 1 * GIB).pids["self"]
    codes = set()
    with Churn(machine) as churn:
        for _ in range(3):
            codes.add(machine.vram("free", "--finding", "VR101", "--yes", "--json").returncode)
    assert codes <= {0, 3, 15}
    assert churn.failure is None
    assert held_by(machine.why(), worker) > 1 * GIB
    for record in machine.audit():
        if record["event"] == "intend":
            assert record["step"]["target"]["process"]["pid"] != worker
