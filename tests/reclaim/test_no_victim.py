"""Ordinary users try to have root's `vram free` end a healthy process; real processes, real users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ghosts.conftest import held_by
from tests.needs import needs, skip_without
from tests.patience import until, until_readable
from tests.reach import sandbox
from tests.reclaim.conftest import Bench
from vram.host.local.processes import LocalProc
from vram.units import GIB
from vram.virtualgpu.demos import PROGRAMS

SCENES = Path(__file__).with_name("hostile_scenes.py")
ROUNDS = int(os.environ.get("VRAM_SCENES", "1"))
# As in a container with Docker's own filters: the kernel does not compare open file descriptions.
REFUSED_KCMP = (sys.executable, sandbox.__file__, "errno-kcmp")

pytestmark = needs("root", detail="only root can become another user")


@contextmanager
def scene(machine: Bench, *words: str) -> Iterator[list[int]]:
    """The pids of those that must live."""
    environment = machine.environment(PYTHONPATH=str(PROGRAMS))
    if not machine.real:
        for path in (opened := Path(environment["VRAM_VIRTUAL_GPU"]), *opened.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
    with subprocess.Popen(
        [sys.executable, str(SCENES), *words], env=environment, stdin=-1, stdout=-1, text=True
    ) as played:
        assert played.stdin is not None
        assert played.stdout is not None
        until_readable(played.stdout, lambda: "the scene does not begin")
        line = played.stdout.readline()
        assert line, "the scene could not be played"
        yield json.loads(line)
        played.stdin.close()


def initialised_cuda(pid: int) -> bool | None:
    found = LocalProc().facts(pid)
    assert found is not None, f"pid {pid} has ended"
    return found[1].initialised_cuda


@pytest.mark.fault(34)
@pytest.mark.parametrize("name", ["in_flight", "handed_over"])
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_who_holds_a_handle_lives(machine: Bench, name: str, round_: int) -> None:
    with scene(machine, name) as healthy:
        done = machine.vram("free", "--yes", "--json")
        assert json.loads(done.stdout)["plan"]["steps"] == []
        for pid in healthy:
            os.kill(pid, 0)


@pytest.mark.fault(34)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_who_has_descriptors_and_no_mapping_is_named_and_lives(machine: Bench, round_: int) -> None:
    with scene(machine, "executed") as (holder,):
        assert held_by(machine.why(), holder) >= 2 * GIB
        done = machine.vram("free", "--yes", "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["plan"]["steps"]) == (1, [])
        assert [each["pid"] for each in answer["skipped"]] == [holder]
        os.kill(holder, 0)


@pytest.mark.fault(34)
@pytest.mark.parametrize("name", ["daemon", "flooded_daemon"])
@pytest.mark.parametrize("prefix", [(), REFUSED_KCMP], ids=["compared", "not compared"])
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_the_daemon_of_a_living_process_lives(
    machine: Bench, name: str, prefix: tuple[str, ...], round_: int
) -> None:
    if prefix and "kcmp" not in sandbox.NUMBERS:
        skip_without("kernel", "the numbers of its system calls are not known here")
    with scene(machine, name) as (helper,):
        done = machine.vram("free", "--yes", "--json", prefix=prefix)
        assert json.loads(done.stdout)["plan"]["steps"] == [], done.stdout
        os.kill(helper, 0)
        assert initialised_cuda(helper) is False


@pytest.mark.fault(34)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_daemons_that_are_starting_live(machine: Bench, round_: int) -> None:
    with scene(machine, "starting_daemons") as daemons:
        done = machine.vram("free", "--yes", "--json")
        assert json.loads(done.stdout)["plan"]["steps"] == [], done.stdout
        until(lambda: all(map(initialised_cuda, daemons)), lambda: [*map(initialised_cuda, daemons)])
