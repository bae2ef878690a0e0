"""Whom we cannot see is hidden, with the reason; never a ghost."""

from __future__ import annotations

from msgspec.structs import replace

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.ledger.build import build_ledger
from vram.model.gpu import DriverFacts
from vram.model.ledger import Entry
from vram.units import GIB


def only(world: World, kind: str) -> Entry:
    (found,) = (entry for entry in build_ledger(world.survey()).gpus[0].entries if entry.kind == kind)
    return found


def test_where_proc_hides_other_users_a_missing_pid_is_not_dead() -> None:
    world = World(uid=1000).gpu(used=4 * GIB + CONTEXT + OVERHEAD).charge(100, 4 * GIB + CONTEXT)
    assert only(world, "orphaned").holder is not None
    world.host = replace(world.host, hides_processes=True)
    hidden = only(world, "hidden")
    assert (hidden.hidden_by, hidden.nbytes, hidden.charged_pid) == ("permission", 4 * GIB + CONTEXT, 100)


def test_where_proc_hides_other_users_what_is_left_over_is_theirs() -> None:
    world = World(uid=1000).gpu(used=4 * GIB)
    world.host = replace(world.host, hides_processes=True)
    assert only(world, "hidden").hidden_by == "permission"


def test_an_older_driver_s_pids_are_doubted_inside_a_namespace_only() -> None:
    for version, inside, confidence in (
        ("535.183.01", True, "likely"),
        ("565.57.01", True, "likely"),
        ("580.159.04", True, "fact"),
        ("535.183.01", False, "fact"),
    ):
        world = World(initial_pid_namespace=not inside).gpu(used=GIB + CONTEXT + OVERHEAD)
        world.cuda(100, GIB + CONTEXT)._see("nvml.driver", facts=DriverFacts(driver_version=version))
        assert only(world, "process").confidence == confidence, version
