"""Scenes keep to their protocol: they leave when the audience does, and take everybody along."""

from __future__ import annotations

import pytest
from theatre import SCENES, Actor, SceneFailed, Theatre

NEIGHBOURS = {"busy", "driver", "hands", "keeper", "sharing", "stage"}
# They do what they are told, and have no stages of their own.
TOLD = {"measure_export", "puppet"}
ALL = sorted({path.stem for path in SCENES.glob("*.py")} - NEIGHBOURS - TOLD)
STAGED = sorted(set(ALL) - {"checkpoint", "granularity"})
SMALL = 64 * 1024**2


@pytest.mark.parametrize("name", ALL)
def test_end_of_input_ends_everybody(theatre: Theatre, name: str) -> None:
    """Nobody has to be made to leave, and no byte stays on the GPU."""
    before = theatre.look().used
    actor = Actor(name, (SMALL,), theatre.env)
    actor.leave()
    assert actor.lingering == []
    assert theatre.look().used == before


@pytest.mark.parametrize("name", ALL)
def test_a_killed_scene_leaves_nobody(theatre: Theatre, name: str) -> None:
    """Workers die with the process that started them; who is meant to outlive it leaves with the audience."""
    actor = Actor(name, (SMALL,), theatre.env)
    actor.kill()
    actor.leave()
    assert actor.lingering == []


@pytest.mark.parametrize("name", STAGED)
def test_every_stage_can_be_reached(theatre: Theatre, name: str) -> None:
    """Going on past the last stage ends the scene: it says nothing more and exits cleanly."""
    with theatre.scene(name, SMALL) as actor:
        stages, end = played_out(actor)
    assert "exit status 0" in end
    assert len(set(stages)) == len(stages)


def played_out(actor: Actor) -> tuple[list[str], str]:
    """Send a scene on until it ends; return its stages and how it ended."""
    stages = [actor["stage"]]
    while True:
        try:
            stages.append(actor.go()["stage"])
        except SceneFailed as end:
            return stages, str(end)


def test_a_scene_that_fails_says_so(theatre: Theatre) -> None:
    """An allocation larger than the GPU is told as a line, not as a hang."""
    with pytest.raises(SceneFailed, match="cuMemAlloc_v2 answered 2"):
        Actor("plain", (2**50,), theatre.env)
