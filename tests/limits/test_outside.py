"""On the host: unlisted bytes belong to the group that the kernel counts them for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from tests.limits.conftest import LEAF, POD, LimitedMachine, kinds
from vram.units import GIB
from vram.virtualgpu.demos import DemoProgram

pytestmark = pytest.mark.native

Hold = Callable[..., Popen[str]]


def test_what_groups_have_is_read_without_what_groups_below_them_have(
    machine: LimitedMachine, hold: Hold
) -> None:
    hold(4 * GIB, LEAF)
    gpu = machine.why()
    limits = {each["limit"]["cgroup"]: each for each in gpu["limits"]}
    used = limits[LEAF]["limit"]["used"]
    assert 4 * GIB < used < 5 * GIB
    assert limits[POD]["limit"]["used"] == used
    assert limits[LEAF]["workload"]["container"] == "ab" * 32
    assert limits[LEAF]["workload"]["pod"] == "0d0c1c51-0e4c-4f3e-8a64-6b8bfb2a3a11"


def test_listed_memory_is_its_processes_and_no_group_gets_more(machine: LimitedMachine, hold: Hold) -> None:
    hold(4 * GIB, LEAF)
    gpu = machine.why()
    assert set(kinds(gpu)) == {"process", "overhead", "reserved", "free"}


def test_unlisted_memory_names_the_pod_that_it_is_counted_for(
    machine: LimitedMachine, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator that is dead, whose allocation is held by a handle that cannot be tried from here."""
    monkeypatch.setenv("VRAM_VIRTUAL_CGROUP", LEAF)
    with DemoProgram(machine.gpu, "exports.handle", 6 * GIB) as demo:
        demo.go()
        demo.go()
        assert demo.stage == "allocator killed"
        monkeypatch.delenv("VRAM_VIRTUAL_CGROUP")
        machine.gpu.fail("cuMemImportFromShareableHandle", error="UNKNOWN")
        gpu = machine.why()
        (entry,) = [each for each in gpu["entries"] if each["cgroup"]]
        assert (entry["kind"], entry["hidden_by"], entry["nbytes"]) == ("hidden", "cgroup", 6 * GIB)
        assert entry["cgroup"]["path"] == LEAF
        assert entry["cgroup"]["workload"]["pod"] == "0d0c1c51-0e4c-4f3e-8a64-6b8bfb2a3a11"
        assert "VR304" in gpu["codes"]
        assert "VR106" not in gpu["codes"]
        assert "pod" in machine.vram("ps").stdout


def test_a_kernel_that_counts_nothing_is_not_walked(virtual_gpu: object) -> None:
    from vram.host.local.cgroups import LocalCgroups

    assert LocalCgroups().counts_device_memory is False
    assert LocalCgroups().device_memory() == ()


def test_redacted_snapshots_name_no_group(machine: LimitedMachine, hold: Hold, tmp_path: Path) -> None:
    hold(GIB, LEAF)
    path = f"{tmp_path}/machine.json"
    machine.vram("snapshot", "--redact", "-o", path)
    text = Path(path).read_text()
    assert "kubepods" not in text
    assert "abab" not in text
    gpu = json.loads(machine.vram("why", "--json", "--from", path).stdout)["gpus"][0]
    assert sorted(each["limit"]["cgroup"].count("/") for each in gpu["limits"]) == [1, 2, 3]
