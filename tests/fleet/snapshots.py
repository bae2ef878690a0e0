"""Snapshots of nodes, written by hand: healthy, with a ghost, and as bytes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.fleet.judge import JudgeRequest, judge_snapshot
from vram.model.fleet import FleetNode, Grouping
from vram.model.gpu import GpuFacts
from vram.model.observation import HostFacts, ProbeRun, Survey
from vram.units import GIB

NOW = 1_790_000_000.0


def healthy(name: str = "gpu-1", *, gpus: int = 2) -> Survey:
    """A process of 2 GiB on GPU 0."""
    world = World()
    world.gpu(0, used=2 * GIB + CONTEXT + OVERHEAD)
    for index in range(1, gpus):
        world.gpu(index)
    world.cuda(100, 2 * GIB + CONTEXT)
    return named(world.survey(), name)


def haunted(name: str = "gpu-2", *, nbytes: int = 4 * GIB) -> Survey:
    """Beside it, a forked child with memory of its dead parent."""
    world = World()
    world.gpu(0, used=2 * GIB + nbytes + 2 * CONTEXT + 2 * OVERHEAD).gpu(1)
    world.cuda(100, 2 * GIB + CONTEXT)
    world.charge(200, nbytes + CONTEXT).process(201).files(201, family=200)
    return named(world.survey(), name)


def unexplained(name: str = "gpu-3", *, nbytes: int = 3 * GIB) -> Survey:
    return named(World().gpu(0, used=nbytes).survey(), name)


def without_driver(name: str = "cpu-1") -> Survey:
    probes = (ProbeRun("nvml", "unsupported", 0.01, "libnvidia-ml.so.1 is not there", "nvml-12"),)
    return replace(named(World().survey(), name), probes=probes)


def named(survey: Survey, name: str, at: float = NOW) -> Survey:
    """*survey* as that of another node: its own host name, time, and GPUs."""

    def owned(facts: object) -> object:
        return replace(facts, uuid=f"{facts.uuid}-{name}") if isinstance(facts, GpuFacts) else facts

    return replace(
        survey,
        taken_at=stamp(at),
        host=replace(survey.host, name=name),
        observations=tuple(replace(each, facts=owned(each.facts)) for each in survey.observations),
    )


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def encoded(survey: Survey) -> bytes:
    return msgspec.json.encode(survey)


def judged(
    survey: Survey | bytes,
    name: str = "gpu-1",
    *,
    host_names: tuple[str, ...] | None = None,
    now: float | None = NOW,
    by: Grouping | None = None,
) -> FleetNode:
    data = survey if isinstance(survey, bytes) else encoded(survey)
    return judge_snapshot(data, JudgeRequest(name=name, path="", host_names=host_names, now=now, by=by))


def write(folder: Path, *surveys: Survey) -> Path:
    """A recorded fleet: each under its own name."""
    for survey in surveys:
        (folder / f"{survey.host.name}.json").write_bytes(encoded(survey))
    return folder


def host_facts(name: str) -> HostFacts:
    return HostFacts(name=name, kernel=os.uname().release, user="root", uid=0)
