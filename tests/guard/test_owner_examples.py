"""The examples of owner objects do what their first lines say, on a virtual GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.guard.owner import SOURCE
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

EXAMPLES = Path(__file__).parents[2] / "examples"

needs_bindings = needs("cuda.bindings")


def lines(gpu: VirtualGpu, name: str) -> list[str]:
    environment = gpu.environment() | {"PYTHONPATH": str(SOURCE)}
    done = gpu.run(
        [sys.executable, EXAMPLES / name], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return list(done.stdout.splitlines())


@needs_bindings
def test_by_hand_memory_stays_and_old_bytes_are_handed_over(virtual_gpu: VirtualGpu) -> None:
    assert lines(virtual_gpu, "flush/before.py") == [
        "a bad batch: 64 MiB stay in use",
        "the next owner of the pool's memory reads b'password'",
        "after all streams ended 10 MiB stay in use, 2 of them for streams",
    ]


@needs_bindings
def test_with_an_owner_nothing_stays_and_nothing_is_handed_over(virtual_gpu: VirtualGpu) -> None:
    first, second, third, *report = lines(virtual_gpu, "flush/after.py")
    assert first == "a bad batch: 0 MiB stay in use"
    assert second == rf"the next owner of the pool's memory reads {bytes(8)!r}"
    assert third == "after all streams ended 2 MiB stay in use, 2 of them for streams"
    assert len(report) == 9


def test_an_owner_object_ends_with_its_thread(virtual_gpu: VirtualGpu) -> None:
    assert lines(virtual_gpu, "threads/owner_object.py") == [
        "five threads hold 20 MiB",
        "a thread ended by ValueError('a thread may end like this, too')",
        "they have ended: 0 MiB stay in use",
    ]
