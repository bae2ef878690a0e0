"""Row 10: vram is killed at a random moment while it ends or trims processes.

Nobody is left stopped, nobody is ended whom the audit log does not name, and who works goes on working.
``VRAM_KILLS=1000`` makes it as long as the promise is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.patience import PATIENCE_S, has_ended, until_ended
from tests.reclaim.conftest import Bench
from tests.search_path import search_path
from vram.virtualgpu.demos import PROGRAMS

TREES = Path(__file__).with_name("trees.py")
KILLS = int(os.environ.get("VRAM_KILLS", "30"))

# It works all the time, answers every line, and notes every signal that reaches it.
OTHER = """
import driver, select, signal, sys
heard = []
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: heard.append(number))
driver.context()
pointer = driver.alloc(1 << 20)
driver.fill(pointer, 0x5A, 1 << 20)
print(flush=True)
while True:
    sum(range(1000))
    if select.select([sys.stdin], [], [], 0.005)[0]:
        if not sys.stdin.readline():
            break
        print(heard, driver.read(pointer, 4).hex(), flush=True)
"""


class Talker:
    """A program that answers each line with one."""

    def __init__(self, environment: Mapping[str, str], *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def ask(self, line: str = "") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def trees(machine: Bench) -> Iterator[Talker]:
    made = Talker(machine.environment(PYTHONPATH=search_path(PROGRAMS)), str(TREES))
    yield made
    made.close()


@pytest.fixture
def other(machine: Bench) -> Iterator[Talker]:
    made = Talker(machine.environment(PYTHONPATH=search_path(PROGRAMS)), "-c", OTHER)
    made.hear()
    yield made
    made.process.kill()
    made.close()


class Family:
    """Processes of one round, each held by pidfd."""

    def __init__(self, pids: list[int]) -> None:
        self.pidfds = {}
        for pid in pids:
            try:
                self.pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # the trainer of orphans

    def ended(self) -> set[int]:
        return {pid for pid, pidfd in self.pidfds.items() if has_ended(pidfd)}

    def close(self) -> None:
        for pidfd in self.pidfds.values():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            else:
                until_ended(pidfd)
            os.close(pidfd)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def intended(machine: Bench) -> set[int]:
    """Whom the audit log said that something would be done to; a line cut by a kill counts for nobody."""
    pids = set()
    for record in machine.audit():
        if record["event"] == "intend":
            target = record.get("target") or record["step"]["target"]
            pids.add(target["process"]["pid"])
    return pids


def words_for(kind: str, pids: list[int], other: int) -> tuple[str, ...]:
    return {
        "free": ("free", "--yes", "--up-to", "kill", "--grace", "0.2s"),
        "kill": ("kill", str(pids[0]), "--tree", "--yes", "--grace", "0.2s"),
        "trim": ("trim", str(other)),
    }[kind]


def killed_after(machine: Bench, words: tuple[str, ...], moment_s: float) -> bool:
    """Run vram and kill it; return whether it still ran by then."""
    argv = [sys.executable, "-m", "vram", *words]
    vram = machine.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        vram.wait(moment_s)
    except subprocess.TimeoutExpired:
        vram.kill()
    return vram.wait() == -signal.SIGKILL


@pytest.mark.fault(10)
def test_who_is_not_ended_runs_on_and_who_is_ended_was_written_down(
    machine: Bench, trees: Talker, other: Talker, tally: Tally
) -> None:
    chance = random.Random(10)
    kinds = {"free": "orphans", "kill": "live", "trim": "live"}
    # As long as a command takes here: a moment chosen in there is one in which it is at work.
    whole_s = dict.fromkeys(kinds, 0.0)
    for kind, shape in kinds.items():
        family = Family(pids := json.loads(trees.ask(shape)))
        began = time.monotonic()
        done = machine.vram(*words_for(kind, pids, other.pid))
        whole_s[kind] = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        assert family.ended() == (set() if kind == "trim" else set(family.pidfds))
        family.close()
    wrongs = []
    for at in range(KILLS):
        kind = chance.choice(list(kinds))
        family = Family(pids := json.loads(trees.ask(kinds[kind])))
        landed = killed_after(machine, words_for(kind, pids, other.pid), chance.uniform(0, whole_s[kind]))
        # One that was asked to end may still be at it: who is not named must stay, and does.
        ended = family.ended()
        living = (other.pid, *(set(family.pidfds) - ended))
        found = {
            "ended without a word": ended - intended(machine),
            "stopped": {pid for pid in living if state_of(pid) in "Tt"},
            "said": {other.ask()} - {"[] 5a5a5a5a\n"},
        }
        wrongs += [(at, kind, landed, what, who) for what, who in found.items() if who]
        family.close()
        tally.count(landed=int(landed), wrong=sum(map(len, found.values())))
    assert wrongs == []
    assert tally.landed > KILLS / 2


HUNG_UP = """
import signal, socket, time
from vram.payloads import delivery
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ours, theirs = socket.socketpair()
theirs.close()
try:
    delivery.send(ours, b"answer", time.monotonic() + 10)
except BrokenPipeError:
    print("goes on")
"""


@pytest.mark.fault(10)
def test_a_visitor_that_dies_before_it_is_answered_does_not_take_the_program_along() -> None:
    """Programs whose output goes into pipes often let SIGPIPE end them."""
    done = subprocess.run([sys.executable, "-c", HUNG_UP], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
