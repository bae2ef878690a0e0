"""A hundred programs that look like orphans but for one thing, beside two jobs that are: these are named.

As root, who may read everything, and as an ordinary user, who may not and must not guess.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import NamedTuple

import pytest

from tests.jobs.conftest import JobsMachine, read
from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.reclaim.test_shared_machine import as_another_user
from vram.virtualgpu import VirtualGpu

# "#" is another number for each: no two of them say that they are of one job.
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "3#"}
CLAIMS = {
    "nothing": {},
    "a rank": RANK,
    "torchrun": {
        **RANK,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_#/none_x/attempt_0/0/error.json",
    },
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "#",
    },
    # Its descriptor is not open any more: Python closes all others in whatever it starts.
    "Hydra": {"PMI_RANK": "#", "PMI_SIZE": "1000", "PMI_FD": "99"},
    # No pid is that large.
    "Jupyter": {"JPY_PARENT_PID": "4194304"},
    "all": {**RANK, "OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "0", "JPY_PARENT_PID": "4194304"},
}
LEADS = ("session", "group", "nothing")
LOOKS = {
    "plain": ("python", "$worker", "@"),
    "unbuffered": ("python", "-u", "$worker", "@"),
    "torchrun": ("torchrun", "$worker", "@"),
    "a title": ("bench-of-VLLM::EngineCore", "$worker", "@"),
    "a pool's last word": ("python", "$worker", "@", "--multiprocessing-fork"),
    "a kernel's name": ("python", "$here/try_ipykernel.py", "$socket", "@"),
    "a rank's option": ("python", "$worker", "@", "--local_rank=0"),
}


class Friend(NamedTuple):
    """One that is no orphan: either something is not as a launcher does it, or its parent lives."""

    claim: str
    leads: str
    looks: str
    adopted: bool

    @property
    def name(self) -> str:
        parent = "adopted" if self.adopted else "its parent lives"
        return f"{self.looks} of {self.claim}, leads {self.leads}, {parent}"

    def line(self, machine: JobsMachine, number: int) -> str:
        """What the crowd's launcher is told."""
        words = [machine.command(word) for word in LOOKS[self.looks]]
        argv = [part.replace("@", self.name) for word in words for part in word]
        said = {name: value.replace("#", f"{number:03}") for name, value in CLAIMS[self.claim].items()}
        wanted = {"argv": argv, "environment": said, "leads": self.leads, "adopted": self.adopted}
        return json.dumps(wanted) + "\n"


def looks_direct(claim: str, leads: str, looks: str) -> bool:
    """Whether nothing in /proc tells it from what a launcher starts."""
    if claim == "Open MPI":
        return leads == "group"
    return (claim, leads, looks) == ("torchrun", "session", "unbuffered")


def hundred() -> list[Friend]:
    """All that have a living parent and nothing else to tell, and of the others as many as it takes."""
    every = list(product(CLAIMS, LEADS, LOOKS))
    first = [Friend(*each, adopted=False) for each in every if looks_direct(*each)]
    others = [Friend(*each, adopted=True) for each in every if not looks_direct(*each)]
    return first + Random(28).sample(others, 100 - len(first))


def open_to_all(gpu: VirtualGpu) -> None:
    for path in (gpu.folder, *gpu.folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)


def start_crowd(machine: JobsMachine, crowd: Sequence[Friend], command: Sequence[str]) -> None:
    process = machine.start(command, env={"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"})
    assert process.stdin is not None
    process.stdin.writelines(friend.line(machine, at).encode() for at, friend in enumerate(crowd))
    process.stdin.close()


JOBS = ("rank0", "rank1", "worker0", "worker1")


@pytest.fixture
def crowded(machine: JobsMachine) -> JobsMachine:
    shutil.copy(machine.folder / "launchers" / "worker.py", machine.folder / "launchers" / "try_ipykernel.py")
    return machine


def test_only_the_two_jobs_are_named(crowded: JobsMachine) -> None:
    crowd = hundred()
    start_crowd(crowded, crowd, crowded.command("$python $here/crowd.py $socket"))
    crowded.start(crowded.command("$python $here/torch_agent.py $socket 2 $worker rank{RANK}"))
    crowded.start(crowded.command("$python $here/pool.py spawn $socket"), env={"HEAD": "pool"})
    crowded.wait_for("crowd", "head", "pool", *JOBS, *(each.name for each in crowd))
    crowded["head"].kill()
    crowded["pool"].kill()
    account = read()
    states = crowded.states(account)
    assert {name for name, state in states.items() if state == "orphan"} == set(JOBS)
    assert crowded.orphan_findings(account) == [["rank0", "rank1"], ["worker0", "worker1"]]
    assert len(states) == len(crowd) + len(JOBS)


@needs("root", detail="only root can become another user")
def test_an_ordinary_user_sees_its_own_orphans_and_guesses_at_no_others(
    crowded: JobsMachine, virtual_gpu: VirtualGpu
) -> None:
    """Whoever may not read a process's environment or program cannot tell who started it."""
    open_to_all(virtual_gpu)
    crowd = hundred()[:30]

    def as_nobody(command: str, **environment: str) -> list[str]:
        wanted = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VRAM_VIRTUAL_GPU", "PYTHON_DISABLE_REMOTE_DEBUG")
        given = {name: crowded.environment[name] for name in wanted if crowded.environment.get(name)}
        return as_another_user(crowded.text(command), **given, **environment)

    start_crowd(crowded, crowd, as_nobody("$$PYTHON $here/crowd.py $socket"))
    crowded.start(as_nobody("$$PYTHON $here/pool.py spawn $socket", HEAD="nobodys-pool"))
    crowded.wait_for("crowd", "nobodys-pool", "worker0", "worker1", *(each.name for each in crowd))
    theirs = {"worker0": "ours0", "worker1": "ours1"}
    for name, other in theirs.items():
        crowded.rename(name, other)
    crowded.start(crowded.command("$python $here/pool.py spawn $socket"), env={"HEAD": "roots-pool"})
    crowded.wait_for("roots-pool", "worker0", "worker1")
    crowded["nobodys-pool"].kill()
    crowded["roots-pool"].kill()
    open_to_all(virtual_gpu)

    done = subprocess.run(
        as_nobody("$$PYTHON -m vram ps --json --deadline 60s"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    names = crowded.names()
    rows = json.loads(done.stdout)["processes"]
    assert {names[row["pid"]] for row in rows if row["state"] == "orphan"} == set(theirs.values())
    assert crowded.orphan_findings(read()) == [["ours0", "ours1"], ["worker0", "worker1"]]
