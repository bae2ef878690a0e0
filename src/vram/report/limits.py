"""How ``vram limit`` looks: a table of limits, a change before it is made, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.report.layout import RenderOptions
from vram.report.phrases import workload
from vram.units import size

if TYPE_CHECKING:
    from vram.model.cgroups import CgroupLimit, GroupLimit, LimitChange


def table(found: Sequence[GroupLimit], options: RenderOptions) -> RenderableType:
    """A line for each group on each GPU, the largest use first."""
    if not found:
        return Text("No control group has a limit, and the kernel counts no GPU memory for any.")
    grid = Table.grid(padding=(0, 1, 0, 0))
    for title, side in (("GPU", "right"), ("USED", "right"), ("LIMIT", "right"), ("KEPT", "right")):
        grid.add_column(title, justify=side, no_wrap=True)  # type: ignore[arg-type]
    grid.add_column("GROUP", no_wrap=True)
    grid.add_row(*(Text(word, style="dim") for word in ("GPU", "USED", "LIMIT", "KEPT", "CONTROL GROUP")))
    room = max(20, options.width - 40)
    for each in sorted(found, key=lambda one: (one.gpu, -(one.limit.used or 0), one.limit.cgroup)):
        known = workload(each.workload)
        what = f"{known}  {each.limit.cgroup}" if known else each.limit.cgroup
        grid.add_row(
            str(each.gpu),
            "" if each.limit.used is None else size(each.limit.used),
            _most(each.limit.hard),
            size(each.limit.soft) if each.limit.soft else "-",
            options.short(what, room),
        )
    return grid


def plan(change: LimitChange, options: RenderOptions) -> RenderableType:
    """What would be set, and what there is now."""
    if change.hard is None:
        what = f"GPU {change.gpu}: no limit and no guarantee any more for control group"
    else:
        what = f"GPU {change.gpu}: at most {size(change.hard)} for control group"
    lines = [Text(what, style="bold"), Text(options.clean(f"  {change.cgroup}"))]
    if change.soft:
        lines.append(Text(f"  {size(change.soft)} of it are kept for the group"))
    before = change.before
    if before is not None:
        used = "" if before.used is None else f", {size(before.used)} in use"
        kept = f", {size(before.soft)} kept for it" if before.soft else ""
        lines.append(Text(f"  now: {_sentence(before.hard)}{kept}{used}"))
        if change.hard is not None and before.used is not None and before.used > change.hard:
            over = size(before.used - change.hard)
            text = f"  It has {over} more: nothing is taken away, its next allocation fails."
            lines.append(Text(text, style="yellow"))
    return Group(*lines)


def done(change: LimitChange) -> RenderableType:
    """What the driver answers afterwards."""
    if change.hard is None:
        return Text(f"removed; `vram limit --gpu {change.gpu}` shows the others")
    return Text(f"set: the driver answers {size(change.hard)} for it")


def json_of(found: Sequence[GroupLimit]) -> str:
    return _encode({"limits": found})


def json_of_change(change: LimitChange, after: CgroupLimit | None, *, done: bool) -> str:
    return _encode({"change": change, "done": done, "after": after})


def _encode(answer: object) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def _most(hard: int | None) -> str:
    return "-" if hard is None else size(hard)


def _sentence(hard: int | None) -> str:
    return "no limit" if hard is None else f"at most {size(hard)}"
