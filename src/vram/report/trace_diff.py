"""Two traces compared: what each place had before and after."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache

from msgspec import Struct

from vram.model.trace import Frame, Site, TraceView, stack_of
from vram.report.trace_places import caller, is_installed, library, place, shown_file
from vram.report.trace_rows import By, label, memory_of, on_gpu

PICKS: dict[str, Callable[[TraceView], Sequence[Site]]] = {
    "at the peak": lambda view: on_gpu(view.peak),
    "never freed": lambda view: [leak.site for leak in view.leaks if memory_of(leak.site) == "gpu"],
    "in frameworks' blocks at the peak": lambda view: [
        site for block in view.frameworks if block.at == "peak" for site in block.sites
    ],
}


class DiffRow(Struct, frozen=True, kw_only=True):
    """What one place had in the first trace and in the second."""

    label: str
    place: Frame | None
    caller: Frame | None
    """Who called the place from another file of the program."""
    before_nbytes: int
    after_nbytes: int
    before_count: int
    after_count: int

    @property
    def change(self) -> int:
        return self.after_nbytes - self.before_nbytes


class Differences(Struct, frozen=True, kw_only=True):
    """What changed, the largest growth first; of many the largest changes, and what the others sum to."""

    rows: list[DiffRow]
    total: int
    hidden: int
    hidden_nbytes: int


def differences(
    before: TraceView,
    after: TraceView,
    pick: Callable[[TraceView], Sequence[Site]],
    by: By,
    limit: int | None = None,
) -> Differences:
    """Compare what *pick* finds in both. Lines are not compared: code moves."""
    old, new = _by_code(before, pick(before), by), _by_code(after, pick(after), by)
    changed = []
    for key in old.keys() | new.keys():
        first, second = old.get(key), new.get(key)
        change = (second.nbytes if second else 0) - (first.nbytes if first else 0)
        if change:
            changed.append((change, first, second))
    changed.sort(key=lambda each: (-abs(each[0]), each[0], _first_stack(each[1], each[2])))
    limit = len(changed) if limit is None else limit
    shown = sorted(changed[:limit], key=lambda each: (-each[0], _first_stack(each[1], each[2])))
    return Differences(
        rows=[_diff_row(before, after, first, second, by) for _, first, second in shown],
        total=sum(change for change, _, _ in changed),
        hidden=max(0, len(changed) - limit),
        hidden_nbytes=sum(change for change, _, _ in changed[limit:]),
    )


def _first_stack(first: _Sum | None, second: _Sum | None) -> int:
    each = second or first
    assert each is not None
    return each.stack


def _diff_row(
    before: TraceView, after: TraceView, first: _Sum | None, second: _Sum | None, by: By
) -> DiffRow:
    view = after if second else before
    number = _first_stack(first, second)
    stack = stack_of(view, number)
    return DiffRow(
        label=label(view, number, by),
        place=place(stack) if by in ("line", "function", "stack") else None,
        caller=caller(stack) if by == "stack" else None,
        before_nbytes=first.nbytes if first else 0,
        after_nbytes=second.nbytes if second else 0,
        before_count=first.count if first else 0,
        after_count=second.count if second else 0,
    )


class _Sum(Struct):
    stack: int
    largest: int
    nbytes: int = 0
    count: int = 0


def _by_code(view: TraceView, sites: Sequence[Site], by: By) -> dict[Hashable, _Sum]:
    @cache
    def key(number: int) -> Hashable:
        stack = stack_of(view, number)
        if by == "library":
            return library(stack)
        if by == "stack":
            return tuple((frame.function, _same_file(frame.file)) for frame in stack.frames)
        frame = place(stack)
        if frame is None:
            return None
        file = _same_file(frame.file)
        return file if by == "file" else (frame.function, file)

    sums: dict[Hashable, _Sum] = {}
    for site in sites:
        total = sums.setdefault(key(site.stack), _Sum(site.stack, site.nbytes))
        total.nbytes += site.nbytes
        total.count += site.count
        if site.nbytes > total.largest:
            total.stack, total.largest = site.stack, site.nbytes
    return sums


@lru_cache(maxsize=65536)
def _same_file(file: str) -> str:
    """Name a file so that two checkouts of a program agree: by its name, or from the package on."""
    return shown_file(file) if is_installed(file) else file.rpartition("/")[2]
