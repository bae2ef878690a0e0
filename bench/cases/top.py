"""`vram top` beside nvitop: processor time of a refresh, at the same interval, at the same time.

Both run in a terminal of their own, on the same GPUs with the same processes. What they and the processes
that they started have used is read from /proc twice, after they have started: the start is in neither figure.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.company import holders, standing
from bench.native import ROOT
from bench.row import Row
from bench.timing import CommandFailed, program

GIB, MIB = 1024**3, 1024**2
EVERY_S = 1.0
STARTED_S = 6.0
MEASURED_S = 30.0
"""Two of the readings of everybody's open files are in it, which come every 15 s."""
LINES, COLUMNS = 40, 120
HOUR = 1800
MAX_GROWTH = 4 * MIB
_CHURN = [sys.executable, str(Path(__file__).parents[1] / "churning_holder.py")]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(turns: int) -> list[Row]:
    vram = program("vram") or "vram"
    commands = {"vram": [vram, "top", "--every", f"{EVERY_S:g}s"]}
    if nvitop := program("nvitop"):
        commands["nvitop"] = [nvitop, "--interval", f"{EVERY_S:g}"]
    with holders(6, 1 * GIB):
        quiet = _refresh_s(commands)
        with standing(_CHURN):
            busy = _refresh_s(commands)
    return [
        Row("vram top, a refresh, processor time", quiet["vram"], "s", "nvitop", quiet.get("nvitop"), 1.0),
        Row("the same, memory changes all the time", busy["vram"], "s", "nvitop", busy.get("nvitop")),
        Row("vram top, memory an hour adds", _growth(), "bytes", target=MAX_GROWTH, note=f"{HOUR} refreshes"),
    ]


def _growth() -> float:
    argv = [sys.executable, str(ROOT / "bench" / "refreshed.py"), str(HOUR)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    first, last = map(int, done.stdout.split())
    return float(max(0, last - first))


def _refresh_s(commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Run all *commands* at once; the seconds of processor time that each takes for one refresh."""
    with ExitStack() as stack:
        screens = {name: stack.enter_context(_terminal(words)) for name, words in commands.items()}
        _draw(screens.values(), STARTED_S)
        began = time.monotonic()
        before = {name: screen.used_s() for name, screen in screens.items()}
        _draw(screens.values(), MEASURED_S)
        refreshes = (time.monotonic() - began) / EVERY_S
        return {name: (screen.used_s() - before[name]) / refreshes for name, screen in screens.items()}


class _Screen:
    """A program in a terminal, whose output is read and thrown away."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master

    def used_s(self) -> float:
        """Processor time of the program, of what it has started, and of what of that has ended."""
        if self.process.poll() is not None:
            raise CommandFailed(f"{self.process.args!r} ended with {self.process.returncode}")
        return sum(map(used_s, family(self.process.pid)))


@contextmanager
def _terminal(words: Sequence[str]) -> Iterator[_Screen]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        try:
            yield _Screen(process, master)
        finally:
            process.terminate()
            try:
                _draw([_Screen(process, master)], 10.0, until_end=True)
            finally:
                process.kill()
                os.close(master)


def _draw(screens: Iterable[_Screen], seconds: float, until_end: bool = False) -> None:
    """Read what the programs write, for so long."""
    waiting = {screen.master: screen for screen in screens}
    end = time.monotonic() + seconds
    while waiting and (left := end - time.monotonic()) > 0:
        for master in select.select(list(waiting), [], [], min(left, 0.1))[0]:
            try:
                os.read(master, 1 << 16)
            except OSError:  # the program has ended
                del waiting[master]
        if until_end and all(screen.process.poll() is not None for screen in waiting.values()):
            return


def family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def used_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended; its parent counts it from now on
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S
