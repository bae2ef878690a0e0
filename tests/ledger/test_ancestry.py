"""Who is above whom and who shares files, told at once for all: the same as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vram.ledger.ancestry import NO_RANK, Ancestry
from vram.ledger.file_holders import joined

PIDS = st.integers(1, 14)
PARENTS = st.dictionaries(PIDS, PIDS, max_size=14)


def above(parents: dict[int, int], pid: int) -> list[int]:
    """By walking up, until somebody comes again."""
    found: list[int] = []
    while (parent := parents.get(pid)) is not None and parent not in found:
        found.append(parent)
        pid = parent
    return found


@given(PARENTS, st.dictionaries(PIDS, st.integers(0, 9)), st.lists(PIDS))
def test_the_least_rank_above_is_found(parents, ranks, asked):
    least = Ancestry(parents).least_above(ranks)
    for pid in asked:
        assert least(pid) == min(
            (ranks[each] for each in above(parents, pid) if each in ranks), default=NO_RANK
        )


@given(PARENTS, st.lists(st.frozensets(PIDS)))
def test_who_is_below_others_is_found(parents, groups):
    ancestry = Ancestry(parents)
    for pids in groups:
        expected = {pid for pid in pids if set(above(parents, pid)) & (pids - {pid})}
        assert ancestry.below_others(pids) == expected


@given(st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=14))
def test_those_with_anything_in_common_are_joined(descriptions):
    groups: list[tuple[list[int], set[int]]] = []
    for at, own in enumerate(descriptions):
        touching = [group for group in groups if group[1] & set(own)]
        groups = [group for group in groups if group not in touching]
        members = sorted({at}.union(*(group[0] for group in touching)))
        groups.append((members, set(own).union(*(group[1] for group in touching))))
    assert joined(descriptions) == [members for members, _ in groups]
