"""``vram virtual``, run as people run it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from vram.virtualgpu import FOLDER_VARIABLE

VRAM = [sys.executable, "-c", "import sys; from vram.cli.app import main; sys.exit(main())", "virtual"]
PRINT_FOLDER = ["printenv", FOLDER_VARIABLE]

pytestmark = pytest.mark.usefixtures("native_libraries")


def virtual(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VRAM, *words], capture_output=True, text=True, timeout=PATIENCE_S, **options)


def test_a_command_runs_inside_and_the_folder_is_gone_afterwards() -> None:
    done = virtual("--", *PRINT_FOLDER)
    assert done.returncode == 0
    assert Path(done.stdout.strip()).name.startswith("vram-virtual-")
    assert not Path(done.stdout.strip()).exists()


def test_it_has_the_gpus_that_were_asked_for() -> None:
    program = (
        "import json, pynvml as n; n.nvmlInit();"
        "handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())];"
        "print(json.dumps([[n.nvmlDeviceGetName(h), n.nvmlDeviceGetMemoryInfo(h).total] for h in handles]))"
    )
    done = virtual(
        "--gpus", "2", "--memory", "24GiB", "--name", "NVIDIA L4", "--", sys.executable, "-c", program
    )
    assert json.loads(done.stdout) == [["NVIDIA L4 (virtual)", 24 * 1024**3]] * 2


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["no-such-command-anywhere"], 127),
        (["/"], 126),
    ],
)
def test_its_exit_code_is_the_commands(command: list[str], code: int) -> None:
    assert virtual("--", *command).returncode == code


def test_a_command_that_is_not_found_is_named() -> None:
    assert "no-such-command: command not found" in virtual("--", "no-such-command").stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["bash"], "put -- before the command"),
        (["--gpus", "2", "python", "--version"], "put -- before the command"),
        (["--memory", "lots", "--", "true"], "20GiB"),
        (["--gpus", "99", "--", "true"], "from 0 to 64"),
        (["--fault", "nonsense", "--", "true"], "nvmlDeviceGetMemoryInfo*"),
    ],
)
def test_wrong_words_are_a_usage_error_with_a_hint(words: list[str], hint: str) -> None:
    done = virtual(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_command_the_shell_is_started() -> None:
    done = virtual(env=os.environ | {"SHELL": "/bin/sh"}, input=f"echo in ${FOLDER_VARIABLE}; exit 5\n")
    assert done.returncode == 5
    assert done.stdout.startswith("in /")


LAUNCH = """
import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p
runtime, kernel = ctypes.CDLL("libcudart.so.13"), ctypes.create_string_buffer(8)
class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]
getattr(runtime, "__cudaRegisterFunction")(None, kernel, None, c_char_p(b"k"), c_int(-1), *[None] * 5)
launch, one = runtime.cudaLaunchKernel, Dim3(1, 1, 1)
launch.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]
assert launch(ctypes.addressof(kernel), one, one, None, 0, None) == 0
"""


def test_launches_that_computed_nothing_are_told_at_the_end() -> None:
    done = virtual("--", sys.executable, "-c", LAUNCH)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "vram virtual: 1 kernel launch was counted and not run: nothing was computed\n"
    assert virtual("--", "true").stderr == ""


def test_kept_folders_are_told() -> None:
    done = virtual("--keep", "--", *PRINT_FOLDER)
    folder = Path(done.stdout.strip())
    try:
        assert str(folder) in done.stderr
        assert (folder / "config").exists()
    finally:
        subprocess.run(["rm", "-r", "--", str(folder)], check=True)


def test_words_after_the_dashes_are_the_commands_own() -> None:
    done = virtual("--", "printf", "%s|", "--gpus", "--", "--keep")
    assert done.stdout == "--gpus|--|--keep|"


# ---- signals and the terminal ----


@pytest.fixture
def sleeper() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`vram virtual` with a command that says when it is there, and waits."""
    script = f"trap 'exit 9' TERM; echo ${FOLDER_VARIABLE}; read line"
    argv = [*VRAM, "--", "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_signal_reaches_the_command_and_cleaning_up_still_happens(sleeper) -> None:
    process, folder = sleeper
    assert folder.is_dir()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 9
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_ends_the_command_shows_in_the_exit_code(sleeper, number: signal.Signals) -> None:
    process, folder = sleeper
    process.send_signal(number)
    assert process.wait(timeout=PATIENCE_S) == 128 + number
    assert not folder.exists()


# It waits for its signals and has no handlers: those run at any moment, also in the midst of a print.
COUNTING = """
import signal, sys
awaited = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("terminal" if sys.stdin.isatty() else "none", flush=True)
interrupts = 0
while signal.sigwait(awaited) == signal.SIGINT:
    interrupts += 1
    print("interrupted", flush=True)
print(interrupts, "in all", flush=True)
sys.stdin.readline()
"""


def test_the_command_has_the_terminal_and_gets_its_interrupt_once() -> None:
    """Typed at the terminal, Ctrl-C reaches the whole group: passing it on would be one too many."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(VRAM[0], [*VRAM, "--", sys.executable, "-c", COUNTING])
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        read_until(screen, b"terminal\r\n")
        # Stopped meanwhile: a second interrupt before the first is handled would melt into it.
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        screen.write(b"\x03")
        read_until(screen, b"interrupted\r\n")
        # Taken after the interrupt, which has the lower number: that would be passed on first.
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGCONT)
        assert b"1 in all" in read_until(screen, b"in all\r\n")
        # Only now: a terminal drops what nobody has read yet when the first program in it ends.
        screen.write(b"\n")
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def read_until(screen, words: bytes) -> bytes:
    shown = b""
    while words not in shown:
        shown += screen.read(1024)
    return shown


# ---- faults ----


def test_faults_can_be_given_at_the_start() -> None:
    program = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    done = virtual("--fault", "nvmlInit* error=NO_PERMISSION", "--", sys.executable, "-c", program)
    assert done.stdout.strip() == "4"


def test_faults_are_switched_inside(virtual_gpu) -> None:
    def fault(*words: str) -> subprocess.CompletedProcess[str]:
        return virtual_gpu.run([*VRAM, "fault", *words], capture_output=True, text=True)

    assert fault("nvmlInit* error=GPU_IS_LOST", "cuMemAlloc* hang").returncode == 0
    assert fault().stdout == "nvmlInit* error=15\ncuMemAlloc* hang\n"
    assert fault("rubbish").returncode == 2
    assert fault("--clear").returncode == 0
    assert fault().stdout == ""


def test_outside_there_is_nothing_to_switch() -> None:
    clean = {key: value for key, value in os.environ.items() if key != FOLDER_VARIABLE}
    done = virtual("fault", "nvmlInit* hang", env=clean)
    assert done.returncode == 6
    assert "vram virtual -- COMMAND" in done.stderr
