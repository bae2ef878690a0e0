"""`vram run --live`: the page of the command's memory, while the command runs behind it.

The terminal is the page's: the command reads nothing and writes to a file, whose last lines are shown. Ctrl-C
interrupts the command. Leaving the page leaves the command running.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from textual.binding import Binding, BindingType

from vram.files import open_plain
from vram.top.sites import SitesScreen, SitesSource
from vram.top.terminal_app import TerminalApp

TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
_TAIL_NBYTES = 16 << 10


class LiveRun(TerminalApp):
    """One page. ``status`` is how the command ended, as wait(2) says it; None while it runs.

    Run it while :data:`TAKEN` are blocked: they are taken as long as it is shown.
    """

    TITLE = "vram run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "interrupt", priority=True, show=False),
        Binding("ctrl+q", "quit", "leave", priority=True, show=False),
    ]

    def __init__(self, pid: int, source: SitesSource, title: str, log: str, *, ascii_only: bool) -> None:
        """*pid* is a child of ours and the leader of its process group."""
        super().__init__()
        self.status: int | None = None
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._page = SitesScreen(
            source, title, ascii_only=ascii_only, output=lambda: last_lines(log, _TAIL_NBYTES)
        )

    def run_page(self) -> int | None:
        """Show it until it is left; return ``status``."""
        handlers = {number: signal.getsignal(number) for number in TAKEN}
        try:
            self.run()
        finally:
            for number, handler in handlers.items():  # asyncio leaves the system's
                signal.signal(number, handler)
        return self.status

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._ended)
        loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave_with, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
        self.push_screen(self._page, lambda _: self.exit())

    def on_unmount(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        _, self.status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(self.status)
        how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._page.state = f"{how}; q leaves"
        self._page.show_if_there()

    def _leave_with(self, number: int) -> None:
        """No user can type `q` any more: the view was told to end, or its terminal is gone."""
        if self.status is None:
            pass_on(self._pid)(number)
        self.exit()

    def terminal_closed(self) -> None:
        self._leave_with(signal.SIGHUP)

    def action_interrupt(self) -> None:
        if self.status is None:
            pass_on(self._pid)(signal.SIGINT)
        else:
            self.exit()


def pass_on(pid: int) -> Callable[[int], None]:
    """Signals for the command and all in its group, as a terminal would send them."""

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    return send


def last_lines(path: str, nbytes: int) -> list[str]:
    """The last lines of a file that still grows; of a line that was overwritten, what stands there now."""
    try:
        with open(open_plain(path, os.O_NOFOLLOW), "rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - nbytes))
            text = file.read(nbytes).decode("utf-8", "backslashreplace")
    except OSError:
        return []
    lines = text.split("\n")
    if length > nbytes:
        del lines[0]  # begun before
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines if line.strip()]
