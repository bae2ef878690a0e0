"""An interactive shell at a terminal of its own: what is typed there, and what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.patience import until

PROMPT = "ready> "


class Terminal:
    """bash with job control. What is typed is not shown, so that only answers are."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        variables = {**environment, "PS1": PROMPT, "TERM": "dumb", "HISTFILE": ""}
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], variables)
        self.shown = ""
        self.read_until(PROMPT)
        self.run("stty -echo")

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def read_until(self, words: str) -> str:
        """What is shown up to *words*, from where the last reading ended."""
        self._show(words)
        found, _, self.shown = self.shown.partition(words)
        return found + words

    def read_page(self, *words: str) -> None:
        """Read until all *words* were shown, in whichever order a page draws them."""
        self._show(*words)
        self.shown = ""

    def _show(self, *words: str) -> None:
        until(lambda: self._shows(*words), lambda: f"{self.shown!r}, and not all of {words}")

    def _shows(self, *words: str) -> bool:
        """Whether all *words* are shown by now. A page may be drawn for ever: it is read bit by bit."""
        while not all(word in self.shown for word in words):
            if not select.select([self._screen], [], [], 0)[0]:
                return False
            try:
                part = os.read(self._screen, 4096)
            except OSError:
                part = b""
            assert part, f"the terminal was closed; shown: {self.shown!r}"
            self.shown += part.decode(errors="replace")
        return True

    def run(self, line: str) -> str:
        """Type *line* and wait for the next prompt; return what was shown between."""
        self.type(f"{line}\n")
        return self.read_until(PROMPT)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def code(self) -> int:
        """The exit code of the last command."""
        self.type("echo code $?.\n")
        shown = self.read_until(PROMPT)
        return int(shown.rpartition("code ")[2].partition(".")[0])

    def close(self) -> None:
        """As if its window were closed. Can be called again."""
        if self._screen < 0:
            return
        os.close(self._screen)
        self._screen = -1
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
