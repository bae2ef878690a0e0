"""`vram fleet free`: plans by each node's own service, shown first, run only if they are still the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest

from tests.fleet import sshd
from tests.fleet.conftest import node_environment, vram_fleet
from tests.needs import require
from tests.serve.running import RunningService
from vram.errors import ExitCode
from vram.fleet.collect import CollectOptions, fleet_report, read_nodes
from vram.fleet.free import FleetPlanner, exit_code
from vram.fleet.transports.ssh import SshNodes
from vram.model.fleet import FleetReport
from vram.report.schema import shipped
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import FORK, DemoProgram


class Nodes:
    """Two nodes with a ghost each; only the first has a service."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.cluster = sshd.SshCluster(folder)
        stack.callback(self.cluster.close)
        self._stack = stack
        self.gpus = {name: stack.enter_context(VirtualGpu.create()) for name in ("served", "alone")}
        self.ghosts = {name: self.haunt(name) for name in self.gpus}
        place = folder / "service"
        place.mkdir()
        self.service = stack.enter_context(RunningService(place, self.gpus["served"]))
        for name, gpu in self.gpus.items():
            there = {**node_environment(gpu), "RUNTIME_DIRECTORY": str(place / "run")}
            if name == "alone":
                there["RUNTIME_DIRECTORY"] = str(folder / "nothing")
            self.cluster.node(name, sshd.real_vram(), there)

    def haunt(self, name: str) -> DemoProgram:
        program = self._stack.enter_context(DemoProgram(self.gpus[name], FORK.program, FORK.size))
        FORK.prepare(program)
        return program

    def lives(self, name: str) -> bool:
        pid = self.ghosts[name].pids["child"]
        return os.path.exists(f"/proc/{pid}") and "Z" not in _state(pid)

    @property
    def words(self) -> tuple[object, ...]:
        return ("--hosts", "served,alone", "--ssh-config", self.cluster.config, "--deadline", "60s")

    def transport(self) -> SshNodes:
        return SshNodes(("served", "alone"), config=str(self.cluster.config))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.fixture
def nodes(tmp_path: Path, native_libraries: Path) -> Iterator[Nodes]:
    require("ssh", "sshd")
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack)


def read(source: SshNodes, options: CollectOptions) -> FleetReport:
    return fleet_report(read_nodes(source, options), source="ssh", took_s=0.0)


def test_plans_are_shown_first_and_run_with_yes(nodes: Nodes) -> None:
    shown = vram_fleet("free", *nodes.words)
    assert shown.status == ExitCode.HELD
    assert f"pid {nodes.ghosts['served'].pids['child']}" in shown.output
    assert "plan " in shown.output
    assert "no vram service answers here" in shown.output
    assert "Nothing was touched" in shown.output
    assert nodes.lives("served")

    done = vram_fleet("free", *nodes.words, "--yes", "--json")
    assert done.status == ExitCode.PARTIAL, done.errors
    jsonschema.validate(json.loads(done.output), json.loads(shipped("fleet-free").read_bytes()))
    assert done.nodes["served"]["state"] == "freed", done.nodes["served"]
    assert done.nodes["served"]["returned_bytes"] > 4 * GIB
    assert done.nodes["alone"]["state"] == "refused"
    assert not nodes.lives("served")
    assert nodes.lives("alone")


def test_a_plan_that_is_not_the_one_shown_is_refused(nodes: Nodes) -> None:
    source, options = nodes.transport(), CollectOptions(names=("served",), node_s=60.0)
    planner = FleetPlanner(source, options)
    plans = planner.plan(read(source, options))
    assert [node.state for node in plans.nodes] == ["planned"]
    second = nodes.haunt("served")
    done = planner.run(plans)
    source.close()
    assert [node.state for node in done.nodes] == ["refused"], done
    assert "changed" in (done.nodes[0].message or "")
    assert exit_code(done) == ExitCode.PARTIAL
    assert nodes.lives("served")
    assert _state(second.pids["child"]) != "Z"


def test_a_node_that_fails_in_the_middle_is_a_line(nodes: Nodes) -> None:
    source, options = nodes.transport(), CollectOptions(names=("served",), node_s=60.0)
    planner = FleetPlanner(source, options)
    plans = planner.plan(read(source, options))
    nodes.cluster.close()
    done = planner.run(plans)
    source.close()
    assert [node.state for node in done.nodes] == ["unread"]
    assert "audit log" in (done.nodes[0].message or "")
    assert nodes.lives("served")
