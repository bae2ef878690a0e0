"""Eight threads that call at once: what a subscriber is told of them (threads.c)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.virtualgpu.cupti.programs import HERE, compiled, environment
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CALLS = 8 * 2000 * 2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(HERE / "threads.c", tmp_path_factory.mktemp("threads") / "threads")


def run(gpu: VirtualGpu, program: Path, mode: str) -> list[int]:
    """Calls made, entries told, exits told, callbacks that were told something wrong."""
    argv = [program, "libcupti.so.13", mode]
    done = subprocess.run(
        argv, env=environment(gpu), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode in (0, 1), (done.returncode, done.stderr)
    counts: list[int] = json.loads(done.stdout)
    return counts


def test_every_call_of_every_thread_is_told(virtual_gpu: VirtualGpu, program: Path) -> None:
    assert run(virtual_gpu, program, "steady") == [CALLS, CALLS, CALLS, 0]


def test_callbacks_can_be_switched_while_threads_call(virtual_gpu: VirtualGpu, program: Path) -> None:
    """No call is lost or told to the wrong one; an exit is told only after its entry."""
    calls, entries, exits, wrong = run(virtual_gpu, program, "switch")
    assert wrong == 0
    assert 0 < exits <= entries < calls


def test_a_process_that_is_traced_can_fork(virtual_gpu: VirtualGpu, program: Path) -> None:
    """Children of a busy process call, are refused, unsubscribe and end; the parent's calls are all told."""
    assert run(virtual_gpu, program, "fork") == [CALLS, CALLS, CALLS, 0]
