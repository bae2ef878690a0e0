"""Which GPU is experimented on, and which cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vram.errors import DriverMissing, UsageError, VramError
from vram.lab.experiment import find_device
from vram.model.gpu import DriverFacts, GpuFacts
from vram.model.observation import Observation


class FixedHost:
    """A host whose driver says exactly this."""

    def __init__(self, *said: Observation) -> None:
        self._said = said
        self.nvml: Any = self

    def read(self, deadline_s: float) -> Iterator[Observation]:
        return iter(self._said)


def gpu(index: int, **facts: Any) -> Observation:
    return Observation(
        probe="nvml.gpu", gpu=index, facts=GpuFacts(uuid=f"GPU-{index}", name=f"NVIDIA {index}", **facts)
    )


def found(*said: Observation, index: int = 0) -> Any:
    return find_device(FixedHost(*said), index)  # type: ignore[arg-type]


def test_the_gpu_is_found_by_its_number() -> None:
    driver = Observation(probe="nvml.driver", facts=DriverFacts(driver_version="580.1"))
    device = found(driver, gpu(0), gpu(1), index=1)
    assert device.facts.uuid == "GPU-1"
    assert device.driver.driver_version == "580.1"


def test_a_number_that_nobody_has_names_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        found(gpu(0), gpu(1), index=2)
    assert caught.value.hint == "these exist: 0 (NVIDIA 0), 1 (NVIDIA 1)"


def test_no_driver_says_why_and_what_to_do() -> None:
    failed = Observation(probe="nvml.init", status="unsupported", message="the library is not installed")
    with pytest.raises(DriverMissing, match="the library is not installed") as caught:
        found(failed)
    assert "vram virtual" in caught.value.hint


def test_a_divided_gpu_is_left_alone() -> None:
    with pytest.raises(VramError, match="MIG"):
        found(gpu(0, mig_enabled=True))


def test_a_gpu_that_does_not_report_its_memory_is_an_error() -> None:
    device = found(gpu(0))
    lost = Observation(probe="nvml.memory", gpu=0, status="lost", message="GPU is lost")
    with pytest.raises(VramError, match="does not report its memory: GPU is lost"):
        device.read(FixedHost(lost))
