"""The examples of memory that outlives its program do what their first lines say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTHING = "nothing is left on the GPU\n"


def shown(gpu: VirtualGpu, name: str) -> str:
    argv = [sys.executable, str(EXAMPLES / name)]
    done = gpu.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_forked_worker_keeps_a_killed_trainers_memory(virtual_gpu: VirtualGpu) -> None:
    said = shown(virtual_gpu, "after-exit/fork_before.py")
    pattern = r"the trainer is gone: 1542 MiB are left on the GPU, held by pid \d+ \(VR101\)\n"
    assert re.fullmatch(pattern, said)


def test_a_spawned_worker_keeps_nothing(virtual_gpu: VirtualGpu) -> None:
    assert shown(virtual_gpu, "after-exit/fork_after.py") == f"the trainer is gone: {NOTHING}"


@needs("cuda")
def test_a_broker_keeps_what_no_list_names(virtual_gpu: VirtualGpu) -> None:
    said = shown(virtual_gpu, "no-process/handle_before.py")
    pattern = r"the maker is gone: 1024 MiB are left on the GPU, held by pid \d+ \(VR103\)\n"
    assert re.fullmatch(pattern, said)


@needs("cuda")
def test_a_broker_that_closes_descriptors_keeps_nothing(virtual_gpu: VirtualGpu) -> None:
    assert shown(virtual_gpu, "no-process/handle_after.py") == f"the maker is gone: {NOTHING}"
