"""Whatever the driver and /proc say, the entries sum to the total and no line is negative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.world import World
from vram.ledger.build import build_ledger
from vram.model.ledger import known_bytes
from vram.units import GIB

PIDS = st.integers(2, 12)
SIZES = st.one_of(st.none(), st.integers(0, 120 * GIB), st.just((1 << 64) - 1))
STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("charge"), PIDS, SIZES, st.integers(0, 1)),
        st.tuples(st.just("process"), PIDS, PIDS, PIDS, st.sampled_from("RSTDZX")),
        st.tuples(st.just("files"), PIDS, st.booleans(), st.one_of(st.none(), st.integers(0, 3))),
        st.tuples(
            st.just("export"), PIDS, st.integers(1, 120 * GIB), st.one_of(st.none(), st.integers(0, 3))
        ),
        st.tuples(st.just("dmabuf"), PIDS, st.integers(1, 120 * GIB), st.integers(0, 3)),
        st.tuples(st.just("unreadable"), st.integers(0, 9)),
        st.tuples(st.just("lost"), st.integers(0, 1)),
    ),
    max_size=40,
)


def tell(world: World, statement: tuple) -> None:
    match statement:
        case ("charge", pid, nbytes, gpu):
            world.charge(pid, nbytes, gpu=gpu)
        case ("process", pid, parent, session, state):
            world.process(pid, parent=parent, session=session, state=state)
        case ("files", pid, context, family):
            world.files(pid, minors=(0, 1), context=context, family=family)
        case ("export", pid, nbytes, description):
            world.export(pid, nbytes, description=description)
        case ("dmabuf", pid, nbytes, inode):
            world.dmabuf(pid, nbytes, inode=inode)
        case ("unreadable", count):
            world.unreadable(count)
        case ("lost", gpu):
            world.lost(gpu)


@pytest.mark.fault(6)
@given(
    STATEMENTS,
    st.integers(0, 100 * GIB),
    st.integers(0, 100 * GIB),
    st.booleans(),
    st.sampled_from([0, 1000]),
)
def test_every_survey_balances(statements, used, free, namespace, uid):
    world = World(uid=uid, initial_pid_namespace=namespace)
    world.gpu(0, used=used).gpu(
        1, total=free + 1, used=free
    )  # the second GPU's figures contradict each other
    for statement in statements:
        tell(world, statement)
    for gpu in build_ledger(world.survey()).gpus:
        assert known_bytes(gpu.entries) == gpu.total_bytes
        assert all(entry.nbytes is None or entry.nbytes >= 0 for entry in gpu.entries)


@pytest.mark.fault(6)
@given(STATEMENTS)
def test_the_order_of_pids_in_the_lists_does_not_change_the_sum(statements):
    world, mirrored = World().gpu(used=50 * GIB), World().gpu(used=50 * GIB)
    for statement in statements:
        tell(world, statement)
    for statement in reversed(statements):
        tell(mirrored, statement)
    sums = [known_bytes(build_ledger(w.survey()).gpus[0].entries) for w in (world, mirrored)]
    assert sums == [100 * GIB, 100 * GIB]
