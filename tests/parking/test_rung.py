"""Park as a rung of the ladder: its four verbs, and the way back."""

from __future__ import annotations

from tests.parking.conftest import CHECKPOINTED, RUNNING, Machine, runs_on

STEP = """
import json
from vram.errors import VramError
from vram.host.local import LocalHost
from vram.model.plan import Step
from vram.reclaim import identity
from vram.reclaim.steps.park import Park
host, rung = LocalHost(), Park()
step = Step(kind="park", target=identity.capture(host, {pid}), gpus=(0,), predicted_bytes=610271232,
            loses="nothing", reversible=True, reason="idle")
"""


def test_the_four_verbs_and_the_way_back(machine: Machine) -> None:
    worker = machine.worker()
    told = machine.api(
        STEP.format(pid=worker.pid)
        + """
rung.check(host, step)
said = [rung.describe(step), rung.verify(host, step), rung.apply(host, step, 60.0), rung.verify(host, step)]
print(json.dumps([*said, rung.undo(host, step, 60.0), rung.verify(host, step)]))
"""
    )
    assert told == [
        f"park pid {worker.pid}: move 582.0 MiB of its GPU memory into host memory",
        False,
        f"parked pid {worker.pid}: 582.0 MiB moved; `vram unpark {worker.pid}` brings it back",
        True,
        f"pid {worker.pid} is back on its GPU",
        False,
    ]
    assert runs_on(worker)


def test_check_refuses_what_apply_could_not_do_and_touches_nothing(machine: Machine) -> None:
    machine.gpu.set(mig="1g.18gb")
    worker = machine.worker()
    told = machine.api(
        STEP.format(pid=worker.pid)
        + """
try:
    rung.check(host, step)
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
