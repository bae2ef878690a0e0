"""Row 10: vram is killed at a random moment while it ends a whole job.

Nobody but the job's processes is signalled, none of these is left stopped, the audit log names everybody who
has ended, and running the command again ends what is left. ``VRAM_KILLS=1000`` makes it as long as the
promise is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.record import Tally
from tests.faults.test_vram_killed import OTHER, Talker, state_of
from tests.jobs.conftest import JobsMachine
from tests.jobs.conftest import machine as machine  # the fixture
from tests.patience import until
from tests.search_path import search_path
from vram.errors import ExitCode
from vram.virtualgpu.demos import PROGRAMS

KILLS = int(os.environ.get("VRAM_KILLS", "8"))
RANKS = 3
NEIGHBOUR = ("neighbour", "neighbour0", "neighbour1")
GRACE_S = 0.2
# After the first word in the audit log: SIGTERM, the grace of those that ignore it, SIGKILL.
ACTING_S = {True: 1.2 * GRACE_S, False: 0.2 * GRACE_S}


class RankJob:
    """Ranks of torchrun, with their agent or orphaned; *stubborn*, they end only by SIGKILL."""

    def __init__(self, machine: JobsMachine, number: int, *, orphaned: bool, stubborn: bool) -> None:
        self._machine = machine
        self.agent = f"agent{number}"
        self.ranks = [f"{number}rank{rank}" for rank in range(RANKS)]
        command = f"$python $here/torch_agent.py $socket {RANKS} $worker {number}rank{{RANK}}"
        self._launched = machine.start(
            machine.command(command),
            env={"HEAD": self.agent, **({"IGNORES_SIGTERM": "1"} if stubborn else {})},
        )
        machine.wait_for(self.agent, *self.ranks)
        self.orphaned = orphaned
        if orphaned:
            machine[self.agent].kill()
            self._launched.wait()

    @property
    def living(self) -> list[int]:
        """The pids of the ranks that have not ended."""
        return [self._machine[name].pid for name in self.ranks if self._machine[name].lives]

    @property
    def ended(self) -> set[int]:
        names = self.ranks if self.orphaned else [self.agent, *self.ranks]
        return {self._machine[name].pid for name in names if not self._machine[name].lives}

    def words(self) -> tuple[str, ...]:
        """The command that ends it."""
        which = ("free", "--orphans") if self.orphaned else ("kill", "--job", str(self.living[-1]))
        return (*which, "--yes", "--grace", f"{GRACE_S}s")

    def close(self) -> None:
        self._machine.end(self.agent, *self.ranks)


@pytest.fixture
def other(machine: JobsMachine) -> Iterator[Talker]:
    """Of no job; it notes every signal that reaches it."""
    made = Talker({**machine.environment, "PYTHONPATH": search_path(PROGRAMS)}, "-c", OTHER)
    made.hear()
    yield made
    made.process.kill()
    made.close()


def log_lines(machine: JobsMachine) -> list[dict[str, object]]:
    """The records of the audit log; of a line that a kill cut off, nothing."""
    found = []
    with suppress(FileNotFoundError):
        for line in (machine.folder / "state/vram/audit.jsonl").read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def intended(machine: JobsMachine) -> set[int]:
    return {
        each["step"]["target"]["process"]["pid"] for each in log_lines(machine) if each["event"] == "intend"
    }


def killed(machine: JobsMachine, words: tuple[str, ...], after_s: float, *, acting: bool) -> bool:
    """Run vram and kill it *after_s*, or so long after it has said what it will do; whether it still ran."""
    before = len(intended(machine))
    vram = subprocess.Popen(
        [sys.executable, "-m", "vram", *words],
        env=machine.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if acting:
        until(lambda: vram.poll() is not None or len(intended(machine)) > before)
    try:
        vram.wait(after_s)
    except subprocess.TimeoutExpired:
        vram.kill()
    return vram.wait() == -signal.SIGKILL


def run_again(machine: JobsMachine, job: RankJob) -> list[str]:
    """Run the command once more, which must end who is left; what went wrong with that."""
    while job.living:
        words = job.words()
        done = machine.vram(*words)
        # One that was asked to end before may have ended by itself meanwhile: then another is named.
        if job.living and (job.orphaned or done.returncode == ExitCode.OK or int(words[2]) in job.living):
            return [f"{job.living} {done.returncode} {done.stdout} {done.stderr}"]
    return []


@pytest.mark.fault(10)
def test_what_is_left_of_a_job_is_ended_by_the_next_run(
    machine: JobsMachine, other: Talker, tally: Tally
) -> None:
    machine.start(
        machine.command("$python $here/torch_agent.py $socket 2 $worker neighbour{RANK}"),
        env={"HEAD": NEIGHBOUR[0]},
    )
    machine.wait_for(*NEIGHBOUR)
    chance = random.Random(28)
    # As long as a command takes here: a moment chosen in there is one in which it is at work.
    whole_s = {}
    for number, orphaned in enumerate((False, True)):
        job = RankJob(machine, number, orphaned=orphaned, stubborn=False)
        began = time.monotonic()
        done = machine.vram(*job.words())
        whole_s[orphaned] = time.monotonic() - began
        assert (done.returncode, job.living) == (0, []), done.stdout + done.stderr
        job.close()
    wrongs = []
    for at in range(KILLS):
        orphaned, stubborn, acting = (chance.random() < share for share in (0.5, 0.7, 0.8))
        job = RankJob(machine, 2 + at, orphaned=orphaned, stubborn=stubborn)
        after_s = chance.uniform(0, ACTING_S[stubborn] if acting else whole_s[orphaned])
        landed = killed(machine, job.words(), after_s, acting=acting)
        neighbours = {machine[name].pid: machine[name].lives for name in NEIGHBOUR}
        found = {
            "ended without a word": job.ended - intended(machine),
            "stopped": {pid for pid in (*neighbours, *job.living) if state_of(pid) in "Tt"},
            "not of the job, and ended": {pid for pid, lives in neighbours.items() if not lives},
            "signalled": {other.ask()} - {"[] 5a5a5a5a\n"},
            "named, and not of the job": intended(machine) & {other.pid, *neighbours},
            "not ended by the next run": run_again(machine, job),
        }
        wrongs += [(at, orphaned, stubborn, acting, what, who) for what, who in found.items() if who]
        job.close()
        tally.count(landed=int(landed), wrong=sum(map(len, found.values())))
    assert wrongs == []
    assert tally.landed > KILLS / 4, "it was seldom killed at its work"
