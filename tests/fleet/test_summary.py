"""Nodes together: who contradicts whom, what comes first, what the sums are."""

from __future__ import annotations

from msgspec.structs import replace

from tests.fleet.snapshots import haunted, healthy, judged, unexplained, without_driver
from vram.errors import ExitCode
from vram.fleet.collect import completeness, fleet_report, natural, without_contradictions
from vram.model.fleet import FleetNode, FleetReport


def report(*nodes: FleetNode) -> FleetReport:
    return fleet_report(nodes, source="recorded", took_s=0.1)


def node(name: str, host: str | None = None) -> FleetNode:
    return judged(healthy(host or name), name)


def states(nodes: tuple[FleetNode, ...]) -> dict[str, str | None]:
    return {each.name: each.code for each in nodes}


def test_trouble_comes_first_and_the_most_memory_before_less() -> None:
    small = judged(haunted("small", nbytes=1 << 30), "small")
    found = report(
        node("gpu-10"),
        node("gpu-9"),
        judged(without_driver("cpu"), "cpu"),
        judged(unexplained("odd"), "odd"),
        small,
        judged(haunted("large"), "large"),
        judged(b"x", "liar"),
    )
    assert [each.name for each in found.nodes] == [
        *("large", "small", "odd", "liar", "cpu", "gpu-9", "gpu-10"),
    ]
    assert completeness(found) == ExitCode.PARTIAL
    assert completeness(report(node("a"), small)) == ExitCode.OK


def test_sums_are_those_of_the_nodes_that_are_believed() -> None:
    ghost = judged(haunted("b"), "b")
    found = report(node("a"), ghost, judged(b"x", "liar"))
    assert found.sums.nodes == 3
    assert found.sums.gpus == 4
    assert found.sums.leftover_bytes == ghost.gpus[0].leftover_bytes
    parts = found.sums.held_bytes + found.sums.free_bytes
    assert parts + sum(gpu.other_bytes or 0 for each in found.nodes for gpu in each.gpus) == (
        found.sums.total_bytes
    )


def test_who_claims_to_be_another_node_is_rejected_and_that_one_is_not() -> None:
    found = without_contradictions((node("evil", "gpu-1"), node("gpu-1"), node("gpu-2")))
    assert states(found) == {"evil": "duplicate", "gpu-1": None, "gpu-2": None}
    assert "gpu-1" in (found[0].message or "")


def test_where_nobody_can_tell_who_is_right_none_is_believed() -> None:
    found = without_contradictions((node("10.0.0.1", "gpu-1"), node("10.0.0.2", "gpu-1")))
    assert states(found) == {"10.0.0.1": "duplicate", "10.0.0.2": "duplicate"}
    assert all(not each.gpus for each in found)


def test_one_gpu_is_not_in_two_nodes() -> None:
    first, second = node("gpu-1"), node("gpu-2")
    stolen = replace(second, gpus=first.gpus)
    assert states(without_contradictions((first, stolen))) == {"gpu-1": "duplicate", "gpu-2": "duplicate"}


def test_virtual_nodes_are_no_part_of_a_real_fleet() -> None:
    virtual = replace(node("pretends"), virtual=True)
    assert states(without_contradictions((virtual, node("gpu-1"))))["pretends"] == "impossible"
    alike = replace(virtual, name="another")
    assert set(states(without_contradictions((virtual, alike))).values()) == {None}


def test_numbers_in_names_count_as_numbers() -> None:
    names = ["gpu-10", "gpu-9", "b", "gpu-٣", "gpu-" + "9" * 5000, ""]
    assert sorted(names, key=natural)[:3] == ["", "b", "gpu-9"]
