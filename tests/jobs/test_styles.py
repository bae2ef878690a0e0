"""Every way of launching a program on a GPU: an orphan where its launcher is dead, and only there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import pytest

from tests.jobs.conftest import JobsMachine, read, require_container
from tests.jobs.styles import AGENT, CONTAINED, DETACHED, INHERITED, LAUNCHED, Style
from tests.patience import until, until_ended


def each(styles: Iterable[Style]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "style", [pytest.param(style, id=style.name, marks=style.marks) for style in styles]
    )


def play(machine: JobsMachine, style: Style) -> None:
    """Launch it, and kill whom it says."""
    process = machine.start(machine.command(style.command))
    machine.wait_for(*style.names)
    if style.leaves:
        until(lambda: process.poll() is not None)
    for name in style.killed:
        above, _, child = name.rpartition(" of ")
        if above:
            machine.kill_above(child, {"parent": (1,), "parent of parent": (2,), "parents": (1, 2)}[above])
        else:
            machine[name].kill()
    for name in style.gone:
        until_ended(machine[name].pidfd)


def require_as_expected(machine: JobsMachine, style: Style) -> None:
    account = read()
    expected = {
        **dict.fromkeys(style.orphans, "orphan"),
        **dict.fromkeys(style.healthy, "healthy"),
        **dict.fromkeys(style.stopped, "stopped"),
    }
    assert machine.states(account) == expected
    assert machine.orphan_findings(account) == ([sorted(style.orphans)] if style.orphans else [])


@each((*LAUNCHED, *DETACHED))
def test_alone(machine: JobsMachine, style: Style) -> None:
    play(machine, style)
    require_as_expected(machine, style)


@each(CONTAINED)
def test_in_a_container(machine: JobsMachine, style: Style) -> None:
    require_container()
    play(machine, style)
    require_as_expected(machine, style)


@pytest.mark.parametrize("first", ["torchrun", "vLLM"])
def test_seen_from_inside_a_container_its_first_process_is_a_launcher(
    machine: JobsMachine, first: str
) -> None:
    """There pid 1 is no init that adopts others: it has started them."""
    require_container()
    style = next(style for style in CONTAINED if style.name == f"{first} as a container's first process")
    play(machine, style)
    own = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    enter = ("nsenter", "--target", str(machine["head"].pid), *own, "--pid", "--mount")
    states = [row["state"] for row in machine.ask("ps", prefix=enter)["processes"]]
    assert len(states) == 2
    assert "orphan" not in states


@each(INHERITED)
def test_what_a_rank_started_is_not_of_its_job(machine: JobsMachine, style: Style) -> None:
    play(machine, style)
    require_as_expected(machine, style)


@pytest.mark.parametrize("outlived", ["rank0", "rank1"])
def test_a_helper_does_not_take_the_place_of_its_dead_rank(machine: JobsMachine, outlived: str) -> None:
    """It says that it is that rank, and the rank is not there to say otherwise."""
    machine.start(machine.command(f"{AGENT} $here/with_helper.py $socket rank{{RANK}} nohup"))
    machine.wait_for("head", "rank0", "rank1", "helper-rank0", "helper-rank1")
    machine[outlived].kill()
    machine["head"].kill()
    account = read()
    (left,) = {"rank0", "rank1"} - {outlived}
    assert machine.states(account) == {left: "orphan", "helper-rank0": "healthy", "helper-rank1": "healthy"}
    assert machine.orphan_findings(account) == [[left]]


@pytest.mark.parametrize(
    "launcher",
    ["torch_agent.py", "deepspeed_launch.py", "mpi_launch.py openmpi", "mpi_launch.py hydra"],
    ids=["torchrun", "deepspeed", "Open MPI", "Hydra"],
)
def test_an_orphan_beside_the_job_that_was_started_in_its_place(machine: JobsMachine, launcher: str) -> None:
    """The same command again, with the same address: the first rank, which had its port, is dead."""
    rank = {"mpi_launch.py openmpi": "OMPI_COMM_WORLD_RANK", "mpi_launch.py hydra": "PMI_RANK"}
    for job in ("old", "new"):
        name = f"{job}{{{rank.get(launcher, 'RANK')}}}"
        command = machine.command(f"$python $here/{launcher} $socket 2 $worker {name}")
        machine.start(command, env={"HEAD": job})
        machine.wait_for(job, f"{job}0", f"{job}1")
        if job == "old":
            machine["old0"].kill()
            machine["old"].kill()
    account = read()
    assert machine.states(account) == {"old1": "orphan", "new0": "healthy", "new1": "healthy"}
    assert machine.orphan_findings(account) == [["old1"]]


def test_a_stopped_rank_stays_stopped(machine: JobsMachine) -> None:
    """Somebody looks at it with a debugger, or pressed Ctrl-Z."""
    style = next(style for style in LAUNCHED if style.name == "torchrun, agent killed")
    play(machine, style)
    machine["rank0"].send(signal.SIGSTOP)
    states = until(lambda: (found := machine.states(read()))["rank0"] != "orphan" and found)
    assert states == {"rank0": "stopped", "rank1": "orphan"}
