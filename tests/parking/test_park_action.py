"""Park as an action of a plan: check, apply, verify, and the way back."""

from __future__ import annotations

import json
import os

import pytest

from tests.needs import skip_without
from tests.parking.conftest import CHECKPOINTED, RUNNING, Machine, runs_on
from tests.virtualgpu.programs import Program
from vram.host.local.process_limits import LocalProcessLimits
from vram.model.parking import reserve
from vram.units import GIB

STEP = """
import json
from vram.errors import VramError
from vram.host.local import LocalHost
from vram.model.plan import Step
from vram.reclaim import identity
from vram.reclaim.actions import action
host, park = LocalHost(), action("park")
step = Step(kind="park", target=identity.identify(host, {pid}), gpus=(0,), predicted_bytes=610271232,
            loses="nothing", reversible=True, reason="idle")
"""


def test_check_apply_verify_and_the_way_back(machine: Machine) -> None:
    worker = machine.worker()
    told = machine.api(
        STEP.format(pid=worker.pid)
        + """
checked = park.check(host, step) == step
said = [checked, park.verify(host, step), park.apply(host, step, 60.0), park.verify(host, step)]
print(json.dumps(said))
"""
    )
    assert told == [
        True,
        False,
        f"parked pid {worker.pid}: 582.0 MiB moved to host memory; resume it with `vram unpark {worker.pid}`",
        True,
    ]
    assert machine.state(worker.pid) == CHECKPOINTED
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


def test_check_refuses_what_apply_could_not_do_and_touches_nothing(machine: Machine) -> None:
    machine.gpu.set(mig="1g.18gb")
    worker = machine.worker()
    told = machine.api(
        STEP.format(pid=worker.pid)
        + """
try:
    park.check(host, step)
except VramError as error:
    print(json.dumps(str(error)))
"""
    )
    assert "MIG" in told
    assert machine.state(worker.pid) == RUNNING
    assert machine.audit() == []


def test_free_parks_a_process_that_is_named(machine: Machine) -> None:
    worker = machine.worker()
    done = machine.vram("free", "--pid", worker.pid, "--up-to", "park", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert machine.state(worker.pid) == CHECKPOINTED
    assert [line["pid"] for line in machine.parked()] == [worker.pid]
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


HALF = """
    cuda.start()
    cuda.alloc(int(os.environ["NBYTES"]))
    cuda.tell("ready")
    cuda.heard()
"""


@pytest.fixture
def halves(machine: Machine) -> list[Program]:
    """Two processes, each of which fits into the host's memory alone. Untouched bytes cost nothing."""
    limits = LocalProcessLimits().read(os.getpid())
    assert limits.memory_left is not None
    nbytes = (limits.memory_left - reserve(limits.memory_total)) * 6 // 10
    if 2 * nbytes > 130 * GIB:
        skip_without("small-host", "this machine could really park a whole H200")
    return [machine.program(HALF, NBYTES=str(nbytes)) for _ in range(2)]


def test_free_plans_no_parks_that_do_not_fit_together(machine: Machine, halves: list[Program]) -> None:
    """The second is refused before the first is touched."""
    named = [word for each in halves for word in ("--pid", each.pid)]
    done = machine.vram("free", "--more", f"{machine.used() - 1 * GIB}B", *named, "--up-to", "park", "--yes")
    assert done.returncode == 20, done.stdout
    assert "of host memory left" in done.stderr
    assert [machine.state(each.pid) for each in halves] == [RUNNING, RUNNING]
    assert machine.audit() == []


def test_free_parks_one_of_two_where_that_is_enough(machine: Machine, halves: list[Program]) -> None:
    named = [word for each in halves for word in ("--pid", each.pid)]
    done = machine.vram("free", "--more", "1GiB", *named, "--dry-run", "--json")
    assert [step["kind"] for step in json.loads(done.stdout)["plan"]["steps"]] == ["trim", "trim", "park"]


def test_a_plan_whose_parks_no_longer_fit_together_is_refused_whole(
    machine: Machine, halves: list[Program]
) -> None:
    first, second = (each.pid for each in halves)
    told = machine.api(
        f"""
import json
from msgspec.structs import replace
from vram.errors import CannotPark
from vram.host.local import LocalHost
from vram.reclaim import executor, plan
host = LocalHost()
drafts = [plan(only="park", pids=(pid,), host=host).plan for pid in ({first}, {second})]
both = replace(drafts[0], steps=(*drafts[0].steps, *drafts[1].steps))
executor.check(host, drafts[1])
try:
    executor.check(host, both)
except CannotPark as error:
    print(json.dumps(str(error)))
"""
    )
    assert told.startswith(f"pid {second} has ")
