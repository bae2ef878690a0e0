"""`vram free --caches` skips programs that have given up system calls; one that ends is a failed step."""

from __future__ import annotations

import json

import pytest

from tests.needs import skip_without
from tests.reach import sandbox
from tests.reach.conftest import World, world
from vram.errors import ExitCode

__all__ = ["world"]


@pytest.fixture(autouse=True)
def known_machine() -> None:
    if not sandbox.NUMBERS:
        skip_without("kernel", "the numbers of its system calls are not known here")


@pytest.mark.fault(35)
@pytest.mark.parametrize("filters", ["kill-connect", "trap-connect", "strict"])
def test_who_has_given_up_system_calls_is_skipped_and_lives(world: World, filters: str) -> None:
    subject = world.subject("reading", f"gives-up={filters}")
    other = world.subject("reading")
    done = world.vram("free", "--caches", "--yes", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    assert [step["target"]["process"]["pid"] for step in answer["plan"]["steps"]] == [other.pid]
    (skipped,) = [each for each in answer["skipped"] if each["pid"] == subject.pid]
    assert "seccomp" in skipped["why"]
    assert "park" not in skipped["command"]
    assert "alive" in subject.ask()


@pytest.mark.fault(35)
def test_many_of_them_are_one_line(world: World) -> None:
    subjects = [world.subject("reading", "gives-up=kill-connect") for _ in range(6)]
    done = world.vram("free", "--caches", "--yes")
    assert done.stdout.count("(seccomp)") == 1, done.stdout
    assert all("alive" in subject.ask() for subject in subjects)


@pytest.mark.fault(35)
def test_one_that_is_named_is_refused(world: World) -> None:
    subject = world.subject("reading", "gives-up=kill-connect")
    done = world.vram("free", "--pid", subject.pid, "--yes")
    assert (done.returncode, "seccomp" in done.stderr) == (ExitCode.NOT_REACHABLE, True)
    assert "alive" in subject.ask()


@pytest.mark.fault(35)
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_one_that_ends_meanwhile_is_a_failed_step(world: World, others: int) -> None:
    subject = world.subject("reading", "dies-at=socket.connect")
    living = [world.subject("reading") for _ in range(others)]
    done = world.vram("free", "--caches", "--yes", "--json")
    assert done.returncode == ExitCode.PARTIAL, done.stdout
    found = json.loads(done.stdout)["receipt"]["outcomes"]
    outcomes = {each["step"]["target"]["process"]["pid"]: each for each in found}
    assert outcomes[subject.pid]["status"] == "failed"
    assert outcomes[subject.pid]["message"] == f"pid {subject.pid} ended while vram was in it"
    assert all(outcomes[each.pid]["status"] == "done" and "alive" in each.ask() for each in living)
    assert "failed" in [each["status"] for each in world.audit() if "status" in each]


@pytest.mark.fault(35)
def test_no_number_of_bytes_makes_up_for_it(world: World) -> None:
    """Its memory is back, and more than was asked for: that is no success."""
    world.subject("reading", "dies-at=socket.connect")
    done = world.vram("free", "--more", "1MiB", "--caches", "--yes")
    assert done.returncode == ExitCode.PARTIAL, done.stdout
