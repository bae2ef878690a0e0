"""`vram run` in a terminal, with a shell that has job control: the command behaves as if typed without it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.patience import until_ended
from tests.recording.conftest import Workplace
from tests.recording.terminal import PROMPT, Terminal

pytestmark = pytest.mark.usefixtures("native_libraries")

# Says what reaches it. Standard input stays open: it ends when it is told so. A handler runs where the
# program is just then, also in the middle of print(): it writes past the buffer, which print() has locked.
LISTENER = """
import fcntl, os, signal, struct, sys, termios
def heard(number, frame):
    os.write(1, f"heard {signal.Signals(number).name}\\n".encode())
for number in map(int, sys.argv[1].split(",")) if sys.argv[1] else ():
    signal.signal(number, heard)
print("terminal" if sys.stdin.isatty() else "none", os.getpid(), flush=True)
for line in sys.stdin:
    if line.strip() == "size":
        print("rows", struct.unpack("2H", fcntl.ioctl(0, termios.TIOCGWINSZ, b"1234"))[0], flush=True)
    elif line.strip() == "end":
        sys.exit(7)
    else:
        print("echo", line.strip(), flush=True)
"""


@pytest.fixture
def listener(tmp_path: Path) -> str:
    path = tmp_path / "listener.py"
    path.write_text(LISTENER)
    return f"{sys.executable} {path}"


def listening(work: Workplace, listener: str, number: int | str = "") -> Terminal:
    """A terminal in which the listener runs under vram and waits, also for the signal *number*."""
    screen = work.terminal()
    screen.type(f"vram run -- {listener} '{number}'\n")
    screen.read_until("terminal ")
    return screen


def ask(screen: Terminal, words: str, answer: str) -> None:
    screen.type(f"{words}\n")
    screen.read_until(answer)


def end(screen: Terminal) -> str:
    """Have the listener end, and compare its exit code; return what was shown meanwhile."""
    shown = screen.run("end")
    assert screen.code() == 7
    return shown


def test_it_reads_the_terminal_and_its_exit_code_is_ours(work: Workplace, listener: str) -> None:
    screen = listening(work, listener)
    ask(screen, "hello", "echo hello")
    end(screen)


def test_ctrl_c_reaches_a_command_that_handles_it_once(work: Workplace, listener: str) -> None:
    screen = listening(work, listener, int(signal.SIGINT))
    screen.type("\x03")
    screen.read_until("heard SIGINT")
    assert "heard" not in end(screen)


def test_ctrl_c_ends_a_command_and_vram_ends_by_the_same_signal(work: Workplace) -> None:
    """A loop of the shell ends with it, as it would for the command alone."""
    screen = work.terminal()
    screen.type("for i in 1 2 3; do vram run -- sh -c 'echo waiting $$.; exec sleep 600'; done\n")
    screen.read_until("waiting ")
    screen.read_until(".")
    screen.type("\x03")
    assert "waiting" not in screen.read_until(PROMPT)
    assert screen.code() == 128 + signal.SIGINT


def test_ctrl_z_stops_both_and_fg_goes_on(work: Workplace, listener: str) -> None:
    screen = listening(work, listener)
    screen.type("\x1a")
    screen.read_until("Stopped")
    screen.read_until(PROMPT)
    ask(screen, "fg", "vram run")
    ask(screen, "again", "echo again")
    end(screen)


def test_ctrl_z_leaves_a_command_that_ignores_it_in_the_foreground(work: Workplace, listener: str) -> None:
    """Without us the shell would not get the terminal back either."""
    screen = listening(work, listener, int(signal.SIGTSTP))
    screen.type("\x1a")
    screen.read_until("heard SIGTSTP")
    ask(screen, "still here", "echo still here")
    assert "Stopped" not in end(screen)


def test_a_window_that_changes_its_size_is_seen(work: Workplace, listener: str) -> None:
    screen = listening(work, listener, int(signal.SIGWINCH))
    screen.resize(rows=33, columns=120)
    screen.read_until("heard SIGWINCH")
    ask(screen, "size", "rows 33")
    end(screen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_vram_alone_is_passed_on(work: Workplace, listener: str, number: signal.Signals) -> None:
    process = work.start_vram("run", "--", *listener.split(), int(number))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("none")
    process.send_signal(number)
    assert process.stdout.readline() == f"heard {number.name}\n"
    process.communicate("end\n")
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_vram_ends_by_the_signal_that_ended_the_command(work: Workplace, number: signal.Signals) -> None:
    done = work.vram("run", "--", "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number


def test_killing_vram_leaves_the_command_running(work: Workplace, listener: str) -> None:
    process = work.start_vram("run", "--", *listener.split(), "")
    assert process.stdin is not None
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    process.kill()
    process.wait()
    process.stdin.write("on my own\n")
    process.stdin.flush()
    assert process.stdout.readline() == "echo on my own\n"
    command = os.pidfd_open(pid)
    process.communicate("end\n")
    until_ended(command)
    os.close(command)
