"""``vram.holders(obj)``: everything that keeps an object alive, in names that a person knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from msgspec import Struct

from vram.guard.live import check_budget
from vram.payloads.arrays.heap import chains
from vram.payloads.arrays.heap.chains import BUDGET_S
from vram.payloads.arrays.heap.trails import Holder


class Holders(Struct, frozen=True):
    """Who refers to an object, nearest name first. Holds text, never the object."""

    found: tuple[Holder, ...]
    was_cut: bool

    def __iter__(self) -> Iterator[Holder]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Holder:
        return self.found[position]

    def __repr__(self) -> str:
        cut = ["(search cut short: give it more than the default with budget_s=)"] if self.was_cut else []
        return "\n".join([*map(str, self.found), *cut])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(f"<li><code>{escape(str(each))}</code></li>" for each in self.found)
        cut = "<p>Search cut short.</p>" if self.was_cut else ""
        return f"<ul>{rows}</ul>{cut}"


def holders(obj: object, *, budget_s: float = BUDGET_S) -> Holders:
    """Say who keeps *obj*: ``cell 12: history[3]``, ``module utils: _cache['x']``.

    Looks at the heap for *budget_s* seconds of processor time at most, runs no code of any object
    that it meets, and leaves no reference behind.
    """
    check_budget(budget_s)
    return Holders(*chains.every(obj, gc.get_objects(), budget_s))
