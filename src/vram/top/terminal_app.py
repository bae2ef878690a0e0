"""What the live views share: the terminal's own colours, and an end when the terminal goes away.

Textual's thread that writes ends at the first write to a terminal that was closed. Then its queue fills up,
and the view waits for ever for a place in it. So here a write to a closed terminal writes nothing.
"""

from __future__ import annotations

import termios
from contextlib import suppress
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

_LOOK_AT_TERMINAL_EVERY_S = 2.0


class TerminalApp(App[None]):
    """A view that ends when its terminal is closed.

    Textual calls every class's own ``on_mount``, so that of a view does not call this one.
    """

    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        # Said here, because the theme is set later: with NO_COLOR Textual 8.2 would make greys of the
        # terminal's own colours, which it takes for black, so that text is black on black.
        super().__init__(driver_class=_LastingDriver, ansi_color=True)
        self.animation_level = "none"

    def on_mount(self) -> None:
        for name in ("ansi-dark", "textual-ansi"):
            if name in self.available_themes:
                self.theme = name
                break
        self.set_interval(_LOOK_AT_TERMINAL_EVERY_S, self._leave_closed_terminal)

    def _leave_closed_terminal(self) -> None:
        """SIGHUP goes only to processes that the terminal controls; not, for one, into every container."""
        if isinstance(self._driver, _LastingDriver) and self._driver.is_closed():
            self.terminal_closed()

    def terminal_closed(self) -> None:
        self.exit()


class _LastingDriver(LinuxDriver):
    """Writes into nothing once the terminal is closed."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = _LastingFile(self._file)

    def is_closed(self) -> bool:
        try:
            termios.tcgetattr(self.fileno)
        except termios.error:
            return True
        return False


class _LastingFile:
    """A text file whose writes never fail."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
