"""Who has merely lost its parent is ended only when it was seen so twice, seconds apart."""

from __future__ import annotations

import pytest

from tests.ledger.world import World
from vram.ledger.build import build_ledger
from vram.model.ledger import Ledger
from vram.model.plan import Plan, Step, Target
from vram.model.process import ProcessRef
from vram.reclaim.executor import SECOND_LOOK_S, second_look_s
from vram.units import GIB

NOW = "2030-01-01T00:00:10Z"


def ghost(session: int) -> Ledger:
    """Pid 40 is dead and charged; 41 was forked, has its files, and is of *session*."""
    world = World().gpu(used=2 * GIB).charge(40, GIB).process(1)
    world.process(41, parent=1, session=session, forked=True).files(41, family=1)
    return build_ledger(
        world.process(41, parent=1, session=session, forked=True).files(41, family=1).survey()
    )


def plan(made_at: str, finding: str | None = "VR101") -> Plan:
    target = Target(process=ProcessRef(41, 410), uid=0, user="root", executable="python", command="python")
    step = Step(
        kind="kill",
        target=target,
        gpus=(0,),
        predicted_bytes=GIB,
        loses="",
        reversible=False,
        reason="",
        finding=finding,
    )
    return Plan(made_at=made_at, boot_id="", goal_bytes=None, gpus=(0,), steps=(step,), digest="")


@pytest.mark.parametrize(
    ("made_at", "wait_s"),
    [
        (NOW, SECOND_LOOK_S),
        ("2030-01-01T00:00:08Z", 2.0),
        ("2030-01-01T00:00:05Z", 0.0),
        ("2030-01-01T00:09:00Z", SECOND_LOOK_S),  # the clock was set back meanwhile
        ("yesterday", SECOND_LOOK_S),
    ],
)
def test_the_plans_own_reading_counts_as_the_first_look(made_at: str, wait_s: float) -> None:
    assert second_look_s(plan(made_at), ghost(session=7), NOW) == wait_s


def test_relatives_of_the_dead_and_who_was_named_are_not_waited_for() -> None:
    assert second_look_s(plan(NOW), ghost(session=40), NOW) == 0.0
    assert second_look_s(plan(NOW, finding=None), ghost(session=7), NOW) == 0.0
