"""vram inside a control group with a limit: the total is the limit, and the difference is not hidden."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import Popen
from typing import Any

import pytest

from tests.limits.conftest import LEAF, LimitedMachine, kinds
from tests.needs import needs
from vram.units import GIB, MIB

pytestmark = [pytest.mark.native, needs("root")]

Hold = Callable[..., Popen[str]]
CONTEXT = 518 * MIB


def notes(gpu: dict[str, Any], code: str) -> list[str]:
    return [each["text"] for each in gpu["notes"] if each["code"] == code]


def test_the_total_is_the_limit_and_says_so(machine: LimitedMachine, hold: Hold) -> None:
    machine.limit(LEAF, "20GiB")
    mine, other = hold(4 * GIB, LEAF), hold(30 * GIB)
    gpu = machine.why(LEAF)
    assert gpu["total_bytes"] == 20 * GIB
    found = kinds(gpu)
    assert found["process"] == 4 * GIB + CONTEXT
    assert set(found) == {"process", "overhead", "free"}
    (text,) = notes(gpu, "cgroup-limit")
    assert text.startswith("the total is this control group's limit; the GPU has 140.4 GiB, and")
    assert text.endswith("processes outside the group hold 30.5 GiB")
    assert [each["holder"]["pid"] for each in gpu["outside"]] == [other.pid]
    assert mine.pid in [each["holder"]["pid"] for each in gpu["entries"] if each["holder"]]
    shown = machine.vram("why", "-v", cgroup=LEAF).stdout
    assert "outside of the limit, and in no sum here:" in shown
    assert f"pid {other.pid}" in shown
    screen = machine.vram(cgroup=LEAF).stdout.splitlines()
    assert "4.5/20.0 GiB" in screen[0]
    assert screen[1].startswith("GPU 0: the total is this control group's limit")


def test_what_others_use_of_the_limit_is_withheld_and_not_hidden(machine: LimitedMachine, hold: Hold) -> None:
    """The GPU is nearly full: of the limit's rest only that much can be had."""
    machine.limit(LEAF, "20GiB")
    hold(130 * GIB)
    hold(2 * GIB, LEAF)
    gpu = machine.why(LEAF)
    found = kinds(gpu)
    assert found["free"] < 8 * GIB
    assert found["withheld"] == 20 * GIB - found["free"] - gpu["memory"]["used"]
    assert not found.keys() & {"hidden", "unattributed"}
    assert not {"VR106", "VR301", "VR302"} & set(gpu["codes"])


def test_outside_of_it_the_gpu_is_whole(machine: LimitedMachine, hold: Hold) -> None:
    machine.limit(LEAF, "20GiB")
    hold(4 * GIB, LEAF)
    gpu = machine.why()
    assert gpu["total_bytes"] == 143771 * MIB
    assert kinds(gpu)["process"] == 4 * GIB + CONTEXT
    assert gpu["outside"] == []


def test_a_limit_above_a_group_of_ones_own_is_not_taken_for_the_total(
    machine: LimitedMachine, hold: Hold
) -> None:
    machine.limit(LEAF.rpartition("/")[0], "20GiB")
    assert machine.why(LEAF)["total_bytes"] == 143771 * MIB


def test_an_idle_limited_group_is_clean(machine: LimitedMachine, hold: Hold) -> None:
    machine.limit(LEAF, "20GiB")
    hold(30 * GIB)
    machine.vram("check", cgroup=LEAF)


def test_older_drivers_are_not_asked(native_libraries: object, tmp_path: object, virtual_gpu: Any) -> None:
    """No call that they lack is made: each would be a failure in the log of a strict one."""
    virtual_gpu.add_cgroup("/a.slice")
    virtual_gpu.fail("nvmlDeviceGetMemoryLimits_v1", hang=True)
    from tests.probes.conftest import facts, take
    from vram.model.gpu import MemoryFacts

    ((_, memory),) = facts(take(virtual_gpu), MemoryFacts)
    assert memory.limit is None
