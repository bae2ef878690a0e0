"""Equal arrays of one container are one line; others stay apart."""

from __future__ import annotations

from vram.guard.live import equal_arrays, multiplied
from vram.guard.scope import describe
from vram.model.leak import Gain, Leak, LeakedArray
from vram.units import GIB, MIB

WHAT = "PyTorch float32 (1024, 1024)"


def array(holder: str, nbytes: int = 9 * GIB, what: str = WHAT) -> LeakedArray:
    return LeakedArray(what=what, nbytes=nbytes, holder=holder)


def grouped(*arrays: LeakedArray) -> list[tuple[str, str]]:
    return [(multiplied(group), group.holder) for group in equal_arrays(arrays)]


def test_consecutive_positions_are_a_span() -> None:
    assert grouped(*(array(f"train.py: xs[{at}]") for at in range(12))) == [
        ("12 × 9.0 GiB", "train.py: xs[0…11]")
    ]


def test_where_one_is_missing_between_no_span_is_claimed() -> None:
    assert grouped(array("m: xs[0]"), array("m: xs[2]")) == [("2 × 9.0 GiB", "m: xs[…]")]


def test_other_sizes_kinds_and_names_stay_apart() -> None:
    found = grouped(
        *(array("m: xs[0]"), array("m: xs[1]", 4 * GIB), array("m: ys[0]")),
        *(array("m: xs[2]", what="PyTorch int64 (4,)"), array("m: best")),
    )
    assert sorted(found) == [
        ("4.0 GiB", "m: xs[1]"),
        *[("9.0 GiB", each) for each in ("m: best", "m: xs[0]", "m: xs[2]", "m: ys[0]")],
    ]


def test_many_small_ones_come_before_a_larger_one() -> None:
    many = [array(f"m: pieces[{at}]", 100 * MIB) for at in range(50)]
    assert grouped(array("m: one", GIB), *many) == [
        ("50 × 100.0 MiB", "m: pieces[0…49]"),
        ("1.0 GiB", "m: one"),
    ]


def test_positions_inside_positions_are_spanned_each() -> None:
    held = [array(f"m: state[{layer}].grads[{at}]") for layer in range(3) for at in range(2)]
    assert grouped(*held) == [("6 × 9.0 GiB", "m: state[0…2].grads[0…1]")]


def test_a_leak_is_told_by_groups() -> None:
    held = tuple(array(f"m: xs[{at}]", 64 * MIB) for at in range(3))
    leak = Leak(names=("request",), gains=(Gain("PyTorch", 192 * MIB),), arrays=held)
    assert f"  {WHAT}, 3 × 64.0 MiB: m: xs[0…2]" in describe(leak).splitlines()
