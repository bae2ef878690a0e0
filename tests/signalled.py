"""A command in a terminal and a session of its own gets a signal at a random moment: what is left of it?"""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.patience import PATIENCE_S, until

TRIES = int(os.environ.get("VRAM_SIGNALS", "3"))
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Ended(NamedTuple):
    number: int
    code: int
    output: bytes


def signalled(
    words: tuple[str, ...], environment: Mapping[str, str], chance: random.Random, within_s: float
) -> Ended:
    """Run vram with *words*; fails where something of its session goes on after it."""
    number, moment = chance.choice(NUMBERS), chance.uniform(0.0, within_s)
    return _in_a_terminal(words, environment, number, moment)


def ended_alone(words: tuple[str, ...], environment: Mapping[str, str]) -> Ended:
    """The same where nobody sends a signal."""
    return _in_a_terminal(words, environment, 0, PATIENCE_S)


def _in_a_terminal(
    words: tuple[str, ...], environment: Mapping[str, str], number: int, moment: float
) -> Ended:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vram", *words],
        env={**environment, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    os.close(theirs)
    output = bytearray()
    reader = threading.Thread(target=_read_all, args=(ours, output), daemon=True)
    reader.start()
    with suppress(subprocess.TimeoutExpired):  # the moment is left to chance
        process.wait(moment)
    process.send_signal(number)
    until(lambda: process.poll() is not None, lambda: bytes(output))
    until(lambda: not _session(process.pid), lambda: _session(process.pid))
    reader.join(PATIENCE_S)
    os.close(ours)
    return Ended(number, process.returncode, bytes(output))


def require_plain_end(ended: Ended, *more_codes: int) -> None:
    """The signal's own exit code or one of *more_codes*, and no traceback through vram's files.

    Ctrl-C before the first lines of ours have run ends Python in its own ways.
    """
    if any(words in ended.output for words in (b"Fatal Python error: init", b"Could not import runpy")):
        return
    allowed = {-ended.number, 128 + ended.number, *more_codes}
    assert ended.code in allowed, (signal.Signals(ended.number).name, ended)
    ours = set(re.findall(rb'File "[^"]*/(vram/[^"]*)"', ended.output)) - {
        b"vram/__init__.py",
        b"vram/__main__.py",
    }
    assert b"Traceback" not in ended.output or not ours, ended


def heed_signals() -> None:
    """A suite that was started in the background, by `nohup` or a script, ignores some of them."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)


def _read_all(terminal: int, output: bytearray) -> None:
    """What the command prints, so that it never waits for a reader."""
    with suppress(OSError):  # nobody has the other end any more
        for part in iter(lambda: os.read(terminal, 1 << 16), b""):
            output += part


def _session(leader: int) -> list[int]:
    """Who lives in the session of *leader*."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
            if fields[3] == str(leader) and fields[0] not in "ZX":
                found.append(int(name))
    return found
