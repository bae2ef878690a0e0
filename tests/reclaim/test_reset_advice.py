"""`vram reset` says what the driver itself advises for the GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native


def reset(gpu: VirtualGpu, *words: str) -> str:
    done: subprocess.CompletedProcess[str] = gpu.run(
        [sys.executable, "-m", "vram", "reset", "0", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (1, "The driver's own advice: reset the GPU."),
        (2, "The driver's own advice: restart the machine."),
        (0, "The driver's own advice: nothing needs to be done."),
    ],
)
def test_the_drivers_advice_is_said(virtual_gpu: VirtualGpu, action: int, said: str) -> None:
    virtual_gpu.set(recovery_action=action)
    assert said in reset(virtual_gpu)


def test_a_driver_that_does_not_know_it_is_not_quoted(virtual_gpu: VirtualGpu) -> None:
    assert "advice" not in reset(virtual_gpu)
    assert json.loads(reset(virtual_gpu, "--json"))["advice"] is None
    virtual_gpu.set(recovery_action=4)
    assert json.loads(reset(virtual_gpu, "--json"))["advice"] == "drain-and-reset"


def test_a_vgpu_is_said_on_the_screen_and_by_the_doctor(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(virtualization=2)
    shown = virtual_gpu.run([sys.executable, "-m", "vram"], capture_output=True, text=True).stdout
    assert "GPU 0: a vGPU: the total is its profile's" in shown
    words = [sys.executable, "-m", "vram", "doctor", "--for", "park"]
    assert "a vGPU" in virtual_gpu.run(words, capture_output=True, text=True).stdout
