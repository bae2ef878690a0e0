"""The virtual CUPTI tells and answers what NVIDIA's did on an H200 (answers.py, h200-13.json)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.virtualgpu.cupti.programs import HERE, environment
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native


def asked(gpu: VirtualGpu, library: str) -> dict[str, Any]:
    argv = [sys.executable, str(HERE / "answers.py"), library]
    done = subprocess.run(
        argv, env=environment(gpu), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def recorded() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((HERE / "h200-13.json").read_text())
    return answers


def test_every_answer_is_that_of_the_h200(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = asked(virtual_gpu, "libcupti.so.13"), recorded()
    assert ours.keys() == theirs.keys()
    for part, answers in theirs.items():
        assert ours[part] == answers, part


def test_the_library_of_cuda_12_differs_in_its_version_alone(virtual_gpu: VirtualGpu) -> None:
    """Names of subscribers came with CUDA 13. Nothing else was measured: it is the same driver underneath."""
    ours, theirs = asked(virtual_gpu, "libcupti.so.12"), recorded()
    assert ours.pop("named") is None
    theirs.pop("named")
    assert ours["errors"].pop("version") == [0, 26, 1]
    assert theirs["errors"].pop("version") == [0, 130001, 1]
    assert ours == theirs
