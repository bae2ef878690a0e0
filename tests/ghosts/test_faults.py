"""A driver in trouble: what still answers is reported, and the right cause is named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from vram.errors import ExitCode
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram


def why(gpu: VirtualGpu) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "vram", "why", "--json", "--deadline", "4s"]
    done = gpu.run(argv, capture_output=True, timeout=PATIENCE_S)
    return done.returncode, json.loads(done.stdout)


def codes(answer: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["title"] for finding in answer["findings"]}


@pytest.mark.fault(1, 2, 3)
@pytest.mark.parametrize(
    ("fault", "status", "code", "title"),
    [
        ({"error": "GPU_IS_LOST"}, "lost", "VR404", "GPU 1 is lost"),
        ({"error": "RESET_REQUIRED"}, "lost", "VR404", "GPU 1 needs a reset"),
        ({"hang": True}, "timeout", "VR405", "No answer from GPU 1: the report is incomplete"),
        ({"error": "UNKNOWN"}, "failed", "VR405", "No answer from GPU 1: the report is incomplete"),
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
    assert sum(entry["nbytes"] or 0 for entry in healthy["entries"]) == healthy["total_bytes"]
    assert codes(answer)[code] == title


@pytest.mark.fault(3, 7)
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"error": "UNKNOWN"}, "VR405"),
        ({"hang": True}, "VR405"),
        ({"error": "NO_PERMISSION"}, "VR302"),
    ],
)
def test_without_the_compute_list_nobody_is_blamed(
    virtual_gpu: VirtualGpu, fault: dict[str, Any], code: str
) -> None:
    """The answer is incomplete, and says so; whoever has the GPU open is named, for nothing more."""
    virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", **fault)
    with DemoProgram(virtual_gpu, "memory.plain") as one, DemoProgram(virtual_gpu, "memory.plain") as other:
        exit_code, answer = why(virtual_gpu)
        check = [sys.executable, "-m", "vram", "check", "--leftovers", "--deadline", "4s"]
        assert virtual_gpu.run(check, capture_output=True, timeout=PATIENCE_S).returncode == ExitCode.PARTIAL
    (gpu,) = answer["gpus"]
    assert exit_code == ExitCode.PARTIAL
    assert {"VR302", "VR405"} & set(codes(answer)) == {code}
    assert "process lists" in next(
        each["cause"] + each["title"] for each in answer["findings"] if each["code"] == code
    )
    assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
    (rest,) = [entry for entry in gpu["entries"] if entry["kind"] not in ("free", "reserved")]
    pids = sorted((one.pids["self"], other.pids["self"]))
    assert (rest["kind"], rest["evidence"][-1]) == (
        "unattributed",
        f"pids {pids[0]}, {pids[1]} have the GPU open",
    )


@pytest.mark.fault(8)
def test_libraries_that_do_not_match_the_module_are_named(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlInit*", error="LIB_RM_VERSION_MISMATCH")
    exit_code, answer = why(virtual_gpu)
    assert exit_code == ExitCode.PARTIAL
    assert "VR501" in codes(answer)
    assert "VR405" not in codes(answer)


@pytest.mark.fault(7)
def test_without_figures_healthy_processes_are_no_leftovers(virtual_gpu: VirtualGpu) -> None:
    with (
        DemoProgram(virtual_gpu, "memory.plain", GIB) as one,
        DemoProgram(virtual_gpu, "memory.plain", 2 * GIB) as other,
    ):
        virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", sentinel=True)
        _, answer = why(virtual_gpu)
        (together,) = [each for each in answer["gpus"][0]["entries"] if each["co_holders"]]
        assert {each["pid"] for each in together["co_holders"]} == {one.pids["self"], other.pids["self"]}
        assert "VR106" not in codes(answer)
        check = virtual_gpu.run([sys.executable, "-m", "vram", "check", "--leftovers"], timeout=PATIENCE_S)
        assert check.returncode == ExitCode.OK


@pytest.mark.fault(5, 7)
def test_without_figures_the_holder_of_a_dead_parents_memory_is_named(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan", GIB) as demo:
        demo.kill("parent")
        virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", sentinel=True)
        _, answer = why(virtual_gpu)
        (orphan,) = [each for each in answer["gpus"][0]["entries"] if each["kind"] == "orphaned"]
        assert (orphan["holder"]["pid"], orphan["confidence"]) == (demo.pids["child"], "likely")
        assert "VR101" in codes(answer)
        assert "VR105" not in codes(answer)
