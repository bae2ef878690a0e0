"""A process as /proc tells it: of living ones, and of trees that try to mislead."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host.leaderless import leaderless
from vram.host.local.processes import LocalProc
from vram.payloads.procfs import ProcessFolder, Stat, started_at

SLEEP = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "an argument", "\x1b[2J\n"]


@pytest.fixture
def process() -> subprocess.Popen[bytes]:
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()  # a program that only just starts has no arguments yet
        yield running
        running.kill()


def stat_line(name: bytes, *, state: str = "S", flags: int = 0, start: int = 77) -> bytes:
    middle = f"{state} 1 2 3 0 -1 {flags} " + "0 " * 12 + f"{start} 0 0\n"
    return b"123 (" + name + b") " + middle.encode()


def tree(root: Path, **files: bytes) -> LocalProc:
    """A folder that looks like /proc with one process, 123."""
    folder = root / "123"
    folder.mkdir()
    for name, content in {"stat": stat_line(b"python"), **files}.items():
        (folder / name).write_bytes(content)
    return LocalProc(str(root))


def test_own_process_is_described(process: subprocess.Popen[bytes]) -> None:
    ref, facts = LocalProc().facts(process.pid)
    assert ref.started_at == started_at(process.pid)
    assert ref.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino
    assert facts.argv == tuple(SLEEP)
    assert facts.uid == os.getuid()
    assert facts.parent == os.getpid()
    assert facts.namespace_pids[-1] == process.pid or len(facts.namespace_pids) > 1
    assert facts.executable == os.path.realpath(sys.executable)
    assert not facts.executable_deleted
    assert not facts.exiting


@pytest.mark.fault(30)
def test_age_is_the_time_since_its_start(process: subprocess.Popen[bytes]) -> None:
    """Measured on the boot clock, so that a suspended machine does not make it younger."""
    _, facts = LocalProc().facts(process.pid)
    _, ours = LocalProc().facts(os.getpid())
    assert 0 <= facts.age_s < ours.age_s < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_zombie_is_told_apart() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _, facts = LocalProc().facts(process.pid)
        assert facts.state == "Z"
        assert facts.is_dead
        assert facts.exiting


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    """The kernel shows it as a zombie without arguments; another thread shows what it runs."""
    with leaderless() as pid:
        ref, facts = LocalProc().facts(pid)
        assert (facts.state in "RS", facts.exiting, facts.is_dead) == (True, False, False)
        assert facts.argv == tuple(sys.orig_argv)
        assert facts.executable == os.path.realpath(sys.executable)
        assert facts.namespace_pids[-1] == pid or len(facts.namespace_pids) > 1
        assert ref.started_at == started_at(pid)


def test_stopped_process_is_told_apart(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert LocalProc().facts(process.pid)[1].state == "T"


def test_deleted_executable_is_told(tmp_path: Path) -> None:
    program = tmp_path / "worker (deleted)"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "1000"]) as process:
        # The file is merely called so: nothing was deleted yet.
        assert LocalProc().facts(process.pid)[1].executable == str(program)
        assert not LocalProc().facts(process.pid)[1].executable_deleted
        program.unlink()
        facts = LocalProc().facts(process.pid)[1]
        assert facts.executable_deleted
        assert facts.executable == str(program)
        process.kill()


def test_gone_process_is_none(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert LocalProc().facts(process.pid) is None
    assert started_at(process.pid) is None


def test_folder_stays_with_its_process(process: subprocess.Popen[bytes]) -> None:
    """Once the process has ended nothing is read through its folder, whoever has the pid now."""
    with ProcessFolder("/proc", process.pid) as folder:
        assert folder.stat() is not None
        process.kill()
        process.wait()
        assert folder.stat() is None
        assert folder.read("cmdline") is None
        assert folder.link("exe") is None


@given(st.binary(max_size=64))
def test_any_name_is_survived(name: bytes) -> None:
    stat = Stat(stat_line(name, flags=4, start=99))
    assert (stat.started_at, stat.parent, stat.exiting) == (99, 1, True)
    stat.name.encode()  # could be shown, stored and sent


def test_name_that_pretends_to_be_fields(tmp_path: Path) -> None:
    ref, facts = tree(tmp_path, stat=stat_line(b"x) Z 9 9 (9 9")).facts(123)
    assert (ref.started_at, facts.state, facts.command) == (77, "S", "x) Z 9 9 (9 9")


def test_broken_utf8_becomes_visible(tmp_path: Path) -> None:
    _, facts = tree(tmp_path, cmdline=b"python\0\xff\xfe\0").facts(123)
    assert facts.argv == ("python", "\\xff\\xfe")


def test_user_is_taken_from_the_kernels_line(tmp_path: Path) -> None:
    """A name with a line break (which the kernel escapes) cannot supply a second Uid."""
    status = b"Name:\tx\\nUid:\t0\nUid:\t4242\t4242\t4242\t4242\nNSpid:\t123\t7\n"
    _, facts = tree(tmp_path, status=status).facts(123)
    assert (facts.uid, facts.user, facts.namespace_pids) == (4242, "4242", (123, 7))


def test_command_line_of_a_process_stuck_in_the_kernel_is_left_alone(tmp_path: Path) -> None:
    _, facts = tree(tmp_path, stat=stat_line(b"python", state="D"), cmdline=b"never\0").facts(123)
    assert (facts.state, facts.argv) == ("D", ())


@pytest.mark.parametrize("stat", [b"", b"123", b"123 (x", b"123 (x) S 1", b"123 (x) S a b c"])
def test_broken_stat_is_nobody(tmp_path: Path, stat: bytes) -> None:
    assert tree(tmp_path, stat=stat).facts(123) is None


FORKED = 0x40  # the kernel's PF_FORKNOEXEC


def threads(folder: Path, names: list[bytes]) -> None:
    """Folders of the threads of process 123."""
    for number, name in enumerate(names, 123):
        (folder / "123" / "task" / str(number)).mkdir(parents=True)
        (folder / "123" / "task" / str(number) / "stat").write_bytes(stat_line(name))


@pytest.mark.parametrize(
    ("names", "flags", "initialised"),
    [
        ([b"python"], FORKED, False),
        ([b"python", b"worker"], FORKED, False),
        ([b"python", b"cuda00001400006"], FORKED, True),
        ([b"python", b"cuda-EvtHandlr"], FORKED, True),
        ([b"python"] * 300, FORKED, True),  # too many to ask
        ([b"python", b"cuda00001400006"], 0, None),  # executed: its files are its own anyway
    ],
)
def test_whether_a_forked_process_has_initialised_cuda(
    tmp_path: Path, names: list[bytes], flags: int, initialised: bool | None
) -> None:
    line = stat_line(b"python", flags=flags).split()
    line[19] = str(len(names)).encode()  # the number of threads
    proc = tree(tmp_path, stat=b" ".join(line))
    threads(tmp_path, names)
    assert proc.facts(123)[1].initialised_cuda is initialised


def test_threads_that_cannot_be_listed_may_be_the_drivers(tmp_path: Path) -> None:
    line = stat_line(b"python", flags=FORKED).split()
    line[19] = b"2"
    assert tree(tmp_path, stat=b" ".join(line)).facts(123)[1].initialised_cuda is True


STUCK = {"stat": stat_line(b"python", state="R"), "cmdline": b"never\0", "environ": b"RANK=1\0"}


@pytest.mark.parametrize("name", [b"SigPnd", b"ShdPnd"])
def test_a_pending_sigkill_is_told_and_nothing_is_read_that_may_hang(tmp_path: Path, name: bytes) -> None:
    """A process can spin in the driver, in state R, with its memory locked: its arguments are left alone."""
    _, facts = tree(tmp_path, **STUCK, status=name + b":\t0000000000004100\n").facts(123)
    assert (facts.kill_pending, facts.state, facts.argv, facts.launch) == (True, "R", (), None)


@pytest.mark.parametrize("mask", [b"0000000000000000", b"0000000000000200", b"", b"-100", b"x", b"0x100"])
def test_other_pending_signals_are_no_sigkill(tmp_path: Path, mask: bytes) -> None:
    _, facts = tree(tmp_path, **STUCK, wchan=b"never", status=b"SigPnd:\t" + mask + b"\n").facts(123)
    assert (facts.kill_pending, facts.waits_in, facts.argv) == (False, None, ("never",))


STACK = b"""[<0>] irqentry_exit+0x1/0x2
[<0>] uvm_spin_loop+0xb4/0x100 [nvidia_uvm]
[<0>] uvm_tracker_wait+0xa2/0x1c0 [nvidia_uvm]
"""


@pytest.mark.parametrize(
    ("state", "wchan", "stack", "function"),
    [
        ("D", b"request_wait_answer", b"", "request_wait_answer"),
        ("R", b"0", STACK, "uvm_spin_loop"),
        ("R", b"0", b"[<0>] do_syscall_64+0x1/0x2\n", "do_syscall_64"),
        ("R", b"0", b"", None),
        ("R", b"0", b"\x1b[2J\n[<0>] \x1b[2J+0x1/0x2\n", None),
        ("D", b"0", STACK, None),  # to read a stack can hang where the process is in exec
        ("D", b"\x1b[2J", STACK, None),
    ],
)
def test_the_kernels_function_is_named(
    tmp_path: Path, state: str, wchan: bytes, stack: bytes, function: str | None
) -> None:
    files = {"stat": stat_line(b"python", state=state), "wchan": wchan, "stack": stack}
    _, facts = tree(tmp_path, **files, status=b"ShdPnd:\t0000000000000100\n").facts(123)
    assert facts.waits_in == function
