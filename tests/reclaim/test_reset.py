"""``vram reset``: who is in the way, by name, with the command that removes each. Never a reset here."""

from __future__ import annotations

import json

import pytest

from tests.diagnosis.ledgers import dead, entry, forked_child, gpu, holder, ledger, process
from tests.reclaim.conftest import Bench
from vram.reclaim.actions.reset import blockers
from vram.units import GIB


def commands(*entries, **about) -> list[tuple[int | None, str]]:
    world = ledger(gpu(*entries, **about))
    return [(each.pid, each.command) for each in blockers(world, world.gpus[0])]


def test_every_process_is_a_blocker_with_its_command():
    assert commands(process(51), open_only=(forked_child(52, of=51),)) == [
        (51, "vram kill 51"),
        (52, "vram kill 52"),
    ]


@pytest.mark.parametrize(
    ("executable", "command"),
    [
        ("/usr/bin/nvidia-persistenced", "sudo systemctl stop nvidia-persistenced"),
        ("/usr/lib/xorg/Xorg", "sudo systemctl isolate multi-user.target"),
        ("/usr/bin/nvidia-cuda-mps-server", "echo quit | nvidia-cuda-mps-control"),
        ("/usr/bin/dockerd", ""),
    ],
)
def test_parts_of_the_system_leave_by_their_own_means(executable, command):
    assert commands(process(51, executable=executable)) == [(51, command)]


def test_memory_that_nobody_is_named_for_blocks_too():
    found = commands(
        entry("hidden", hidden_by="permission"), entry("unattributed"), entry("orphaned", holder=dead(9))
    )
    assert sorted(found, key=str) == [(None, ""), (None, ""), (None, "sudo vram why")]


def test_an_empty_gpu_has_no_blockers():
    assert commands(entry("reserved", GIB)) == []


def test_a_holder_is_named_once_whatever_it_holds():
    both = holder(51)
    assert commands(entry("exported", holder=both), entry("exported", GIB, holder=both)) == [
        (51, "vram kill 51")
    ]


@pytest.mark.fault(2)
def test_blockers_are_listed_and_nothing_is_reset(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    done = machine.vram("reset", "0", "--yes")
    assert done.returncode == 1
    assert "GPU 0 cannot be reset: 1 blocker" in done.stdout
    assert f"vram kill {pid}" in done.stdout
    answer = json.loads(machine.vram("reset", "0", "--yes", "--json").stdout)
    assert [each["pid"] for each in answer["blockers"]] == [pid]
    assert answer["receipt"] is None
    assert not machine.audit()


LOST = "nvmlDeviceGet* gpu=0 error=GPU_IS_LOST"
HUNG = "nvmlDeviceGetMemoryInfo* gpu=0 hang"


@pytest.mark.parametrize("fault", [LOST, HUNG])
def test_a_gpu_that_does_not_answer_is_never_called_empty(machine: Bench, fault: str):
    """Who has its files open is told all the same: that is the kernel's to know."""
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    machine.fault(fault)
    done = machine.vram("reset", "0", "--yes", "--json", "--deadline", "1s")
    assert done.returncode == 1
    silence, process = json.loads(done.stdout)["blockers"]
    assert (silence["pid"], silence["nbytes"]) == (None, None)
    assert silence["why"] == "the GPU does not answer: who uses it is unknown"
    assert (process["pid"], process["nbytes"], process["command"]) == (pid, None, f"vram kill {pid}")
    assert "0 B" not in machine.vram("reset", "0", "--deadline", "1s").stdout


@pytest.mark.parametrize("fault", [LOST, HUNG])
def test_a_gpu_that_does_not_answer_and_that_nobody_has_open_is_not_called_empty(machine: Bench, fault: str):
    machine.fault(fault)
    done = machine.vram("reset", "0", "--yes", "--deadline", "1s")
    assert (done.returncode, "cannot be reset: 1 blocker" in done.stdout) == (1, True)
    assert not machine.audit()


@pytest.mark.fault(2)
def test_without_yes_it_is_explained(machine: Bench):
    done = machine.vram("reset", "0")
    assert done.returncode == 0
    assert "With --yes, as root, vram would run:" in done.stdout
    assert "--gpu-reset -i 0" in done.stdout
    assert not machine.audit()


def test_a_virtual_gpu_is_never_reset(machine: Bench):
    machine.require_virtual("never on real hardware")
    done = machine.vram("reset", "0", "--yes")
    assert done.returncode == 12
    assert "a virtual GPU has nothing to reset" in done.stderr


@pytest.mark.parametrize(("words", "code"), [((), 2), (("7",), 2), (("x",), 2)])
def test_bad_words(machine: Bench, words, code):
    assert machine.vram("reset", *words).returncode == code
