"""PyTorch's blocks in a window: from its history, whose beginning is often later than the recording's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from statistics import median_low

from msgspec import Struct, field

from vram.model.trace import Window, WindowPlace
from vram.trace.frameworks.held_arrays import ArraysBlob, names_by_address
from vram.trace.frameworks.torch_history import ALLOC, FREE, Block
from vram.trace.frameworks.torch_use import NAME, TorchUse
from vram.trace.windows import largest_first, trend

QUARTERS = 4


class _Sums(Struct):
    base_count: int = 0
    base_nbytes: int = 0
    highest_count: int = 0
    highest_nbytes: int = 0
    end_count: int = 0
    end_nbytes: int = 0
    made: int = 0
    made_nbytes: int = 0
    freed: int = 0
    lives_us: list[int] = field(default_factory=list)


class _Levels(Struct):
    """What blocks held over the window."""

    base: int
    highest: int
    highest_at: int
    """Number of the event after which it was highest."""
    end: int
    lowest: tuple[int, int, int, int]


def torch_window(
    use: TorchUse, since_ns: int, end_ns: int, arrays: ArraysBlob | None, growing: Collection[int]
) -> Window:
    """The window of *use* from *since_ns* on, or from where its history begins.

    *arrays* name blocks from before recording; *growing* are stacks of the view.
    """
    events = use.history.events
    first = bisect_left(events.time_us, use.time_us(since_ns))
    begin_ns = since_ns
    if first == 0 and events.time_us and use.history.begins_late:
        begin_ns = min(end_ns, max(since_ns, use.time_ns(events.time_us[0])))
    blocks = [each for each in use.history.blocks if each.end is None or each.end >= first]
    base = sum(each.nbytes for each in blocks if _is_older(each, first))
    levels = _levels(use, first, base, begin_ns, end_ns)
    names = names_by_address(arrays) if arrays else {}
    named_us = arrays.wall_ns // 1000 if arrays else 0
    sums: dict[tuple[int, str], _Sums] = {}
    for each in blocks:
        # An address that was given out again before the arrays were read has another array's name.
        stayed = each.end is None or events.time_us[each.end] >= named_us
        has_name = not each.stack and stayed and _is_older(each, first)
        name = names.get(each.address, "") if has_name else ""
        _add(sums.setdefault((each.stack, name), _Sums()), each, first, levels.highest_at, events.time_us)
    places = largest_first(_places(use, sums, growing))
    at = levels.highest_at
    return Window(
        process=use.process,
        gpu=use.gpu,
        framework=NAME,
        begin_ns=begin_ns,
        end_ns=end_ns,
        before_nbytes=None,
        base_nbytes=base,
        highest_nbytes=levels.highest,
        highest_ns=begin_ns if at < first else min(end_ns, max(begin_ns, use.time_ns(events.time_us[at]))),
        end_nbytes=levels.end,
        lowest=levels.lowest,
        trend=trend(levels.lowest, levels.highest, places),
        places=places,
    )


def _is_older(block: Block, first: int) -> bool:
    return block.begin is None or block.begin < first


def _levels(use: TorchUse, first: int, base: int, begin_ns: int, end_ns: int) -> _Levels:
    events = use.history.events
    begin_us, end_us = use.time_us(begin_ns), use.time_us(end_ns)
    bounds = [begin_us + quarter * (end_us - begin_us) // QUARTERS for quarter in range(1, QUARTERS)]
    level = highest = lowest_now = base
    highest_at = first - 1
    lowest: list[int] = []
    for number in range(first, len(events.action)):
        action = events.action[number]
        if action not in (ALLOC, FREE):
            continue
        while len(lowest) < len(bounds) and events.time_us[number] >= bounds[len(lowest)]:
            lowest.append(lowest_now)
            lowest_now = level
        level += events.nbytes[number] if action == ALLOC else -events.nbytes[number]
        lowest_now = min(lowest_now, level)
        if level > highest:
            highest, highest_at = level, number
    while len(lowest) < QUARTERS:
        lowest.append(lowest_now)
        lowest_now = level
    return _Levels(base, highest, highest_at, level, (lowest[0], lowest[1], lowest[2], lowest[3]))


def _add(sums: _Sums, block: Block, first: int, highest_at: int, times_us: list[int]) -> None:
    if _is_older(block, first):
        sums.base_count += 1
        sums.base_nbytes += block.nbytes
    else:
        sums.made += 1
        sums.made_nbytes += block.nbytes
    if block.end is None:
        sums.end_count += 1
        sums.end_nbytes += block.nbytes
    else:
        sums.freed += 1
        if block.begin is not None:
            sums.lives_us.append(max(0, times_us[block.end] - times_us[block.begin]))
    if (block.begin is None or block.begin <= highest_at) and (block.end is None or block.end > highest_at):
        sums.highest_count += 1
        sums.highest_nbytes += block.nbytes


def _places(
    use: TorchUse, sums: Mapping[tuple[int, str], _Sums], growing: Collection[int]
) -> Iterator[WindowPlace]:
    for (stack, name), each in sums.items():
        site = use.site(stack, each.highest_count, each.highest_nbytes)
        yield WindowPlace(
            site=site,
            base_count=each.base_count,
            base_nbytes=each.base_nbytes,
            end_count=each.end_count,
            end_nbytes=each.end_nbytes,
            made=each.made,
            made_nbytes=each.made_nbytes,
            freed=each.freed,
            median_life_ns=median_low(each.lives_us) * 1000 if each.lives_us else None,
            growing=bool(stack) and site.stack in growing,
            name=name,
        )
