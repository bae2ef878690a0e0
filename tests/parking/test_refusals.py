"""Fault row 19: what cannot be parked or brought back is refused untouched, or unlocked and running."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.needs import require, skip_without
from tests.parking.conftest import CHECKPOINTED, FAILED, RUNNING, SOMEBODY_ELSES, Machine, runs_on
from tests.patience import PATIENCE_S, until
from tests.virtualgpu.checkpoints import PAUSE
from tests.virtualgpu.programs import Program
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

MANAGED = """
    cuda.start()
    address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", int(os.environ["NBYTES"]), 1)
    cuda.tell("ready")
    cuda.heard()
    cuda.call("cuMemFree_v2", address)
    cuda.tell("freed")
    cuda.heard()
"""
SHARING = """
    cuda.start()
    address = cuda.alloc(4 * MIB)
    cuda.call("cuIpcGetMemHandle", ctypes.byref(cuda.Opaque64()), address)
    cuda.tell("ready")
    cuda.heard()
    cuda.call("cuMemFree_v2", address)
    cuda.tell("freed")
    cuda.heard()
"""
LARGE = """
    cuda.start()
    cuda.alloc(int(os.environ["NBYTES"]))
    cuda.tell("ready")
    cuda.heard()
"""
NCCL_RANK = """
    import mmap
    cuda.start()
    with open(os.environ["NCCL"], "r+b") as file:
        library = mmap.mmap(file.fileno(), 0)
    cuda.tell("ready")
    cuda.heard()
"""


def refused(machine: Machine, program: Program, code: int, words: str, *options: str) -> None:
    """The call is refused with that code and those words, nothing was begun, and nothing is stuck."""
    done = machine.vram("park", *options, program.pid)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert machine.state(program.pid) == RUNNING
    assert machine.parked() == []


def never_begun(machine: Machine) -> bool:
    return machine.audit() == []


@pytest.mark.fault(19)
def test_managed_memory_that_is_seen_is_refused_untouched(machine: Machine) -> None:
    program = machine.program(MANAGED, NBYTES=str(64 * MIB))
    refused(machine, program, 20, "64.0 MiB of managed memory")
    assert never_begun(machine)
    refused(machine, program, 20, "the driver cannot park", "--anyway")


@pytest.mark.fault(19)
def test_managed_memory_that_only_the_driver_sees_is_unlocked_and_runs_on(machine: Machine) -> None:
    program = machine.program(MANAGED, NBYTES=str(1 * MIB))
    refused(machine, program, 20, "managed memory, or shares")
    program.go()
    assert program.told() == "freed"
    assert machine.vram("park", program.pid).returncode == 0


@pytest.mark.fault(19)
def test_memory_shared_by_ipc_is_unlocked_and_runs_on(machine: Machine) -> None:
    program = machine.program(SHARING)
    refused(machine, program, 20, "shares memory with other processes")
    program.go()
    assert program.told() == "freed"


@pytest.mark.fault(19)
def test_mig_is_refused_untouched(machine: Machine) -> None:
    machine.gpu.set(mig="1g.18gb")
    program = machine.worker()
    refused(machine, program, 20, "MIG")
    assert never_begun(machine)


def test_an_old_driver_is_refused_untouched(machine: Machine) -> None:
    program = machine.worker()
    machine.gpu.set(driver_version="565.57.01")
    refused(machine, program, 20, "565.57.01")
    assert never_begun(machine)


@pytest.mark.fault(19)
def test_too_little_host_memory_is_refused_untouched(machine: Machine) -> None:
    """The virtual GPU's bytes cost nothing until they are touched: this is more than the host has."""
    program = machine.program(LARGE, NBYTES=str(139 * GIB))
    if host_memory() > 150 * GIB:
        skip_without("small-host", "this machine could really park a whole H200")
    refused(machine, program, 20, "host memory left")
    assert never_begun(machine)


def test_a_rank_with_nccl_peers_is_refused_unless_insisted_on(machine: Machine, tmp_path: Path) -> None:
    """The library alone says nothing: PyTorch maps it into every process."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\0" * 4096)
    alone = machine.program(NCCL_RANK, NCCL=str(library), WORLD_SIZE="1")
    assert machine.vram("park", alone.pid).returncode == 0
    machine.vram("unpark", alone.pid)
    one_of_two = machine.program(NCCL_RANK, NCCL=str(library), WORLD_SIZE="2")
    refused(machine, one_of_two, 20, "WORLD_SIZE is 2")
    assert machine.vram("park", "--anyway", one_of_two.pid).returncode == 0
    machine.vram("unpark", one_of_two.pid)
    other = machine.program(NCCL_RANK, NCCL=str(library), WORLD_SIZE="2")
    assert machine.vram("park", one_of_two.pid, other.pid).returncode == 0, "all ranks at once"


def test_a_stopped_process_is_refused_untouched(machine: Machine) -> None:
    program = machine.worker()
    os.kill(program.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    done = machine.vram("park", program.pid)
    assert (done.returncode, "is stopped" in done.stderr) == (20, True)
    assert never_begun(machine)
    os.kill(program.pid, signal.SIGCONT)
    assert machine.state(program.pid) == RUNNING
    assert runs_on(program)


@pytest.mark.parametrize("command", ["park", "borrow"])
@pytest.mark.parametrize(
    ("pid", "code", "words", "written"),
    [
        (lambda: 2**21, 10, "no process", []),
        (os.getpid, 13, "runs it", ["refused"]),
        (lambda: 1, 13, "pid 1", ["refused"]),
    ],
    ids=["nobody", "ourselves", "init"],
)
def test_who_is_no_target(
    machine: Machine, command: str, pid: Callable[[], int], code: int, words: str, written: list[str]
) -> None:
    """What was denied, and not only impossible, is written down; nothing is begun."""
    machine.worker()
    options = ("139.5GiB", "--pid", pid(), "--", "true") if command == "borrow" else (pid(),)
    done = machine.vram(command, *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    lines = machine.audit()
    assert [line["event"] for line in lines] == written
    assert [(line["action"], line["pids"]) for line in lines] == [(command, [pid()])] * len(written)


@pytest.mark.fault(15)
def test_borrowing_from_somebody_else_is_denied_and_written_down(machine: Machine) -> None:
    """One borrows only from oneself, whoever one is."""
    require("root", detail="only root can start a process of somebody else's")
    program = machine.program(SOMEBODY_ELSES)
    done = machine.vram("borrow", "139.5GiB", "--pid", program.pid, "--", "true")
    assert (done.returncode, "only your own processes" in done.stderr) == (12, True), done.stderr
    (line,) = machine.audit()
    assert (line["event"], line["action"], line["pids"]) == ("refused", "borrow", [program.pid])


def test_a_process_without_gpu_memory_is_told_so(machine: Machine) -> None:
    program = machine.program("cuda.tell('ready'); cuda.heard()")
    done = machine.vram("park", program.pid)
    assert (done.returncode, "holds no GPU memory" in done.stderr) == (11, True)


@pytest.mark.parametrize("word", ["0", "-3", "abc", "1e3", "99999999999", ""])
def test_what_is_no_pid_is_told_so(machine: Machine, word: str) -> None:
    assert machine.vram("park", word).returncode == 2


def test_a_lock_that_times_out_leaves_the_process_running(machine: Machine) -> None:
    """A call that never returns holds the lock off."""
    machine.gpu.fail("cuCtxGetFlags", hang=True)
    program = machine.program("""
        cuda.start()
        cuda.tell("ready")
        cuda.call("cuCtxGetFlags", ctypes.byref(ctypes.c_uint()))
    """)
    wait_until_inside(program)
    refused(machine, program, 21, "could not be locked", "--lock-timeout", "0.05s")


def wait_until_inside(program: Program) -> None:
    """Come back when the program sleeps in pause(2), where a hanging call stays."""
    until(lambda: Path(f"/proc/{program.pid}/syscall").read_text().startswith(f"{PAUSE} "))


@pytest.mark.fault(19)
def test_a_checkpoint_that_fails_is_unlocked(machine: Machine) -> None:
    program = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", error="UNKNOWN")
    refused(machine, program, 3, "CUDA error 999")
    assert runs_on(program)
    assert [line.get("status") for line in machine.audit()] == [None, "failed"]


def test_a_checkpoint_that_breaks_half_way_says_that_the_process_is_lost(machine: Machine) -> None:
    program = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", halfway="UNKNOWN")
    done = machine.vram("park", program.pid)
    assert done.returncode == 3
    assert "will fail" in done.stderr
    assert machine.state(program.pid) == FAILED
    (line,) = machine.parked()
    assert line["state"] == "failed"


@pytest.mark.fault(19)
def test_unpark_without_room_is_refused_and_works_later(machine: Machine) -> None:
    program = machine.worker()
    machine.vram("park", program.pid)
    hog = machine.program(LARGE, NBYTES=str(139 * GIB))
    done = machine.vram("unpark", program.pid)
    assert (done.returncode, "not free" in done.stderr) == (20, True)
    assert machine.state(program.pid) == CHECKPOINTED
    hog.kill()
    assert machine.vram("unpark", program.pid).returncode == 0
    assert runs_on(program)


def test_unpark_can_wait_for_room(machine: Machine) -> None:
    program = machine.worker()
    machine.vram("park", program.pid)
    hog = machine.program(LARGE, NBYTES=str(139 * GIB))
    waiting = machine.start("unpark", "--wait", f"{PATIENCE_S}s", program.pid)
    machine.until_somebody_moves(program.pid)
    hog.kill()
    assert waiting.wait(PATIENCE_S) == 0
    assert runs_on(program)


@pytest.mark.fault(19)
def test_a_restore_that_finds_no_room_after_all_leaves_it_parked(machine: Machine) -> None:
    """Somebody took the memory between our look and the driver's."""
    program = machine.worker()
    machine.vram("park", program.pid)
    machine.gpu.fail("cuCheckpointProcessRestore", error="OUT_OF_MEMORY")
    done = machine.vram("unpark", program.pid)
    assert (done.returncode, "in the meantime" in done.stderr) == (20, True)
    machine.gpu.clear_faults()
    assert machine.vram("unpark", program.pid).returncode == 0
    assert runs_on(program)


def test_who_is_not_parked_cannot_be_brought_back(machine: Machine) -> None:
    program = machine.worker()
    assert machine.vram("unpark", program.pid).returncode == 20
    assert machine.vram("unpark", 2**21).returncode == 10
    assert machine.vram("unpark").returncode == 2
    assert machine.vram("unpark", "--all").returncode == 0


def host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("fault", ["GetMemoryInfo* gpu=1 error=GPU_IS_LOST", "Get* gpu=1 error=GPU_IS_LOST"])
def test_a_gpu_that_does_not_answer_is_not_taken_for_an_empty_one(
    two_virtual_gpus: VirtualGpu, tmp_path: Path, fault: str
) -> None:
    with ExitStack() as stack:
        machine = Machine(two_virtual_gpus, tmp_path, stack)
        worker = machine.worker(GPU="1")
        two_virtual_gpus.add_fault(f"nvmlDevice{fault}")
        done = machine.vram("park", worker.pid)
        assert done.returncode == 3
        assert "GPU 1 does not answer" in done.stderr
        assert machine.audit() == []
