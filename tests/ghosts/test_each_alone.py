"""Every situation of "who keeps memory alive": named with its pid, its cause and its bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vram.virtualgpu
from tests.ghosts.conftest import Machine, entries, finding, held_by, is_charge
from tests.host import leaderless
from tests.needs import skip_without
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram


@pytest.mark.fault(5)
def test_a_fork_that_outlives_its_parent(machine: Machine):
    demo = machine.demo("forks.orphan", 4 * GIB)
    child, parent = demo.pids["child"], demo.pids["parent"]
    demo.kill("parent")
    answer = machine.why()
    (orphan,) = entries(answer, "orphaned")
    assert (orphan["holder"]["pid"], orphan["holder"]["alive"], orphan["charged_pid"]) == (
        child,
        True,
        parent,
    )
    assert is_charge(orphan["nbytes"], 4 * GIB)
    assert finding(answer, "VR101", child)["nbytes"] == orphan["nbytes"]


def test_a_child_that_will_outlive_its_parent_is_told_while_the_parent_lives(machine: Machine):
    demo = machine.demo("forks.orphan", 4 * GIB)
    answer = machine.why()
    assert is_charge(held_by(answer, demo.pids["parent"]), 4 * GIB)
    assert finding(answer, "VR102", demo.pids["child"])


@pytest.mark.fault(5)
def test_a_zombie_parent_whose_child_keeps_the_memory(machine: Machine):
    demo = machine.demo("forks.orphan", 4 * GIB)
    pidfd = os.pidfd_open(demo.pids["parent"])
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    os.close(pidfd)
    answer = machine.why()
    (orphan,) = entries(answer, "orphaned")
    assert (orphan["holder"]["pid"], orphan["charged_state"]) == (demo.pids["child"], "Z")
    assert finding(answer, "VR203", demo.pids["child"])["nbytes"] == orphan["nbytes"]


def test_a_child_that_closed_the_inherited_files_keeps_nothing(machine: Machine):
    demo = machine.demo("forks.child_closes", 1 * GIB, stages=1)
    demo.kill("parent")
    answer = machine.why()
    assert not entries(answer, "orphaned")
    assert machine.vram("check", "--leftovers").returncode == 0


@pytest.mark.fault(6)
def test_an_exported_allocation_that_no_list_names(machine: Machine):
    demo = machine.demo("exports.handle", 3 * GIB + 6 * MIB, stages=2)
    answer = machine.why()
    (exported,) = entries(answer, "exported")
    assert (exported["holder"]["pid"], exported["nbytes"]) == (demo.pids["holder"], 3 * GIB + 6 * MIB)
    assert (exported["medium"], exported["confidence"]) == ("handle", "fact")
    assert finding(answer, "VR103", demo.pids["holder"])["nbytes"] == 3 * GIB + 6 * MIB


def test_an_exported_allocation_is_not_counted_twice_while_its_maker_lives(machine: Machine):
    demo = machine.demo("exports.handle", 3 * GIB, stages=1)
    answer = machine.why()
    assert not entries(answer, "exported")
    assert is_charge(held_by(answer, demo.pids["allocator"]), 3 * GIB)


@pytest.mark.fault(6)
def test_a_dmabuf_that_no_list_names(machine: Machine):
    demo = machine.demo("exports.dmabuf", 2 * GIB, stages=2)
    answer = machine.why()
    (exported,) = entries(answer, "exported")
    assert (exported["holder"]["pid"], exported["nbytes"]) == (demo.pids["holder"], 2 * GIB)
    assert exported["medium"] == "dmabuf"
    assert finding(answer, "VR104", demo.pids["holder"])["nbytes"] == 2 * GIB


def test_an_ipc_importer_takes_over_a_dead_exporters_charge(machine: Machine):
    demo = machine.demo("imports.ipc", 4 * GIB, stages=2)
    answer = machine.why()
    importer = demo.pids["importer"]
    assert is_charge(held_by(answer, importer), 4 * GIB)
    assert is_charge(finding(answer, "VR206", importer)["nbytes"], 4 * GIB)


def test_a_stopped_process(machine: Machine):
    demo = machine.demo("signals.stopped", 2 * GIB)
    answer = machine.why()
    assert is_charge(finding(answer, "VR201", demo.pids["worker"])["nbytes"], 2 * GIB)
    assert machine.vram("check", "--leftovers").returncode == 1


def test_a_zombie_holds_nothing(machine: Machine):
    demo = machine.demo("signals.zombie", 2 * GIB, stages=1)
    answer = machine.why()
    assert held_by(answer, demo.pids["worker"]) == 0
    assert machine.vram("check").returncode == 0


def test_a_process_whose_first_thread_has_ended_holds_its_memory(machine: Machine):
    """The kernel shows a zombie; its other thread works on, and nothing of this is left over."""
    programs = str(Path(vram.virtualgpu.__file__).with_name("programs"))
    code = f"sys.path.insert(0, {programs!r}); import driver; driver.context(); driver.alloc({GIB})"
    with machine.popen([sys.executable, leaderless.__file__, code]) as process:
        leaderless.wait_for(process.pid)
        answer = machine.why()
        left_over = machine.vram("check", "--leftovers").returncode
        process.kill()
    (entry,) = entries(answer, "process")
    assert (entry["holder"]["pid"], entry["holder"]["alive"]) == (process.pid, True)
    assert is_charge(entry["nbytes"], GIB)
    assert "VR105" not in [each["code"] for each in answer["findings"]]
    assert left_over == 0


def test_many_small_processes_spend_memory_on_contexts(machine: Machine):
    demo = machine.demo("contexts.small", 2 * MIB)
    answer = machine.why()
    workers = set(demo.pids.values())
    (found,) = [each for each in answer["findings"] if each["code"] == "VR205"]
    assert set(found["pids"]) == workers
    assert found["nbytes"] == sum(held_by(answer, pid) for pid in workers)


def test_a_gpu_that_is_busy_without_a_process(virtual_gpu: VirtualGpu):
    machine = Machine(virtual_gpu.environment(), real=False)
    virtual_gpu.set(utilization=100, recovery_action=1)
    found = machine.why()["findings"][0]
    assert (found["code"], found["severity"], found["gpus"]) == ("VR211", "warning", [0])
    assert "reset the GPU" in found["cause"]
    assert found["remedies"][-1]["command"].endswith("reset 0 --yes")
    with DemoProgram(machine, "memory.plain", GIB):
        assert "VR211" not in {each["code"] for each in machine.why()["findings"]}


@pytest.mark.fault(6)
def test_managed_memory_is_in_no_list_and_named_all_the_same(machine: Machine):
    demo = machine.demo("memory.managed", 256 * MIB, stages=1)
    answer = machine.why()
    pid = demo.pids["self"]
    (managed,) = [entry for entry in entries(answer, "process") if entry["medium"] == "managed"]
    assert (managed["holder"]["pid"], managed["nbytes"]) == (pid, 256 * MIB)
    assert finding(answer, "VR207", pid)["nbytes"] == 256 * MIB
    assert not entries(answer, "unattributed")


def test_what_managed_memory_leaves_beside_a_living_process_is_the_reserve(machine: Machine):
    """The driver's, and of no process: 124, 60 and 116 MiB after 4, 64 and 200 on an H200."""
    machine.demo("memory.plain", 1 * GIB)
    for touched, left in ((4, 124), (64, 60), (200, 116)):
        machine.demo("memory.managed", touched * MIB, stages=1).close()
        answer = machine.why()
        (preallocated,) = entries(answer, "preallocated")
        assert preallocated["nbytes"] == left * MIB
        assert not entries(answer, "unattributed") + entries(answer, "hidden")
        assert "VR408" in {each["code"] for each in answer["findings"]}
        # What else this machine runs decides whether it can be proved.
        code = {"fact": 0, "likely": 3}[preallocated["confidence"]]
        assert machine.vram("check", "--leftovers").returncode == code


@pytest.mark.fault(30)
def test_a_plain_process_is_named_with_its_user_and_age(machine: Machine):
    demo = machine.demo("memory.plain", 1 * GIB)
    answer = machine.why()
    (process,) = entries(answer, "process")
    holder = process["holder"]
    assert (holder["pid"], holder["alive"], holder["user"]) == (
        demo.pids["self"],
        True,
        answer["host"]["user"],
    )
    assert is_charge(process["nbytes"], 1 * GIB)
    assert holder["age_s"] >= 0
    assert not entries(answer, "unattributed")


def test_inside_a_pid_namespace_the_others_bytes_are_hidden_not_unexplained(machine: Machine):
    enter = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new PID namespace may be made here")
    machine.demo("memory.plain", 2 * GIB)
    answer = machine.why(prefix=enter)
    (hidden,) = entries(answer, "hidden")
    assert is_charge(hidden["nbytes"], 2 * GIB)
    assert hidden["hidden_by"] == "namespace"
    assert "VR301" in [each["code"] for each in answer["findings"]]


def test_an_idle_gpu_is_clean(machine: Machine):
    machine.why()
    assert machine.vram("check").returncode == 0
