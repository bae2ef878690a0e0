"""A driver in trouble: what still answers is reported, and the right cause is named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from vram.errors import ExitCode
from vram.virtualgpu import VirtualGpu


def why(gpu: VirtualGpu) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "vram", "why", "--json", "--deadline", "4"]
    done = gpu.run(argv, capture_output=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def codes(answer: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["title"] for finding in answer["findings"]}


@pytest.mark.parametrize(
    ("fault", "status", "code", "title"),
    [
        ({"error": "GPU_IS_LOST"}, "lost", "VR404", "GPU 1 is lost"),
        ({"error": "RESET_REQUIRED"}, "lost", "VR404", "GPU 1 needs a reset"),
        ({"hang": True}, "timeout", "VR405", "No answer from 1 GPU: the report is incomplete"),
        ({"error": "UNKNOWN"}, "failed", "VR405", "No answer from 1 GPU: the report is incomplete"),
    ],
)
def test_one_gpu_in_trouble_does_not_hide_the_other(
    two_virtual_gpus: VirtualGpu, fault: dict[str, Any], status: str, code: str, title: str
) -> None:
    two_virtual_gpus.fail("nvmlDeviceGetMemoryInfo*", gpu=1, **fault)
    exit_code, answer = why(two_virtual_gpus)
    healthy, troubled = answer["gpus"]
    assert exit_code == ExitCode.PARTIAL
    assert (healthy["status"], troubled["status"], troubled["total_bytes"]) == ("ok", status, None)
    assert sum(entry["nbytes"] for entry in healthy["entries"]) == healthy["total_bytes"]
    assert codes(answer)[code] == title


def test_libraries_that_do_not_match_the_module_are_named(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlInit*", error="LIB_RM_VERSION_MISMATCH")
    exit_code, answer = why(virtual_gpu)
    assert exit_code == ExitCode.PARTIAL
    assert "VR501" in codes(answer)
    assert "VR405" not in codes(answer)
