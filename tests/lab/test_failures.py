"""Experiments that go wrong: each ends with a reason, and leaves no process and no memory behind."""

from __future__ import annotations

import os
import signal
import subprocess

import msgspec
import pytest

from tests.lab.conftest import (
    PROGRAM,
    Lab,
    assert_clean,
    only_result,
    processes_on,
    results_of,
    wait_gone,
    wait_until,
)
from tests.patience import PATIENCE_S
from vram.host.local.processes import LocalProc
from vram.lab.topics import TOPICS
from vram.lab.worker import WorkerClient
from vram.model.lab import LabReport
from vram.units import GIB
from vram.virtualgpu import VirtualGpu


def test_one_that_fails_half_way_cleans_up(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """The second context of two fails when memory and a forked child are there already."""
    virtual_gpu.fail("cuMemCreate", error="OUT_OF_MEMORY")
    result = only_result(lab("run", "--json", "reset-needed"))
    assert result.verdict == "cannot tell"
    assert "cuMemCreate answered 2" in result.because
    virtual_gpu.clear_faults()
    assert_clean(virtual_gpu)


def test_one_that_hangs_is_ended_at_its_deadline(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("cuMemFree", hang=True)
    result = only_result(lab("run", "--json", "--deadline", "3s", "free-keeps"))
    assert result.verdict == "cannot tell"
    assert "deadline" in result.because
    virtual_gpu.clear_faults()
    assert_clean(virtual_gpu)


def test_the_next_experiment_is_none_the_worse(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("cuIpcOpenMemHandle", error="INVALID_VALUE")
    ended = lab("run", "--json", "ipc-survives", "kill-nine")
    assert '"false here"' in ended.stdout
    assert '"cannot tell"' in ended.stdout
    assert ended.returncode == 3


def test_a_gpu_that_does_not_answer_is_a_reason(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", error="GPU_IS_LOST", after=2)
    ended = lab("run", "--json", "free-keeps")
    assert only_result(ended).verdict == "cannot tell"
    virtual_gpu.clear_faults()
    assert_clean(virtual_gpu)


def test_too_little_free_memory_is_a_reason(lab: Lab, native_libraries: object) -> None:
    """Nothing is begun where there is less free than the experiment names."""
    with VirtualGpu.create(memory_bytes=1 * GIB, reserved_bytes=GIB // 2) as small:
        result = only_result(lab("run", "--json", "kill-nine", gpu=small))
        assert result.verdict == "cannot tell"
        assert result.because == "it needs 1.0 GiB of free memory, and only 512.0 MiB is free"
        assert result.readings == ()
        assert_clean(small)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cleans_up(virtual_gpu: VirtualGpu, number: signal.Signals, code: int) -> None:
    running = hanging_run(virtual_gpu)
    running.send_signal(number)
    assert running.wait() == code
    virtual_gpu.clear_faults()
    assert_clean(virtual_gpu)


def test_what_was_found_before_an_interruption_is_told(virtual_gpu: VirtualGpu) -> None:
    running = hanging_run(virtual_gpu, "kill-nine", "exported-handle", "--json")
    running.send_signal(signal.SIGINT)
    told, _ = running.communicate()
    assert running.returncode == 130
    report = msgspec.json.decode(told, type=LabReport)
    assert [result.experiment for result in report.results] == ["kill-nine"]
    assert report.left_out == ("exported-handle",)


def test_who_is_killed_leaves_nobody_behind(virtual_gpu: VirtualGpu) -> None:
    """Nobody is left to clean up: the processes end by themselves, the forked child too."""
    running = hanging_run(virtual_gpu)
    others = processes_on(virtual_gpu) - {running.pid}
    running.kill()
    running.wait()
    wait_gone(others)
    virtual_gpu.clear_faults()
    assert_clean(virtual_gpu)


def hanging_run(gpu: VirtualGpu, *words: str) -> subprocess.Popen[bytes]:
    """A run whose child is forked and whose allocator hangs in the driver."""
    gpu.fail("cuMemCreate", hang=True)
    running = gpu.popen([*PROGRAM, "run", *(words or ("exported-handle",))], stdout=subprocess.PIPE)
    wait_until(lambda: contexts_on(gpu) and a_fork_among(processes_on(gpu) - {running.pid}), running)
    return running


def a_fork_among(pids: set[int]) -> bool:
    """Only this experiment's holder is a child of another process of its own."""
    return any(found and found[1].parent in pids for found in map(LocalProc().facts, pids))


def contexts_on(gpu: VirtualGpu) -> list[object]:
    return list((gpu.folder / "memory").glob("nvidia0.*")) if (gpu.folder / "memory").exists() else []


def test_what_the_driver_keeps_is_not_measured_where_it_would_stay(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """Beside a process that uses CUDA, the reserve of managed memory would outlive the experiment."""
    other = WorkerClient(virtual_gpu.environment())
    other.left_s = lambda: PATIENCE_S
    try:
        other.call("context")
        before = other.call("free_and_total")
        result = only_result(lab("run", "--json", "managed-outlives"))
        assert result.verdict == "cannot tell"
        assert result.because == "other processes use the GPU, and what stays would stay with them"
        assert other.call("free_and_total") == before
    finally:
        other.close()


def test_no_kernel_fails_where_others_would_suffer(lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """Clients of an MPS server share its faults: a worker that is one is not made to fail."""
    names = [claim.name for claim in TOPICS["Errors on the device"]]
    argv = [*PROGRAM, "run", "--json", *names]
    environment = {**os.environ, "VRAM_VIRTUAL_MPS": "client"}
    ended = virtual_gpu.run(argv, env=environment, capture_output=True, text=True)
    results = results_of(ended)
    assert {result.verdict for result in results.values()} == {"cannot tell"}
    assert {result.because for result in results.values()} == {
        "through MPS a fault would end the work of other clients too"
    }
