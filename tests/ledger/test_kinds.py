"""One table of kinds: everybody who asks whether somebody holds an entry gets the same answer."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.diagnosis.ledgers import entry, gpu, holder, ledger
from vram.diagnosis.verdict import judge
from vram.model.ledger import KINDS, Kind
from vram.model.oom import Amount, Case, Judgement, OomMessage
from vram.oom.live import join
from vram.reclaim.actions.reset import blockers
from vram.report.layout import KIND_STYLES
from vram.units import GIB

# Written out, not asked from the table: the table is what is tested.
NOT_HELD = ["free", "reserved", "unassigned", "unreported", "overhead", "preallocated", "cpu", "withheld"]
NOT_USED = ["free", "reserved", "unassigned"]
LEFTOVER = ["orphaned", "exported", "unattributed"]


def test_every_kind_is_in_the_table():
    assert set(KINDS) == set(get_args(Kind)) == set(KIND_STYLES)


def test_what_each_kind_means():
    assert [kind for kind, facts in KINDS.items() if not facts.held] == NOT_HELD
    assert [kind for kind, facts in KINDS.items() if facts.used is False] == NOT_USED
    assert [kind for kind, facts in KINDS.items() if facts.leftover == "yes"] == LEFTOVER


def test_what_is_held_is_used_and_what_is_charged_is_held():
    for facts in KINDS.values():
        assert facts.used or not facts.held
        assert facts.held or not facts.charged


@pytest.mark.parametrize("kind", NOT_HELD)
def test_what_nobody_holds_has_no_holder_anywhere(kind: str):
    world = ledger(gpu(entry(kind, 60 * GIB)))
    (verdict,) = judge(world)
    assert verdict.entries == ()
    assert [each for each in blockers(world, world.gpus[0]) if each.nbytes] == []
    reading = OomMessage(dialect="x", wording="x", gpu=0, asked=Amount(GIB))
    unknown = Judgement(kind="unknown", certainty="unknown", title="", cause="")
    assert join(Case(reading=reading, judgement=unknown), world, ()).live.holdings == ()


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(NOT_HELD)))
def test_what_somebody_holds_is_held_everywhere(kind: str):
    world = ledger(gpu(entry(kind, 60 * GIB, holder=holder() if KINDS[kind].charged else None)))
    (verdict,) = judge(world)
    assert verdict.held_bytes == 60 * GIB
    assert [each.nbytes for each in blockers(world, world.gpus[0])] == [60 * GIB]
