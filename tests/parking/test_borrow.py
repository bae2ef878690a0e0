"""Room for a command: made by parking, freed however the command or vram ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

from tests.parking.conftest import (
    CHECKPOINTED,
    RUNNING,
    Machine,
    checkpoint_worker_of,
    kill,
    kill_both,
    runs_on,
)
from tests.patience import PATIENCE_S, until_readable
from vram.reclaim.preflight import seen_by_cuda
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

# More than is free beside a worker (139.2 GiB of 139.8), less than is free without it.
TIGHT = "139.5GiB"
BORROWER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))) == 0
print("has it", flush=True)
sys.exit(int(sys.argv[2])) if len(sys.argv) > 2 else sys.stdin.readline()
"""


def test_a_command_gets_the_room_and_everybody_is_back_afterwards(machine: Machine) -> None:
    worker = machine.worker()
    nbytes = 139 * GIB
    argv = [sys.executable, "-c", BORROWER, str(nbytes), "7"]
    assert subprocess.run(argv, env=machine.environment(), capture_output=True).returncode == 1
    done = machine.vram("borrow", TIGHT, "--", *argv)
    assert (done.returncode, done.stdout) == (7, "has it\n"), done.stderr
    assert f"parked pid {worker.pid}" in done.stderr
    assert machine.state(worker.pid) == RUNNING
    assert runs_on(worker)
    assert machine.parked() == []


def test_nobody_is_parked_where_there_is_room(machine: Machine) -> None:
    machine.worker()
    used = machine.used()
    children = "cat /proc/$PPID/task/$PPID/children; echo; echo $$"
    done = machine.vram("borrow", "1GiB", "--", "sh", "-c", children)
    assert (done.returncode, done.stderr) == (0, "")
    ours, command = done.stdout.split()
    assert ours == command, "no checkpoint worker is left beside the command"
    assert (machine.used(), machine.audit()) == (used, [])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("200GiB", "--", "true"), 19),
        (("139.9GiB", "--", "true"), 19),
        (("1GiB",), 2),
        (("much", "--", "true"), 2),
        (("1GiB", "--gpu", "5", "--", "true"), 2),
        ((TIGHT, "--pid", "2097152", "--", "true"), 10),
        ((TIGHT, "--", "no-such-command"), 127),
    ],
)
def test_what_cannot_be_is_told_and_everybody_runs(
    machine: Machine, words: tuple[str, ...], code: int
) -> None:
    worker = machine.worker()
    assert machine.vram("borrow", *words).returncode == code
    assert machine.state(worker.pid) == RUNNING
    assert machine.parked() == []


def test_memory_of_the_dead_is_to_be_freed_and_not_parked(machine: Machine) -> None:
    demo = DemoProgram(machine.gpu, "forks.orphan", 4 * GIB)
    try:
        demo.kill("parent")
        done = machine.vram("borrow", "139GiB", "--", "true")
        assert done.returncode == 19
        assert "4.5 GiB belongs to dead processes" in done.stderr
        assert "`vram free --gpu 0`" in done.stderr
        assert "there is no process" not in done.stderr
    finally:
        demo.close()


def test_only_those_named_are_parked(machine: Machine) -> None:
    workers = [machine.worker() for _ in range(3)]
    done = machine.vram("borrow", "138.5GiB", "--pid", workers[1].pid, "--", "true")
    assert done.returncode == 0, done.stderr
    assert [f"parked pid {worker.pid}" in done.stderr for worker in workers] == [False, True, False]


def test_of_the_idle_the_smallest_that_is_enough_goes_and_the_busy_stay(machine: Machine) -> None:
    machine.gpu.set(utilization=50)
    sizes = {"small": 64 * MIB, "medium": 1 * GIB, "large": 2 * GIB}
    idle = {name: machine.worker(NBYTES=str(nbytes)) for name, nbytes in sizes.items()}
    busy = machine.program("""
        cuda.start()
        cuda.alloc(768 * MIB)
        cuda.tell("ready")
        while True:
            pass
    """)
    free = 139.8 - (0.0625 + 1 + 2 + 0.75) - 4 * 0.515
    done = machine.vram("borrow", f"{free + 0.9:.2f}GiB", "--", "true")
    assert done.returncode == 0, done.stderr
    assert {name for name, worker in idle.items() if f"parked pid {worker.pid} " in done.stderr} == {"medium"}
    assert f"pid {busy.pid} " not in done.stderr


def test_the_command_has_the_terminal_and_ctrl_c_is_its_own(machine: Machine) -> None:
    """The command takes Ctrl-C and ends by its own choice; its lenders are brought back."""
    worker = machine.worker()
    script = "trap 'echo caught; exit 42' INT; test -t 0 && echo terminal; while :; do sleep 0.01; done"
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "vram", "borrow", TIGHT, "--", "sh", "-c", script]

    def take_terminal() -> None:
        os.setsid()
        import fcntl

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        argv, env=machine.environment(), stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal
    )
    os.close(theirs)
    seen = read_until(ours, b"terminal")
    os.write(ours, b"\x03")
    seen += read_until(ours, b"caught")
    assert process.wait(PATIENCE_S) == 42, seen
    os.close(ours)
    assert runs_on(worker)


def read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        until_readable(terminal, lambda seen=seen: seen)
        seen += os.read(terminal, 4096)
    return seen


def test_a_signal_to_vram_reaches_the_command(machine: Machine) -> None:
    worker = machine.worker()
    script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"
    vram = machine.start("borrow", TIGHT, "--", "sh", "-c", script)
    assert vram.stdout is not None
    vram.stdout.readline()
    vram.send_signal(signal.SIGTERM)
    assert vram.wait(PATIENCE_S) == 9
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_vram_killed_while_the_command_runs(machine: Machine) -> None:
    """The worker waits for the command, which goes on in its room, and then brings everybody back."""
    worker = machine.worker()
    argv = [sys.executable, "-c", BORROWER, str(139 * GIB)]
    vram = machine.start("borrow", TIGHT, "--", *argv, stdin=subprocess.PIPE)
    assert vram.stdout is not None
    assert vram.stdin is not None
    assert vram.stdout.readline() == "has it\n"
    vram.kill()
    vram.wait()
    assert machine.state(worker.pid) == CHECKPOINTED
    (line,) = machine.parked()
    assert (line["state"], line["purpose"]) == ("busy", "borrow")
    vram.stdin.close()
    machine.wait_for(worker.pid, RUNNING)
    assert runs_on(worker)
    machine.until_nobody_moves(worker.pid)
    assert machine.parked() == []


@pytest.mark.fault(10)
def test_vram_and_its_checkpoint_worker_killed_while_the_command_runs(machine: Machine) -> None:
    """Nobody is left to bring the lender back; the next vram does."""
    worker = machine.worker()
    vram = machine.start("borrow", TIGHT, "--", "sh", "-c", "echo up; read word", stdin=subprocess.PIPE)
    assert vram.stdout is not None
    vram.stdout.readline()
    kill_both(vram)
    assert machine.state(worker.pid) == CHECKPOINTED
    done = machine.vram("park")
    assert (done.stdout, "borrow" in done.stderr) == ("Nothing is parked.\n", True)
    assert runs_on(worker)


def test_a_worker_killed_while_the_command_runs_is_replaced(machine: Machine) -> None:
    worker = machine.worker()
    vram = machine.start("borrow", TIGHT, "--", "sh", "-c", "echo up; read word", stdin=subprocess.PIPE)
    assert vram.stdout is not None
    vram.stdout.readline()
    kill(checkpoint_worker_of(vram))
    vram.communicate("go\n")
    assert vram.returncode == 0
    assert runs_on(worker)


def test_what_the_command_leaves_on_the_gpu_is_told_and_the_lender_stays_parked(machine: Machine) -> None:
    """A daemon of the command's keeps the room: bringing the lender back would leave it stuck."""
    worker = machine.worker()
    fifo = machine.state_home / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR)
    note = machine.state_home / "note"
    note.touch()
    script = '$1 -c "$2" $3 <$4 >$5 2>&1 & while ! grep -q has $5; do sleep 0.01; done'
    argv = ["sh", "-c", script, "sh", sys.executable, BORROWER, 139 * GIB, fifo, note]
    vram = machine.start("borrow", TIGHT, "--", *argv)
    _, told = vram.communicate()
    assert vram.returncode == 20, told
    assert "not free" in told
    assert machine.state(worker.pid) == CHECKPOINTED
    os.close(held)
    machine.wait_for(worker.pid, RUNNING)
    assert runs_on(worker)


def test_the_command_is_led_to_the_gpu_that_has_the_room(
    two_virtual_gpus: VirtualGpu, machine: Machine
) -> None:
    machine.gpu = two_virtual_gpus
    machine.worker()
    done = machine.vram("borrow", TIGHT, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stderr == "", "GPU 1 is empty: nobody has to move"
    assert done.stdout.strip().endswith("1")


@pytest.mark.parametrize("by", ["number", "uuid"])
def test_the_room_is_made_where_the_command_sees_it(
    two_virtual_gpus: VirtualGpu, machine: Machine, by: str
) -> None:
    """GPU 0 is empty; but who may see only GPU 1 has nothing of that."""
    machine.gpu = two_virtual_gpus
    worker = machine.worker(GPU="1")
    listed = json.loads(machine.vram("why", "--json").stdout)["gpus"]
    seen = {"number": "1", "uuid": listed[1]["uuid"]}[by]
    echo = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    done = machine.vram("borrow", TIGHT, "--", *echo, CUDA_VISIBLE_DEVICES=seen)
    assert f"parked pid {worker.pid}" in done.stderr
    assert (done.returncode, done.stdout) == (0, f"{seen}\n"), done.stderr
    done = machine.vram("borrow", TIGHT, "--", *echo, CUDA_VISIBLE_DEVICES=f"0,{seen}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"0,{seen}\n", "")


@pytest.mark.parametrize(
    ("seen", "words"), [("0", ("--gpu", "1")), ("", ()), ("MIG-0,1", ())], ids=["another", "none", "mig"]
)
def test_a_gpu_that_the_command_would_not_see_is_a_usage_error(
    two_virtual_gpus: VirtualGpu, machine: Machine, seen: str, words: tuple[str, ...]
) -> None:
    machine.gpu = two_virtual_gpus
    done = machine.vram("borrow", "1GiB", *words, "--", "echo", "ran", CUDA_VISIBLE_DEVICES=seen)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"CUDA_VISIBLE_DEVICES is {seen!r}" in done.stderr


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("1,0", (1, 0)),
        (" 0 , GPU-bc", (0, 1)),
        ("GPU-a", (0,)),
        ("GPU-b", ()),
        ("0,7,1", (0,)),
        ("-1", ()),
        ("-1,0", ()),
        ("", ()),
        ("MIG-a,0", ()),
    ],
)
def test_cuda_sees_gpus_up_to_the_first_word_that_names_none(words: str, seen: tuple[int, ...]) -> None:
    """Numbers, and UUIDs as far as they are one GPU's alone."""
    assert seen_by_cuda(words, {0: "GPU-a1", 1: "GPU-bc", 2: "GPU-bd"}) == seen
