"""The three programs about threads do what they say: leak shown, leak closed, owner object."""

from __future__ import annotations

import sys

from tests.guard.scoping import ROOT, environment
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu


def shown(gpu: VirtualGpu, name: str) -> list[str]:
    done = gpu.run(
        [sys.executable, ROOT / "examples" / "threads" / name],
        env=environment(gpu),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return list(done.stdout.splitlines())


@needs("cuda")
def test_threads_that_free_nothing_leave_everything(virtual_gpu: VirtualGpu) -> None:
    assert shown(virtual_gpu, "leak_shown.py") == [
        "the threads have ended: 20 MiB more in use than before",
        "scope 'five threads' kept 20 MiB outside every framework",
    ]


@needs("cuda")
def test_a_free_that_is_jumped_over_is_told_at_the_threads_end(virtual_gpu: VirtualGpu) -> None:
    lines = shown(virtual_gpu, "leak_closed.py")
    assert [line for line in lines if "stay in use" in line] == [
        *["careful: 0 MiB stay in use"] * 2,
        "careless: 4 MiB stay in use",
        *["careful: 0 MiB stay in use"] * 2,
    ]


@needs("cuda")
def test_a_second_gpu_changes_nothing_about_it(two_virtual_gpus: VirtualGpu) -> None:
    assert "careless: 4 MiB stay in use" in shown(two_virtual_gpus, "leak_closed.py")


def test_an_owner_object_leaves_nothing(virtual_gpu: VirtualGpu) -> None:
    assert shown(virtual_gpu, "owner_object.py")[-1] == "they have ended: 0 MiB stay in use"


@needs("pycuda")
def test_pycuda_shows_the_same(virtual_gpu: VirtualGpu) -> None:
    lines = shown(virtual_gpu, "pycuda_threads.py")
    assert lines == [
        "raw pointers: 20 MiB stay in use",
        "pointers that were freed: 0 MiB stay in use",
        "owner objects: 0 MiB stay in use",
    ]
