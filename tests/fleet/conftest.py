"""Fleets of virtual nodes: over ssh on loopback, and in a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from tests.fleet import sshd
from tests.needs import require
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import FORK, DemoProgram

ROOT = Path(__file__).parents[2]


class FleetRun(NamedTuple):
    """What `vram fleet` printed, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes of --json by name."""
        return {node["name"]: node for node in json.loads(self.output)["nodes"]}


def vram_fleet(*words: object, width: int = 80, **environment: str) -> FleetRun:
    done = subprocess.run(
        [sys.executable, "-m", "vram", "fleet", *map(str, words)],
        env={**os.environ, "COLUMNS": str(width), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return FleetRun(done.returncode, done.stdout, done.stderr)


def in_time(*words: object, of: Sequence[str]) -> FleetRun:
    """Ask with a deadline that some nodes overrun and those of *of* keep: a longer one where it is too short.

    How soon a node answers is the machine's affair.
    """
    for deadline_s in (8, 24, 72):
        run = vram_fleet(*words, "--json", "--deadline", f"{deadline_s}s")
        if run.status != 3 or all(run.nodes[name]["code"] != "no-answer" for name in of):
            break
    return run


def node_environment(gpu: VirtualGpu) -> dict[str, str]:
    """What a program on a virtual node needs, and nothing of ours besides."""
    return gpu.environment({"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])})


@pytest.fixture(scope="session")
def ssh_cluster(
    tmp_path_factory: pytest.TempPathFactory, native_libraries: Path
) -> Iterator[sshd.SshCluster]:
    require("ssh", "sshd")
    cluster = sshd.SshCluster(tmp_path_factory.mktemp("ssh"))
    with VirtualGpu.create(gpus=2) as gpu:
        there, real = node_environment(gpu), sshd.real_vram()
        cluster.node("good", real, there)
        cluster.node("stranger", real, there, key="stranger_key")
        cluster.node("old", "echo 'vram: no such command' >&2; exit 2", there)
        cluster.node("hangs", f"exec cat {cluster.gate.path}", there)
        cluster.node("floods", "exec yes '{\"schema\": 1}'", there)
        cluster.node("newer", f'{real[5:]} | sed \'s/"schema": 1,/"schema": 99,/\'', there)
        cluster.node("bare", "exit 0", {})
        (cluster.folder / "bare" / "vram").unlink()
        cluster.refusing("refuses")
        cluster.silent("silent")
        try:
            yield cluster
        finally:
            cluster.close()


class RayFleet(NamedTuple):
    """A Ray cluster of virtual nodes: ``nodes`` by name, to be removed one by one."""

    address: str
    cluster: Any
    nodes: dict[str, Any]
    ghost: DemoProgram


@pytest.fixture(scope="session")
def ray_fleet(tmp_path_factory: pytest.TempPathFactory, native_libraries: Path) -> Iterator[RayFleet]:
    """Four nodes: a healthy one, one with a ghost, one with a newer vram, one whose vram hangs."""
    require("ray")
    from ray import cluster_utils

    folder = tmp_path_factory.mktemp("ray")
    gate = sshd.Gate(folder / "gate")
    with ExitStack() as cleanup, pytest.MonkeyPatch.context() as patched:
        # Not /tmp/ray, which may be another user's. The paths of its sockets must be short.
        patched.setenv("RAY_TMPDIR", cleanup.enter_context(TemporaryDirectory(prefix="ray-", dir="/tmp")))
        gpus = {
            name: cleanup.enter_context(VirtualGpu.create(gpus=2))
            for name in ("healthy", "ghostly", "newer", "stuck")
        }
        ghost = cleanup.enter_context(DemoProgram(gpus["ghostly"], FORK.program, FORK.size))
        FORK.prepare(ghost)
        cleanup.callback(gate.open)
        cluster = cluster_utils.Cluster(initialize_head=False)
        cleanup.callback(cluster.shutdown)
        other = {"newer": _newer_vram(folder), "stuck": _stuck_vram(folder, gate)}
        nodes = {}
        for name, gpu in gpus.items():
            there = node_environment(gpu)
            if name in other:
                there["PYTHONPATH"] = f"{other[name]}:{there['PYTHONPATH']}"
            nodes[name] = cluster.add_node(
                num_cpus=1,
                num_gpus=0,
                node_name=name,
                env_vars=there,
                include_dashboard=False,
                object_store_memory=80 << 20,
            )
        yield RayFleet(cluster.address, cluster, nodes, ghost)


def _newer_vram(folder: Path) -> Path:
    """A vram of another version: its snapshots have a schema that nobody knows yet."""
    program = """
import json, sys
print(json.dumps({"schema": 99, "program": "vram 9.9.0", "everything": "is different"}))
"""
    return _package(folder / "newer", program)


def _stuck_vram(folder: Path, gate: sshd.Gate) -> Path:
    return _package(folder / "stuck", f"open({str(gate.path)!r}).read()")


def _package(folder: Path, program: str) -> Path:
    (folder / "vram").mkdir(parents=True)
    (folder / "vram" / "__init__.py").touch()
    (folder / "vram" / "__main__.py").write_text(program)
    return folder
