"""One machine with cards of three vendors: the virtual GPU is NVIDIA's, the others are folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.needs import needs
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import FIRST_PID, Machine
from vram.report.schema import SHIPPED
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

TRAINER, COMPILER, BROWSER = FIRST_PID, FIRST_PID + 1, FIRST_PID + 2


class Host:
    """Runs commands of vram on the machine with three vendors."""

    def __init__(self, gpu: VirtualGpu, machine: Machine) -> None:
        self._gpu = gpu
        self._machine = machine

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        roots = {key: self._machine.environment[key] for key in ("VRAM_PROC_ROOT", "VRAM_SYS_ROOT")}
        line = ["env", *(f"{key}={value}" for key, value in roots.items()), "COLUMNS=100"]
        done = self._gpu.run(
            [*line, sys.executable, "-m", "vram", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def why(self, *words: str) -> dict:
        return json.loads(self.run("why", "--json", *words).stdout)


@pytest.fixture
def demo(virtual_gpu: VirtualGpu) -> Iterator[DemoProgram]:
    with DemoProgram(virtual_gpu, "memory.plain") as demo:
        yield demo


@pytest.fixture
def host(virtual_gpu: VirtualGpu, demo: DemoProgram, machine: Machine) -> Host:
    amd = machine.card("amdgpu", "0000:03:00.0", total=24 * GIB, used=9 * GIB, gtt=(32 * GIB, GIB))
    arc = machine.card("xe", "0000:0a:00.0", tiles=(12 * GIB,))
    integrated = machine.card("i915", "0000:00:02.0")
    machine.client(machine.process(TRAINER), amd, Use(vram=8 * GIB, system=GIB))
    machine.kfd(TRAINER, amd, 9 * GIB)
    machine.client(machine.process(COMPILER, "ov_compile"), arc, Use(vram=3 * GIB))
    machine.client(machine.process(BROWSER, "firefox"), integrated, Use(system=300 * MIB))
    machine.admit(*demo.pids.values())
    return Host(virtual_gpu, machine)


def test_why(host: Host, demo: DemoProgram) -> None:
    report = host.why()
    jsonschema.validate(report, json.loads(SHIPPED.read_bytes()))
    gpus = report["gpus"]
    assert [(gpu["index"], gpu["vendor"], gpu["facts"]["driver"]) for gpu in gpus] == [
        (0, "nvidia", "nvidia"),
        (1, "intel", "i915"),
        (2, "amd", "amdgpu"),
        (3, "intel", "xe"),
    ]
    for gpu in gpus:
        assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
    holders = [{e["holder"]["pid"] for e in gpu["entries"] if e["holder"]} for gpu in gpus]
    assert holders == [set(demo.pids.values()), set(), {TRAINER}, {COMPILER}]
    assert [entry["holder"]["pid"] for entry in gpus[1]["system"]["entries"]] == [BROWSER]
    assert {finding["code"] for finding in report["findings"]} >= {"VR206"}


def test_text(host: Host) -> None:
    told = host.run("why", "-v").stdout
    for words in ("no memory of its own", "used at least", "of the machine's memory"):
        assert words in told
    about_one = host.run("why", str(TRAINER)).stdout
    assert f"vram trim {TRAINER}" in about_one
    assert f"vram park {TRAINER}" not in about_one
    screen = host.run("why").stdout
    for words in ("300.0 MiB host", "ov_compile", "firefox"):
        assert words in screen


def test_who(host: Host, demo: DemoProgram) -> None:
    report = json.loads(host.run("who", "--json").stdout)
    people = [node for group in report["groups"] for node in group["processes"]]
    seen = {node["holder"]["pid"]: node["holds"] for node in people}
    assert {TRAINER, COMPILER, BROWSER} <= set(seen)
    assert [(keep["gpu"], keep["kind"], keep["nbytes"]) for keep in seen[TRAINER]] == [
        (2, "process", 9 * GIB),
        (2, "system", GIB),
    ]
    assert [(keep["gpu"], keep["nbytes"]) for keep in seen[BROWSER]] == [(1, 300 * MIB)]


def test_check(host: Host) -> None:
    done = host.run("check", "--json", check=False)
    assert done.returncode == 1
    assert [gpu["verdict"] for gpu in json.loads(done.stdout)["gpus"]] == ["held"] * 4


@pytest.mark.parametrize("words", ["2", "0000:03:00.0", "03:00.0", "00000000:03:00.0"])
def test_a_gpu_by_its_number_or_its_place(host: Host, words: str) -> None:
    (gpu,) = host.why("--gpu", words)["gpus"]
    assert (gpu["index"], gpu["uuid"]) == (2, "PCI-0000:03:00.0")


def test_a_gpu_that_is_not_there(host: Host) -> None:
    done = host.run("why", "--gpu", "7", check=False)
    assert done.returncode == 2
    assert "these exist: 0 (" in done.stderr


def test_snapshot_and_back(host: Host, tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot.json")
    host.run("snapshot", "-o", path)
    live = [[entry["nbytes"] for entry in gpu["entries"]] for gpu in host.why()["gpus"]]
    elsewhere = subprocess.run(
        [sys.executable, "-m", "vram", "why", "--json", "--from", path], stdout=subprocess.PIPE, check=True
    )
    kept = [[entry["nbytes"] for entry in gpu["entries"]] for gpu in json.loads(elsewhere.stdout)["gpus"]]
    assert kept == live


def test_a_virtual_gpu_alone_has_no_real_company(virtual_gpu: VirtualGpu) -> None:
    """Real cards of the machine have no part in what happens on a virtual one."""
    done = virtual_gpu.run(
        [sys.executable, "-m", "vram", "why", "--json"], stdout=subprocess.PIPE, check=True
    )
    assert [gpu["vendor"] for gpu in json.loads(done.stdout)["gpus"]] == ["nvidia"]


@needs("no-driver")
def test_a_machine_with_amd_alone(machine: Machine) -> None:
    """No NVIDIA driver is no error where there is another GPU."""
    card = machine.card("amdgpu", "0000:03:00.0", total=GIB, used=MIB)
    machine.client(machine.process(TRAINER), card, Use(vram=MIB))
    done = subprocess.run(
        [sys.executable, "-m", "vram", "why", "--json"],
        stdout=subprocess.PIPE,
        env={key: value for key, value in machine.environment.items() if key != "VRAM_VIRTUAL_GPU"},
        check=False,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, [gpu["index"] for gpu in report["gpus"]]) == (0, [0])


@needs("no-driver")
def test_nobody_there(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "vram", "why"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VRAM_PROC_ROOT": str(tmp_path / "proc"), "VRAM_SYS_ROOT": str(tmp_path)},
        check=False,
    )
    assert done.returncode != 0
    assert "no AMD or Intel GPU was found either" in done.stderr
