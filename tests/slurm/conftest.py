"""Slurm clusters that run vram's hooks: one that tracks processes by their parents, one by control groups."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip_without
from tests.slurm.cluster import Cluster, Running, why_no_cgroups, why_not

HOOKS = ("Prolog", "Epilog")
DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"


class Site(Cluster):
    """A cluster whose prolog and epilog are vram's, and what they wrote."""

    def events(self, job: str | int, hook: str = "epilog") -> list[dict[str, Any]]:
        path = self.folder / "log" / "vram"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [each for each in lines if str(each["job"]) == str(job) and each["hook"] == hook]

    def result(self, job: str | int, hook: str = "epilog") -> dict[str, Any]:
        (found,) = [each for each in self.events(job, hook) if each["event"] == "result"]
        return found

    def ended(self, job: str | int, hook: str = "epilog") -> dict[int, dict[str, Any]]:
        return {each["pid"]: each for each in self.events(job, hook) if each["event"] == "ended"}

    def audit(self) -> list[dict[str, Any]]:
        path = self.state_folder / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def end_leftovers(self) -> None:
        """End what jobs of an earlier test left: the supervisor's own children, besides its daemons."""
        daemons = {"munged", "slurmctld", "slurmd"}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = path.read_text().partition("(")[2].rpartition(")")
                if int(rest.split()[1]) == self.supervisor and name not in daemons:
                    os.kill(int(path.parent.name), signal.SIGKILL)

    @property
    def state_folder(self) -> Path:
        """Root's, found without HOME."""
        return self.folder / "home" / ".local" / "state" / "vram"


def example_conf() -> dict[str, str]:
    """The lines for slurm.conf that are shipped."""
    lines = (DEPLOY / "slurm.conf.example").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key: value for key, _, value in pairs}


def _require() -> None:
    if reason := why_not():
        skip_without("slurm", reason)


@pytest.fixture(scope="session")
def _plain_site(native_libraries: Path) -> Iterator[Site]:
    _require()
    settings = {"gres": "Name=shard Count=64", "node_gres": "gpu:2,shard:64"}
    with Site.start(gpus=2, proctrack="linuxproc", hooks=HOOKS, **settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _cgroup_site(native_libraries: Path) -> Iterator[Site]:
    _require()
    if reason := why_no_cgroups():
        skip_without("cgroups", reason)
    hooks = (*HOOKS, "HealthCheckProgram")
    conf = {key: value for key, value in example_conf().items() if key not in hooks}
    with Site.start(gpus=2, proctrack="cgroup", hooks=hooks, conf=conf) as cluster:
        yield cluster


def _fresh(cluster: Site) -> Site:
    """As after its start, whatever the test before did to it."""
    for hook in ("prolog", "epilog", "health"):
        cluster.options(hook)
    cluster.gpu.clear_faults()
    if jobs := cluster.run("squeue", "-h", "-o", "%A").stdout.split():
        cluster.run("scancel", *jobs)
    cluster.until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "no job is left")
    cluster.end_leftovers()
    if "drain" in cluster.state():
        cluster.resume()
    return cluster


@pytest.fixture
def site(_plain_site: Site) -> Site:
    """Slurm that tracks processes by their parents: what a daemon leaves, it leaves behind."""
    return _fresh(_plain_site)


@pytest.fixture
def cgroup_site(_cgroup_site: Site) -> Site:
    """Slurm that keeps a control group for every job."""
    return _fresh(_cgroup_site)


@pytest.fixture
def beside() -> Iterator[list[Running]]:
    """Whatever goes on beside the job under test; ended with it."""
    running: list[Running] = []
    yield running
    for each in running:
        each.close()
