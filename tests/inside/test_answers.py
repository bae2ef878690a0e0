"""Answers come from programs that may say anything: they are believed where they fit, else refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.errors import NotReachable
from vram.ledger.build import build_ledger
from vram.ledger.deepen import splits
from vram.model.inside import Inside, InsideReceipt, Split
from vram.model.plan import Target
from vram.model.process import ProcessRef
from vram.reclaim.inside import decoded
from vram.report.inside import inside
from vram.report.layout import RenderOptions
from vram.units import GIB, MIB

GROUP = {
    "framework": "PyTorch",
    "device": 0,
    "dtype": "float32",
    "shape": [1024, 1024],
    "count": 12,
    "each_nbytes": 4 * MIB,
    "nbytes": 48 * MIB,
    "is_shared": False,
    "note": "",
    "held_by": "train.py: xs[0…11]",
    "kind": "module",
}
ANSWER: dict[str, Any] = {
    "status": "done",
    "python": "3.12.1",
    "devices": {"0": "GPU-1"},
    "lines": [],
    "objects": 10,
    "arrays": 12,
    "nbytes": 48 * MIB,
    "frameworks": {"PyTorch": 48 * MIB},
    "groups": [GROUP],
    "left_out": {"groups": 0, "arrays": 0, "nbytes": 0},
    "was_cut": False,
    "took_s": 0.1,
    "worked_s": 0.05,
    "longest_s": 0.01,
    "notes": [],
}


def answered(**changes: Any) -> bytes:
    return msgspec.json.encode({**ANSWER, **changes})


def test_a_whole_one_is_believed() -> None:
    assert decoded(7, answered()).groups[0].count == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"nbytes": -1},
        {"nbytes": 1 << 70},
        {"nbytes": "many"},
        {"groups": [{**GROUP, "held_by": "x" * 401}]},
        {"groups": [{**GROUP, "shape": [1] * 33}]},
        {"groups": [{**GROUP, "kind": "my own"}]},
        {"groups": [GROUP] * 501},
        {"took_s": 1e300},
        {"python": None},
        {"notes": ["n"] * 51},
        {"devices": {"0": 5}},
    ],
    ids=repr,
)
def test_one_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotReachable, match="pid 7 sent an unreadable answer"):
        decoded(7, answered(**changes))


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 400))
def test_damaged_ones_are_answers_or_refusals(junk: bytes, start: int, end: int) -> None:
    whole = answered()
    with suppress(NotReachable):
        decoded(7, whole[:start] + junk + whole[end:])


def receipt(answer: Inside, *parts: Split) -> InsideReceipt:
    target = Target(
        process=ProcessRef(pid=7, started_at=1, pid_namespace=None),
        uid=0,
        user="ana\x1b[0m",
        command="python \x1b]0;evil\x07 train.py",
        executable="/usr/bin/python3",
    )
    return InsideReceipt(
        target=target,
        via="agent",
        stopped_s=0.002,
        waited_s=0.004,
        took_s=0.3,
        answer=answer,
        gpu_of={0: 0},
        splits=parts,
    )


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 1 << 60), st.integers(40, 200))
def test_whatever_it_says_the_page_is_inert_and_keeps_its_width(
    name: str, dtype: str, nbytes: int, width: int
) -> None:
    group = {**GROUP, "held_by": name, "dtype": dtype, "nbytes": nbytes, "note": name}
    try:
        answer = decoded(7, answered(groups=[group], notes=[name], frameworks={dtype: nbytes}))
    except (UnicodeEncodeError, NotReachable):
        return  # half a character is no JSON
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(inside(receipt(answer), RenderOptions(width)))
    assert all(char.isprintable() or char == "\n" for char in captured.get())


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_whatever_it_says_the_parts_sum_to_the_charge(arrays: int, held: int, unused: int, used: int) -> None:
    world = World().gpu(0, used=10 * GIB + CONTEXT + OVERHEAD)
    ledger = build_ledger(world.cuda(100, 10 * GIB + CONTEXT).survey())
    line = {
        "name": "PyTorch",
        "memory": "device",
        "device": 0,
        "held": held,
        "reclaimable": unused,
        "held_after": held,
        "used": used,
    }
    uuid = ledger.gpus[0].uuid
    answer = decoded(
        100, answered(lines=[line], devices={"0": uuid}, frameworks={"PyTorch": arrays}, nbytes=arrays)
    )
    (part,) = splits(ledger, 100, answer, {0: 0})
    assert part.charged == 10 * GIB + CONTEXT
    assert part.arrays + part.unseen + part.cached + part.pooled + part.rest == part.charged
    assert min(part.arrays, part.unseen, part.cached, part.pooled, part.rest) >= 0
    assert part.arrays == min(arrays, part.charged)
