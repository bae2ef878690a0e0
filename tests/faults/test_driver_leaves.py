"""Rows 8 and 9: the driver is unloaded or replaced, a GPU unplugged, MIG divided anew while vram reads.

The driver fails at its first call, at its second, and so on to the last one of a scan.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.record import Tally
from tests.guard.owner import told
from tests.parking.conftest import RUNNING, Machine, runs_on
from tests.patience import PATIENCE_S, until
from tests.reclaim.conftest import Bench
from tests.virtualgpu.checkpoints import PAUSE
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

SWEEP = Path(__file__).with_name("sweep.py")
LEAVES_WITH_THE_DRIVER = """
import driver, signal, protocol, sys
from vram.virtualgpu import VirtualGpu

def leave(*_):
    VirtualGpu.inside().add_fault("nvml* error=9")
    sys.exit()

signal.signal(signal.SIGTERM, leave)
driver.context()
driver.alloc(1 << 30)
protocol.ready("allocated")
protocol.wait()
"""
NOT_LOADED, NOT_FOUND, LOST, MISMATCH = 9, 6, 15, 18


def sweep(gpu: VirtualGpu, demo: DemoProgram, fault: str, *rounds: int) -> dict[str, Any]:
    argv = [sys.executable, str(SWEEP), fault, str(demo.pids["self"]), *map(str, rounds)]
    done = gpu.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["again"] == answer["checks"] >= 3, "after a fault, not everything is read again"
    return answer


def wrongs(answer: dict[str, Any]) -> list[Any]:
    """Rounds in which a sum is not exact, or bytes of the process are counted twice or in part."""
    return [
        seen
        for seen in answer["rounds"]
        if any(each["total"] not in (None, each["sum"]) or each["negative"] for each in seen["gpus"])
        or seen["held"] not in (0, answer["whole"]["held"])
    ]


@pytest.mark.fault(8)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NOT_LOADED, "the driver was unloaded or replaced while it was read"),
        (MISMATCH, "have different versions"),
    ],
    ids=["unloaded", "replaced"],
)
def test_a_driver_that_leaves_at_any_call_is_a_clear_state_and_is_opened_anew(
    two_virtual_gpus: VirtualGpu, tally: Tally, code: int, words: str
) -> None:
    with DemoProgram(two_virtual_gpus, "memory.plain", GIB) as demo:
        answer = sweep(two_virtual_gpus, demo, f"nvml* after={{n}} error={code}")
    assert answer["whole"]["held"] > GIB
    at_init, *later = answer["rounds"]
    assert at_init["gpus"] == []
    assert all(words in seen["probes"]["nvml"][1] for seen in later)
    assert all(
        each["status"] == "ok" or (each["status"] == "failed" and words in each["message"])
        for seen in later
        for each in seen["gpus"]
    )
    tally.count(len(answer["rounds"]), wrong=len(wrongs(answer)))
    assert not wrongs(answer)


@pytest.mark.fault(8)
@pytest.mark.parametrize("fault", ["nvmlDeviceGetCount* error=9", "nvmlInit* error=18"])
def test_check_says_why_it_cannot_tell(machine: Bench, fault: str) -> None:
    machine.fault(fault)
    done = machine.vram("check")
    assert done.returncode == 3
    assert done.stdout.startswith("unknown: the driver")


@pytest.mark.fault(8)
def test_a_kill_during_which_the_driver_leaves_is_done_and_promises_nothing(machine: Bench) -> None:
    """The target takes the driver along: what came back cannot be read, and is not made up."""
    actor = machine.popen(
        [sys.executable, "-c", LEAVES_WITH_THE_DRIVER],
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with actor:
        assert actor.stdout is not None
        assert actor.stdout.readline()
        done = machine.vram("kill", str(actor.pid), "--yes", "--json")
        receipt = json.loads(done.stdout)["receipt"]
        assert [each["status"] for each in receipt["outcomes"]] == ["done"], done.stderr
        assert receipt["returned_bytes"] is None
    assert machine.vram("check").returncode == 3
    machine.vram("virtual", "fault", "--clear")
    assert machine.vram("check").returncode == 0


@pytest.mark.fault(8)
def test_a_program_with_scopes_outlives_its_driver_and_measures_again(virtual_gpu: VirtualGpu) -> None:
    """NVML is open in the program itself, for as long as that runs."""
    before, without, after, held = told(
        virtual_gpu,
        """
        from vram.guard.memory import device_memory
        from vram.virtualgpu import VirtualGpu
        kept = Buffer(8 * MIB)
        before = device_memory().used
        VirtualGpu.inside().fail("nvml*", error="DRIVER_NOT_LOADED")
        with vram.scope("without a driver"):
            Buffer(MIB).close()
        without = device_memory()
        VirtualGpu.inside().clear_faults()
        VirtualGpu.inside().fail("nvmlDevice*", nth=1, error="UNINITIALIZED")
        device_memory()
        VirtualGpu.inside().clear_faults()
        more = Buffer(16 * MIB)
        tell(before, without and without.used, device_memory().used, 16 * MIB)
        """,
    )
    assert without is None
    assert after == before + held


@pytest.mark.fault(8)
def test_a_driver_that_leaves_while_a_command_has_the_room_gets_everybody_back(
    parking_machine: Machine,
) -> None:
    """The lender's memory waits until the driver answers again; then the next vram brings it back."""
    machine = parking_machine
    worker = machine.worker()
    code = "from vram.virtualgpu import VirtualGpu; VirtualGpu.inside().add_fault('nvml* error=9')"
    done = machine.vram("borrow", "139.5GiB", "--", sys.executable, "-c", code)
    assert (done.returncode, "`vram park` lists it" in done.stderr) == (20, True), done.stderr
    assert [line["pid"] for line in machine.parked()] == [worker.pid]
    machine.gpu.clear_faults()
    machine.until_nobody_moves(worker.pid)
    assert machine.parked() == []
    assert machine.state(worker.pid) == RUNNING
    assert runs_on(worker)


@pytest.mark.fault(9)
@pytest.mark.parametrize("code", [LOST, NOT_FOUND], ids=["lost", "not found"])
def test_a_gpu_unplugged_at_any_call_counts_once_or_not_at_all(
    two_virtual_gpus: VirtualGpu, tally: Tally, code: int
) -> None:
    with DemoProgram(two_virtual_gpus, "memory.plain", GIB) as demo:
        answer = sweep(two_virtual_gpus, demo, f"nvmlDevice* gpu=1 after={{n}} error={code}")
    assert all(seen["gpus"][0] == answer["whole"]["gpus"][0] for seen in answer["rounds"])
    assert {seen["gpus"][1]["status"] for seen in answer["rounds"]} <= {"lost", "failed"}
    tally.count(len(answer["rounds"]), wrong=len(wrongs(answer)))
    assert not wrongs(answer)


@pytest.mark.fault(9)
def test_a_mig_device_destroyed_at_any_call_is_counted_once_or_not_at_all(
    virtual_gpu: VirtualGpu, tally: Tally
) -> None:
    virtual_gpu.set(mig="3g.71gb,2g.35gb")
    with DemoProgram(virtual_gpu, "memory.plain", GIB) as demo:
        # 52 calls: as many as a whole scan makes of such a GPU.
        answer = sweep(virtual_gpu, demo, f"nvmlDevice* gpu=0 nth={{n}} error={NOT_FOUND}", 52)
    assert answer["whole"]["held"] > GIB
    changed = [
        seen for seen in answer["rounds"] if seen["probes"]["nvml"] != answer["whole"]["probes"]["nvml"]
    ]
    tally.count(len(answer["rounds"]), landed=len(changed), wrong=len(wrongs(answer)))
    assert not wrongs(answer)


@pytest.mark.fault(9)
def test_a_gpu_divided_anew_between_two_readers_of_one_scan_balances(two_virtual_gpus: VirtualGpu) -> None:
    """The first hangs on GPU 0; the second, started for the rest, finds GPU 1 divided."""
    two_virtual_gpus.fail("nvmlDeviceGetUUID", gpu=0, hang=True)
    argv = [sys.executable, "-m", "vram", "why", "--json", "--deadline", "5s"]
    with DemoProgram(two_virtual_gpus, "memory.plain", GIB) as demo:
        why = two_virtual_gpus.popen(argv, stdout=-1)
        wait_for_reader_in_a_hang(why.pid)
        two_virtual_gpus.set(1, mig="3g.71gb,2g.35gb")
        answer = json.loads(why.communicate(timeout=PATIENCE_S)[0])
        assert why.returncode == 3
        lost, divided = answer["gpus"]
        assert (lost["status"], lost["total_bytes"]) == ("timeout", None)
        assert len(divided["instances"]) == 2
        assert sum(each["nbytes"] or 0 for each in divided["entries"]) == divided["total_bytes"]
        pids = [each["holder"]["pid"] for each in divided["entries"] if each["holder"]]
        assert pids.count(demo.pids["self"]) <= 1


def wait_for_reader_in_a_hang(pid: int) -> None:
    """Come back when a child of *pid* sleeps in pause(2), where a call that hangs stays."""

    def hangs(child: str) -> bool:
        try:
            return Path(f"/proc/{child}/syscall").read_text().startswith(f"{PAUSE} ")
        except OSError:
            return False

    until(lambda: any(map(hangs, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))
