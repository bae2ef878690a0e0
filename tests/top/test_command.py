"""`vram top` as a program in a terminal: how it begins, how it ends, and when it refuses."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_S, until, until_ended
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

ALTERNATE_SCREEN, USUAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A program in a terminal of 80 columns and 24 lines."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.output = b""

    def until(self, *words: bytes) -> None:
        """Come back when the program has written all of *words*."""

        def written() -> bool:
            ended = self.process.poll() is not None
            while self._read(0.0):
                pass
            found = all(word in self.output for word in words)
            assert found or not ended, self.output[-2000:]
            return found

        until(written, lambda: self.output[-2000:])

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        try:
            part = os.read(self._master, 1 << 16)
        except OSError:  # the program has closed its end
            return False
        self.output += part
        return bool(part)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        """As if its window were closed."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def end(self) -> int:
        """The exit code, once the program has ended."""

        def ended() -> bool:
            over = self.process.poll() is not None
            while self._read(0.0):
                pass
            return over

        until(ended, lambda: self.output[-2000:])
        return self.process.returncode


@contextmanager
def terminal(argv: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**environment, "TERM": "xterm-256color"}
    with subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        screen = Terminal(process, master)
        try:
            yield screen
        finally:
            if process.poll() is None:
                process.kill()
            screen.close()


TOP = [sys.executable, "-m", "vram", "top", "--every", "0.2s"]


@pytest.mark.parametrize("leave", [b"q", b"\x03", signal.SIGTERM, signal.SIGHUP])
def test_it_shows_the_table_and_leaves_the_terminal_as_it_was(
    virtual_gpu: VirtualGpu, leave: bytes | signal.Signals
) -> None:
    with (
        DemoProgram(virtual_gpu, "memory.plain", 1 * GIB),
        terminal(TOP, virtual_gpu.environment()) as screen,
    ):
        screen.until(ALTERNATE_SCREEN, b"COMMAND", b"memory.py")
        if isinstance(leave, bytes):
            screen.type(leave)
        else:
            screen.process.send_signal(leave)
        assert screen.end() == 0
        assert screen.output.rindex(USUAL_SCREEN) > screen.output.rindex(ALTERNATE_SCREEN)


def test_it_ends_when_its_terminal_is_closed(virtual_gpu: VirtualGpu) -> None:
    """Also where no signal says so: the terminal does not control it here."""
    with terminal(TOP, virtual_gpu.environment()) as screen:
        screen.until(ALTERNATE_SCREEN, b"COMMAND")
        screen.close()
        assert screen.process.wait(PATIENCE_S) == 0


def test_nobody_is_left_behind(virtual_gpu: VirtualGpu) -> None:
    with terminal(TOP, virtual_gpu.environment()) as screen:
        screen.until(b"COMMAND")
        pids = _descendants(screen.process.pid)
        handles = [os.pidfd_open(pid) for pid in pids]
        assert len(handles) >= 2  # who reads the host, and who reads the driver
        screen.process.kill()
        for handle in handles:
            until_ended(handle)
            os.close(handle)


def _descendants(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        with open(f"/proc/{waiting[0]}/task/{waiting.pop(0)}/children") as children:
            below = [int(word) for word in children.read().split()]
        found += below
        waiting += below
    return found


def test_with_no_color_everything_is_in_the_colours_of_the_terminal(virtual_gpu: VirtualGpu) -> None:
    """Also behind the text: black on black is no colour, and nothing can be read."""
    family = DemoProgram(virtual_gpu, "forks.orphan", 1 * GIB)
    with family, terminal(TOP, {**virtual_gpu.environment(), "NO_COLOR": "1"}) as screen:
        family.kill("parent")
        screen.until(b"GHOST")
        screen.type(b"q")
        assert screen.end() == 0
        assert _colours(screen.output) <= {b"39", b"49"}  # the foreground and the background that it has


def test_with_colours_a_ghost_is_red(virtual_gpu: VirtualGpu) -> None:
    family = DemoProgram(virtual_gpu, "forks.orphan", 1 * GIB)
    with family, terminal(TOP, virtual_gpu.environment()) as screen:
        family.kill("parent")
        screen.until(b"VR101")
        assert b"31" in _colours(screen.output)


def _colours(output: bytes) -> set[bytes]:
    """Every parameter of "select graphic rendition" that is about a colour."""
    codes = {code for words in re.findall(rb"\x1b\[([\d;]*)m", output) for code in words.split(b";")}
    return {code for code in codes if code.isdigit() and int(code) >= 30}


def test_on_a_dumb_terminal_it_names_the_command_for_that(virtual_gpu: VirtualGpu) -> None:
    with terminal(["env", "TERM=dumb", *TOP], virtual_gpu.environment()) as screen:
        assert screen.end() == 2
        assert b"vram watch" in screen.output
        assert b"\x1b" not in screen.output


def test_a_gpu_that_does_not_exist_is_a_usage_error(virtual_gpu: VirtualGpu) -> None:
    with terminal([*TOP, "--gpu", "7"], virtual_gpu.environment()) as screen:
        assert screen.end() == 2
        assert b"there is no GPU 7" in screen.output


def test_without_a_terminal_it_names_the_commands_for_that(virtual_gpu: VirtualGpu) -> None:
    done = virtual_gpu.run(TOP, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "vram ps" in done.stderr
    assert "vram watch" in done.stderr


def test_without_textual_it_says_how_to_get_it(virtual_gpu: VirtualGpu) -> None:
    code = "import sys; sys.modules['textual'] = None; from vram.cli.app import main; sys.exit(main(['top']))"
    with terminal([sys.executable, "-c", code], virtual_gpu.environment()) as screen:
        assert screen.end() == 2
        assert b"-m pip install 'textual>=4'" in screen.output


@pytest.mark.parametrize(
    "words", [["--every", "0s"], ["--every", "0.01s"], ["--every", "x"], ["--every", "2"]]
)
def test_intervals_that_make_no_sense_are_refused(words: list[str]) -> None:
    done = subprocess.run([*TOP, *words], capture_output=True, text=True)
    assert done.returncode == 2


def test_nothing_else_imports_textual() -> None:
    """Other commands start as fast as ever."""
    code = (
        "import sys; from vram.cli.app import main; main(['why']); main(['ps']); main(['top', '--help']);"
        "assert not any(name.partition('.')[0] == 'textual' for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
