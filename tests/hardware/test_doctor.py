"""The doctor on real hardware: what it says of a host that works, how long it takes, what it leaves behind.

python -m pytest --real-gpu -s tests/hardware/test_doctor.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.search_path import search_path

pytestmark = pytest.mark.gpu


def doctor(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "vram", "doctor", "--json", *words],
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "", done.stderr
    return done.returncode, json.loads(done.stdout)


def used() -> list[int]:
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def test_a_working_host_is_not_called_broken(record: Record) -> None:
    """The driver's parts answer and agree; whatever is limited comes with its fix."""
    began = time.monotonic()
    code, answer = doctor()
    took_s = time.monotonic() - began
    checks = {each["check"]: each for each in answer["checks"]}
    record(code=code, took_s=took_s, states={name: each["state"] for name, each in checks.items()})
    assert answer["verdict"] in ("ready", "limited")
    for check in ("driver.present", "driver.versions", "driver.nvml", "driver.cuda", "vram.python"):
        assert checks[check]["state"] == "ok", checks[check]
    assert all(each["fix"] for each in checks.values() if each["state"] in ("limited", "missing", "broken"))


def test_the_gpu_is_left_as_it_was(record: Record) -> None:
    """No context stays, nor the memory that starting CUDA takes for a moment."""
    doctor()
    before = used()
    doctor()
    after = used()
    record(before=before, after=after)
    assert after == before
