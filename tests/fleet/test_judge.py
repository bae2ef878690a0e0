"""One snapshot: its sums where it can be believed, and a reason where it cannot."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tests.fleet.snapshots import (
    NOW,
    encoded,
    haunted,
    healthy,
    judged,
    named,
    stamp,
    unexplained,
    without_driver,
)
from tests.ledger.world import CONTEXT, OVERHEAD, RESERVED, World
from vram.model.cgroups import CgroupLimit
from vram.model.gpu import MemoryFacts
from vram.model.observation import Observation, Survey
from vram.model.process import ProcessFacts, ProcessRef, Workload
from vram.units import GIB


def with_memory(memory: MemoryFacts) -> Survey:
    survey = World().gpu(0).survey()
    others = [seen for seen in survey.observations if not isinstance(seen.facts, MemoryFacts)]
    figures = Observation(probe="nvml.memory", gpu=0, facts=memory)
    return named(replace(survey, observations=(*others, figures)), "gpu-1")


def test_a_healthy_node_is_ok_and_its_sums_are_exact() -> None:
    node = judged(healthy(), host_names=("gpu-1",))
    assert (node.state, node.code, node.host) == ("ok", None, "gpu-1")
    for gpu in node.gpus:
        assert gpu.held_bytes is not None
        assert gpu.free_bytes is not None
        assert gpu.other_bytes is not None
        assert gpu.total_bytes == gpu.held_bytes + gpu.free_bytes + gpu.other_bytes == 100 * GIB
    assert node.gpus[0].held_bytes == 2 * GIB + CONTEXT
    assert node.gpus[0].other_bytes == OVERHEAD + RESERVED


def test_a_ghost_is_a_leftover_with_its_holder() -> None:
    node = judged(haunted())
    assert node.state == "leftovers"
    assert node.gpus[0].leftover_bytes == 4 * GIB + CONTEXT
    assert [(ghost.pid, ghost.dead_pids) for ghost in node.ghosts] == [(201, (200,))]


def test_unexplained_bytes_are_no_leftovers() -> None:
    node = judged(unexplained())
    assert node.state == "unexplained"
    assert node.gpus[0].unexplained_bytes
    assert not node.gpus[0].leftover_bytes


def test_a_lost_gpu_makes_a_node_incomplete_and_its_bytes_unknown() -> None:
    node = judged(named(World().gpu(0).lost(1).survey(), "gpu-1"))
    assert (node.state, node.code) == ("incomplete", "gpu")
    assert node.gpus[1].total_bytes is None
    assert node.gpus[1].held_bytes is None


def test_a_node_without_a_driver_says_so() -> None:
    node = judged(without_driver())
    assert (node.state, node.code) == ("unread", "no-driver")


@pytest.mark.parametrize(
    ("survey", "code"),
    [
        (replace(healthy(), schema=99), "other-version"),
        (replace(healthy(), schema=0), "bad-snapshot"),
        (healthy("gpu-9"), "other-host"),
        (named(healthy(), "gpu-1", NOW + 90_000), "wrong-time"),
        (named(healthy(), "gpu-1", NOW - 90_000), "wrong-time"),
        (replace(healthy(), taken_at="yesterday"), "impossible"),
        (with_memory(MemoryFacts(total=100 * GIB, free=90 * GIB, used=90 * GIB)), "impossible"),
        (with_memory(MemoryFacts(total=GIB, free=2 * GIB, used=0)), "impossible"),
        (with_memory(MemoryFacts(total=1 << 60, free=1 << 60, used=0)), "impossible"),
        (with_memory(MemoryFacts(total=-1, free=0, used=0)), "bad-snapshot"),
        (named(World().gpu(0).charge(7, 101 * GIB).survey(), "gpu-1"), "impossible"),
        (named(World().gpu(0).process(-4).survey(), "gpu-1"), "impossible"),
        (healthy(gpus=1000), "impossible"),
    ],
    ids=str,
)
def test_a_snapshot_that_cannot_be_true_is_rejected_without_its_figures(survey: Survey, code: str) -> None:
    node = judged(survey, host_names=("gpu-1",))
    assert (node.state, node.code) == ("rejected", code), node.message
    assert node.message
    assert node.gpus == node.ghosts == node.shares == ()


def test_gpus_of_one_uuid_are_not_two_gpus() -> None:
    survey = healthy()
    twice = [msgspec.to_builtins(each) for each in survey.observations]
    for each in twice:
        if (each.get("facts") or {}).get("type") == "gpu":
            each["facts"]["uuid"] = "GPU-same"
    whole = {**msgspec.to_builtins(survey), "observations": twice}
    assert judged(msgspec.json.encode(whole)).code == "impossible"


def test_an_old_recording_is_fine_and_one_from_the_future_is_not() -> None:
    assert judged(replace(healthy(), taken_at=stamp(1_600_000_000)), now=None).state == "ok"
    assert judged(replace(healthy(), taken_at="2199-01-01T00:00:00Z"), now=None).code == "wrong-time"


@pytest.mark.parametrize("said", ["gpu-1", "GPU-1", "gpu-1.cluster.example", "gpu-1.elsewhere"])
def test_a_domain_makes_no_other_host(said: str) -> None:
    assert judged(healthy(said), host_names=("gpu-1.cluster.example",)).state == "ok"


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"[" * 100_000, b"\xff\xfe", b'{"schema": 1e400}'])
def test_what_is_no_snapshot_is_a_line(data: bytes) -> None:
    node = judged(data)
    assert (node.state, node.code) == ("rejected", "bad-snapshot")


def test_shares_count_each_held_byte_once() -> None:
    node = judged(haunted(), by="user")
    assert sum(share.held_bytes for share in node.shares) == sum(gpu.held_bytes or 0 for gpu in node.gpus)
    assert sum(share.leftover_bytes for share in node.shares) == 4 * GIB + CONTEXT


def test_shares_by_job_join_the_steps_of_a_job() -> None:
    survey = healthy()
    changed = [msgspec.to_builtins(each) for each in survey.observations]
    for each in changed:
        if (each.get("facts") or {}).get("type") == "process":
            each["facts"]["workload"] = msgspec.to_builtins(Workload(slurm_job="42", slurm_step="7"))
    whole = {**msgspec.to_builtins(survey), "observations": changed}
    node = judged(msgspec.json.encode(whole), by="job")
    assert [(share.name, share.processes) for share in node.shares] == [("42", 1)]


def test_texts_of_a_node_are_cut() -> None:
    survey = replace(healthy(), program="x" * 10_000)
    node = judged(encoded(survey))
    assert len(node.program or "") < 100


def test_a_node_inside_of_a_limit_is_believed_and_its_sums_are_the_limits() -> None:
    """Of the limit little is free, and a process outside of it holds more than that."""
    limit = CgroupLimit("/user.slice", 20 * GIB, 0, 0)
    memory = MemoryFacts(20 * GIB, free=GIB, used=0, reserved=0, limit=limit, device_total=100 * GIB)
    world = World()
    world.observations.extend(with_memory(memory).observations)
    world.charge(7, 60 * GIB).files(7)
    outside = ProcessFacts(command="python", uid=0, user="root", state="S", cgroup="/other.slice")
    world._see("proc.processes", process=ProcessRef(7, started_at=70), facts=outside)
    node = judged(named(world.survey(), "gpu-1"))
    (gpu,) = node.gpus
    assert (node.state, gpu.total_bytes, gpu.free_bytes) == ("ok", 20 * GIB, GIB)
    assert (gpu.held_bytes, gpu.other_bytes) == (0, 19 * GIB)


def test_a_node_whose_gpu_uses_the_systems_memory_is_believed() -> None:
    node = judged(named(World().shared(available=80 * GIB).cuda(7, 30 * GIB).survey(), "gpu-1"))
    (gpu,) = node.gpus
    assert (node.state, gpu.held_bytes, gpu.other_bytes) == ("ok", 30 * GIB, 10 * GIB)
