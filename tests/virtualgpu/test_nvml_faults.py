"""Failures on request, as a program that calls NVML meets them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S
from tests.virtualgpu.conftest import PREAMBLE, ask
from vram.errors import UsageError
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.config import read_fault

pytestmark = pytest.mark.native

GPU_IS_LOST, UNKNOWN, LIB_RM_VERSION_MISMATCH = 15, 999, 18

READ = "code(n.nvmlDeviceGetMemoryInfo, {})"


def test_a_gpu_is_lost_and_the_other_is_not(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.fail("nvmlDevice*", gpu=1, error="GPU_IS_LOST")
    assert ask(two_virtual_gpus, "[code(memory, 0), code(memory, 1)]") == [0, GPU_IS_LOST]


def test_a_gpu_is_lost_in_the_middle_of_a_scan(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo", error="GPU_IS_LOST", after=3)
    reads = f"[{READ.format('h')} for _ in range(5)]"
    assert ask(virtual_gpu, reads, "h = handle(0)") == [0, 0, *[GPU_IS_LOST] * 3]


def test_one_call_fails_and_the_next_works(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo", error="UNKNOWN", nth=2)
    reads = f"[{READ.format('h')} for _ in range(3)]"
    assert ask(virtual_gpu, reads, "h = handle(0)") == [0, UNKNOWN, 0]


def test_init_fails_as_it_does_after_a_driver_update(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlInit*", error="NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    program = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    done = virtual_gpu.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == LIB_RM_VERSION_MISMATCH


def test_faults_come_and_go_while_a_program_runs(virtual_gpu: VirtualGpu) -> None:
    program = f"{PREAMBLE}\nh = handle(0)\nfor _ in sys.stdin: print({READ.format('h')}, flush=True)"
    argv = [sys.executable, "-c", program]
    with virtual_gpu.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        codes = []
        for change in (None, lambda: virtual_gpu.fail("nvml*", error=15), virtual_gpu.clear_faults):
            if change:
                change()
            running.stdin.write("\n")
            running.stdin.flush()
            codes.append(int(running.stdout.readline()))
    assert codes == [0, GPU_IS_LOST, 0]


def test_a_call_that_hangs_never_returns(virtual_gpu: VirtualGpu) -> None:
    """Another program can start, ask and end meanwhile; this one is still there to be killed."""
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", hang=True)
    program = f"{PREAMBLE}\nh = handle(0)\nprint('calling', flush=True)\nmemory()\nprint('returned')"
    argv = [sys.executable, "-c", program]
    with virtual_gpu.popen(argv, stdout=subprocess.PIPE, text=True) as hanging:
        assert hanging.stdout is not None
        assert hanging.stdout.readline() == "calling\n"
        assert ask(virtual_gpu, "n.nvmlDeviceGetCount()") == 1
        assert hanging.poll() is None
        hanging.kill()
        assert hanging.stdout.read() == ""


def test_a_slow_call_answers_in_the_end(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetCount*", slow_s=0.25)
    took = ask(
        virtual_gpu,
        "[n.nvmlDeviceGetCount(), time.monotonic() - began >= 0.25]",
        "import time; began = time.monotonic()",
    )
    assert took == [1, True]


def test_a_slow_call_goes_on_when_the_faults_are_cleared(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetCount*", slow_s=1e6)
    program = f"{PREAMBLE}\nprint('calling', flush=True)\nprint(n.nvmlDeviceGetCount())"
    argv = [sys.executable, "-c", program]
    with virtual_gpu.popen(argv, stdout=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "calling\n"
        virtual_gpu.clear_faults()
        assert slow.communicate(timeout=PATIENCE_S)[0] == "1\n"


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("nvmlInit* error=18", "nvmlInit* error=18"),
        ("  nvmlInit_v2   hang ", "nvmlInit_v2 hang"),
        ("nvmlDevice* gpu=1 after=3 error=gpu_is_lost", "nvmlDevice* gpu=1 after=3 error=15"),
        ("cuMemAlloc* nth=5 error=OUT_OF_MEMORY", "cuMemAlloc* nth=5 error=2"),
        ("cuMem* error=CUDA_ERROR_NOT_SUPPORTED", "cuMem* error=801"),
        (
            "cuCheckpointProcessCheckpoint halfway=OPERATING_SYSTEM",
            "cuCheckpointProcessCheckpoint halfway=304",
        ),
        ("nvml* slow=0.5 sentinel", "nvml* slow=0.5 sentinel"),
    ],
)
def test_a_fault_line_is_written_in_numbers(said: str, written: str) -> None:
    assert read_fault(said) == written


@pytest.mark.parametrize(
    "line",
    [
        "",
        "error=15",
        "cudaMalloc* error=2\nnvml* hang",
        "printf hang",
        "nvmlInit",
        "nvmlInit gpu=1",
        "nvmlInit error=",
        "nvmlInit error=NO_SUCH",
        "nvmlInit error=-1",
        "nvmlInit after=x hang",
        "nvmlInit hang=1",
        "nvmlInit slow=fast",
        "nvmlInit slow=1e9",
        "nvmlInit error=15 what",
    ],
)
def test_a_wrong_fault_line_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_fault(line)
    assert refused.value.hint
