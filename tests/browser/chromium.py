"""Chromium without a window, driven through its DevTools protocol over two pipes.

Tests of the report's page, its pictures and its benchmark use it. It needs nothing but Chromium, and
nothing listens on a port.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.patience import until, until_readable

# The same engine without a desktop's browser around it: it starts and opens pages in a third of the time.
SHELLS = ("chromium-headless-shell", "chrome-headless-shell")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
GRACE_S = 10.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
    # One process for all pages, and nothing that a person would need: each page opens sooner.
    "--renderer-process-limit=1",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-features=IsolateOrigins,site-per-process,Translate,OptimizationHints,MediaRouter",
)


def find(with_tabs: bool = False) -> str | None:
    """The path of an installed Chromium or Chrome; *with_tabs*, of one where a page can be behind another."""
    names = BROWSERS if with_tabs else (*SHELLS, *BROWSERS)
    return next(filter(None, map(shutil.which, names)), None)


class BrowserError(Exception):
    """The browser refused a command, or ended."""


class Browser:
    """One running browser; ``send`` waits for the answer to its command, events are kept by session."""

    def __init__(self, pid: int, commands: int, answers: int) -> None:
        self._pid, self._commands, self._answers = pid, commands, answers
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        _write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                found: dict[str, Any] = answer["result"]
                return found

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            until_readable(self._answers, lambda: "the browser does not answer")
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise BrowserError("the browser ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Page:
        """Open *address* in a new page, and wait until it was loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.resize(width, height)
        page.prefer_dark(dark)
        page.load(address)
        return page

    def close(self) -> None:
        """End the browser, and whatever it started."""
        with suppress(BrowserError, OSError):
            self.send("Browser.close")
        os.close(self._commands)
        pidfd = os.pidfd_open(self._pid)
        select.select([pidfd], [], [], GRACE_S)
        os.close(pidfd)
        os.killpg(self._pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
        os.waitpid(self._pid, 0)
        os.close(self._answers)


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def events(self, method: str) -> list[dict[str, Any]]:
        """The parameters of every event of this name so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") == method
        ]

    def load(self, address: str) -> None:
        seen = len(self.events("Page.loadEventFired"))
        self.send("Page.navigate", url=address)
        self.until(lambda: len(self.events("Page.loadEventFired")) > seen)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(str(details.get("exception", {}).get("description", details["text"])))
        return answer["result"].get("value")

    def until(self, condition: str | Callable[[], object]) -> None:
        """Wait until a JavaScript expression, or a function, is true."""

        def holds() -> object:
            # Asking lets events come in, also for a condition that only reads them.
            answer = self.run(f"Boolean({condition})" if isinstance(condition, str) else "0")
            return answer if isinstance(condition, str) else condition()

        # Each question wakes three processes of the browser.
        until(
            holds,
            lambda: f"{condition} is not true of {self.run('document.body.innerText')!r}",
            max_pause_s=0.05,
        )

    def resize(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer_dark(self, dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def mouse(self, kind: str, x: float, y: float, *, clicks: int = 0) -> None:
        button = "left" if kind != "mouseMoved" or clicks else "none"
        self.send(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            clickCount=clicks,
            buttons=int(button == "left" and kind != "mouseReleased"),
        )

    def click(self, x: float, y: float, *, times: int = 1) -> None:
        for clicks in range(1, times + 1):
            self.mouse("mousePressed", x, y, clicks=clicks)
            self.mouse("mouseReleased", x, y, clicks=clicks)

    def drag(self, x: float, y: float, to_x: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, clicks=1)
        self.mouse("mouseMoved", (x + to_x) / 2, y, clicks=1)
        self.mouse("mouseMoved", to_x, y, clicks=1)
        self.mouse("mouseReleased", to_x, y, clicks=1)

    def press(self, key: str, *, code: int = 0, text: str = "") -> None:
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)


@contextmanager
def started(program: str | None = None) -> Iterator[Browser]:
    """Start a browser with a profile of its own, which goes away with it."""
    program = program or find()
    if program is None:
        raise BrowserError("there is no Chromium here; install the package chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for_commands, commands = os.pipe()
        answers, for_answers = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4, which may be ends of these pipes.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (for_commands, for_answers)]
        actions = [
            (os.POSIX_SPAWN_DUP2, ends[0], 3),
            (os.POSIX_SPAWN_DUP2, ends[1], 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        argv = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        try:
            pid = os.posix_spawn(program, argv, os.environ, file_actions=actions, setpgroup=0)
        finally:
            for end in (*ends, for_commands, for_answers):
                os.close(end)
        browser = Browser(pid, commands, answers)
        try:
            yield browser
        finally:
            browser.close()


def _write(descriptor: int, message: bytes) -> None:
    while message:
        message = message[os.write(descriptor, message) :]
