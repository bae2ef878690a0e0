"""`vram limit`: it shows, asks, sets through the driver, logs, and refuses before anything happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import Popen
from typing import Any

import pytest

from tests.limits.conftest import LEAF, LimitedMachine
from tests.needs import needs
from vram.cli.commands.limit import slice_path
from vram.errors import ExitCode, UsageError
from vram.units import GIB

pytestmark = [pytest.mark.native, needs("root")]

Hold = Callable[..., Popen[str]]
USER = "/user.slice/user-1000.slice"


def listed(machine: LimitedMachine) -> dict[str, dict[str, Any]]:
    found = json.loads(machine.vram("limit", "--json").stdout)["limits"]
    return {each["limit"]["cgroup"]: each["limit"] for each in found}


def audit(machine: LimitedMachine) -> list[dict[str, Any]]:
    path = machine.private / "vram" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_without_yes_it_is_only_shown(machine: LimitedMachine, hold: Hold) -> None:
    hold(4 * GIB, USER)
    done = machine.vram("limit", "--gpu", "0", "--slice", "user-1000.slice", "2GiB", code=ExitCode.HELD)
    assert "GPU 0: at most 2.0 GiB for control group" in done.stdout
    assert f"  {USER}" in done.stdout
    assert "now: no limit, 4.5 GiB in use" in done.stdout
    assert "nothing is taken away" in done.stdout
    assert listed(machine)[USER]["hard"] is None
    assert audit(machine) == []


def test_a_limit_is_set_logged_enforced_and_removed(machine: LimitedMachine, hold: Hold) -> None:
    words = ("limit", "--gpu", "0", "--slice", "user-1000.slice")
    done = machine.vram(*words, "2GiB", "--guarantee", "1GiB", "--yes")
    assert "set: the driver answers 2.0 GiB for it" in done.stdout
    assert listed(machine)[USER] == {"cgroup": USER, "hard": 2 * GIB, "soft": GIB, "used": 0}
    hold(4 * GIB, USER, fails=True)
    hold(4 * GIB)
    intent, outcome = audit(machine)
    assert (intent["action"], intent["cgroup"], intent["hard"], intent["soft"]) == (
        "limit",
        USER,
        2 * GIB,
        GIB,
    )
    assert (outcome["token"], outcome["status"], outcome["after"]) == (
        intent["token"],
        "done",
        [GIB, 2 * GIB],
    )
    machine.vram(*words, "--remove", "--yes")
    assert USER not in listed(machine) or listed(machine)[USER]["hard"] is None
    hold(4 * GIB, USER)


def test_the_group_of_a_process_is_found_by_its_pid(machine: LimitedMachine, hold: Hold) -> None:
    process = hold(GIB, LEAF)
    answer = machine.vram("limit", "--gpu", "0", "--pid", str(process.pid), "8GiB", "--yes", "--json").stdout
    assert json.loads(answer)["change"]["cgroup"] == LEAF
    table = machine.vram("limit").stdout
    assert "8.0 GiB" in table
    assert "pod" in table


def test_where_the_kernel_counts_nothing_the_driver_is_asked_for_the_groups_of_its_processes(
    machine: LimitedMachine, hold: Hold
) -> None:
    """As on kernels before 6.14, where the driver counts by itself."""
    hold(GIB, LEAF)
    assert machine.vram("limit", "--gpu", "0", "--cgroup", LEAF, "8GiB", "--yes").returncode == 0
    (machine.gpu.folder / "cgroup" / "dmem.capacity").unlink()
    (found,) = listed(machine).values()
    assert (found["cgroup"], found["hard"], found["used"] > GIB) == (LEAF, 8 * GIB, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--cgroup", "/no/such.slice", "1GiB"), ExitCode.USAGE, "no control group /no/such.slice"),
        (("--cgroup", "/../etc", "1GiB"), ExitCode.USAGE, "no path of a control group"),
        (("--cgroup", USER, "900GiB"), ExitCode.USAGE, "more than GPU 0 has"),
        (("--cgroup", USER, "1GiB", "--guarantee", "2GiB"), ExitCode.USAGE, "more would be guaranteed"),
        (("--cgroup", "/plain.slice", "1GiB"), ExitCode.GOAL_IMPOSSIBLE, "no controller for device memory"),
    ],
    ids=["no such group", "not a path", "too much", "guarantee above the limit", "no controller"],
)
def test_refused_with_nothing_touched(
    machine: LimitedMachine, words: tuple[str, ...], code: ExitCode, said: str
) -> None:
    (machine.gpu.folder / "cgroup" / "plain.slice").mkdir()
    done = machine.vram("limit", "--gpu", "0", *words, "--yes", code=code)
    assert said in done.stderr
    assert {each["hard"] for each in listed(machine).values()} <= {None}


def test_a_driver_without_limits_is_said(machine: LimitedMachine) -> None:
    machine.gpu.set(driver_version="580.159.04")
    done = machine.vram(
        "limit", "--gpu", "0", "--cgroup", USER, "1GiB", "--yes", code=ExitCode.GOAL_IMPOSSIBLE
    )
    assert "driver 580.159.04 knows no limits by control group" in done.stderr
    assert "615" in done.stderr
    assert audit(machine) == []


def test_a_driver_that_hangs_is_given_up_on_and_logged(machine: LimitedMachine) -> None:
    machine.gpu.fail("nvmlDeviceSetMemoryLimits_v1", hang=True)
    words = ("limit", "--gpu", "0", "--cgroup", USER, "1GiB", "--yes", "--deadline", "2s")
    done = machine.vram(*words, code=ExitCode.PARTIAL)
    assert "did not answer in time" in done.stderr
    assert [each["event"] for each in audit(machine)] == ["intend", "outcome"]


@pytest.mark.parametrize(
    ("name", "path"),
    [("user-1000.slice", "/user.slice/user-1000.slice"), ("system", "/system.slice"), ("a-b-c.slice", None)],
)
def test_where_systemd_keeps_a_slice(name: str, path: str | None) -> None:
    assert slice_path(name) == (path or "/a.slice/a-b.slice/a-b-c.slice")


@pytest.mark.parametrize("name", ["", ".slice", "a--b.slice", "a/b.slice"])
def test_what_is_no_slice(name: str) -> None:
    with pytest.raises(UsageError):
        slice_path(name)
