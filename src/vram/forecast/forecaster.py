"""From readings to forecasts: when each GPU will be full at the rate at which what it holds grows.

A GPU grows as its holds do: that another program will start, or end, is not foretold. So a program that
starts makes no growth of a GPU, and one that ends takes its own along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from vram.diagnosis.tracker import KnownHold, Tracker
from vram.forecast.series import MIN_BLOCKS, Series
from vram.ledger.holds import find_holds
from vram.model.forecast import Forecast, GrowingHold, Growth
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.model.moment import Moment

AFTER_S = 300.0
"""Growth is forecast when it has lasted so long. The first so long of a program does not count: it starts."""
MAX_AHEAD = 4.0
"""So many times longer than growth was observed, and no further, it is thought to go on."""
MUCH = 20
"""A hold that falls below its latest levels by this part of the GPU has released memory."""
_READINGS_A_BLOCK = 2.0

_AreaKey = tuple[str, int | None]
"""A GPU and, where it is divided by MIG, the instance."""


class _Area(Struct, kw_only=True):
    """What has memory of its own, a GPU or a MIG instance of one, as the last reading showed it."""

    gpu: int
    place: str
    total: int
    free: int
    used: int
    since: float
    """It has answered in all readings since then."""
    read_at: float
    highest: deque[tuple[int, int]]
    """By block, the most that was in use in it, as far as all who used it are still there."""

    def note_used(self, block: int) -> None:
        most = self.used
        if self.highest and self.highest[-1][0] == block:
            most = max(most, self.highest.pop()[1])
        self.highest.append((block, most))
        while self.highest[0][0] <= block - MIN_BLOCKS:
            self.highest.popleft()

    @property
    def free_at_most(self) -> int:
        """What is free when all that was in use at once lately is in use again."""
        return max(0, self.free - (max(most for _, most in self.highest) - self.used))


class _Watched(Struct):
    """What one hold has on one GPU. Until ``from_s`` it starts, which says nothing about its growth."""

    from_s: float
    since: float
    series: Series


_ByArea = dict[_AreaKey, _Watched]


class Forecaster:
    """Takes readings in their order. ``forecasts`` are those of the last one, the soonest full first."""

    def __init__(self, interval_s: float, after_s: float = AFTER_S) -> None:
        self.forecasts: tuple[Forecast, ...] = ()
        self._after_s = after_s
        self._block_s = max(after_s / MIN_BLOCKS, _READINGS_A_BLOCK * interval_s)
        self.spans = (self._after_s, self._block_s)
        """What tells it from one with other settings."""
        self._block = 0
        self._holds: Tracker[KnownHold[_ByArea]] = Tracker()
        self._areas: dict[_AreaKey, _Area] = {}
        self._growing: list[tuple[_AreaKey, Hold, Series]] = []
        self._ledger: Ledger | None = None
        self._last: Moment | None = None

    def take(self, ledger: Ledger, moment: Moment, longest_pause_s: float) -> tuple[Forecast, ...]:
        """What follows from *ledger*, read at *moment*.

        Readings that are further apart than *longest_pause_s* say nothing about each other.
        """
        self.expire(moment, longest_pause_s)
        before, self._block = self._block, int(moment.boot / self._block_s)
        is_first, is_same = self._ledger is None, ledger is self._ledger
        self._ledger, self._last = ledger, moment
        if is_same:
            self._note_still_answering(moment.boot)
            if self._block == before:
                return self.forecasts
            for _, _, series in self._growing:
                series.add(self._block, series.nbytes)
        else:
            self._read_areas(ledger, moment.boot, longest_pause_s)
            self._read_holds(ledger, moment.boot, is_first)
        for area in self._areas.values():
            area.note_used(self._block)
        found = sorted(self._forecast(moment.boot), key=lambda each: (each.full_in_s, each.gpu, each.place))
        self.forecasts = tuple(found)
        return self.forecasts

    def expire(self, moment: Moment, longest_pause_s: float) -> None:
        """Forget everything where the last reading is too long ago, or was in another boot."""
        last = self._last
        if last is None or (
            last.boot_id == moment.boot_id and 0.0 <= moment.boot - last.boot <= longest_pause_s
        ):
            return
        self._holds.clear()
        self._areas, self._growing, self._ledger, self._last = {}, [], None, None
        self.forecasts = ()

    # ---- GPUs, and what is free on them ----

    def _read_areas(self, ledger: Ledger, boot: float, longest_pause_s: float) -> None:
        found = {key: area for gpu in ledger.gpus for key, area in _areas_of(gpu, boot)}
        for key, before in self._areas.items():
            if boot - before.read_at > longest_pause_s:
                continue  # what it shows now says nothing about that
            if key in found:
                found[key].highest, found[key].since = before.highest, before.since
            else:
                found[key] = before  # it does not answer: perhaps it does soon
        self._areas = found

    def _note_still_answering(self, boot: float) -> None:
        """The same reading again: what answered then answers now."""
        newest = max((area.read_at for area in self._areas.values()), default=boot)
        for area in self._areas.values():
            if area.read_at == newest:
                area.read_at = boot

    # ---- holds ----

    def _read_holds(self, ledger: Ledger, boot: float, is_first: bool) -> None:
        """Take the size of each hold. One that has gone is forgotten once its GPUs answer without it."""
        self._growing = []
        silent = {area.gpu for area in self._areas.values() if area.read_at != boot}
        silent |= {gpu.index for gpu in ledger.gpus if gpu.status != "ok"}
        for hold, known, _ in self._holds.match(each for each in find_holds(ledger) if each.parts):
            watched = known.value if known is not None else {}
            self._take_hold(ledger, hold, watched, boot, is_first)
            self._holds.keep(KnownHold(hold, watched))
        for gone in self._holds.missing(lambda each: silent.isdisjoint(each.hold.gpus)):
            self._note_release(gone.value)

    def _take_hold(self, ledger: Ledger, hold: Hold, watched: _ByArea, boot: float, is_first: bool) -> None:
        sizes = _sizes(ledger, hold)
        for key in watched.keys() - sizes.keys():
            area = self._areas.get(key)
            if area is None or area.read_at == boot:  # it was released, or its size is unknown now
                self._note_release((key,))
                del watched[key]
        for key, nbytes in sizes.items():
            area, mine = self._areas.get(key), watched.get(key)
            if area is None or area.read_at != boot:
                continue
            if mine is not None and self._has_fallen(mine.series, nbytes, area):
                self._note_release((key,))
            if mine is None:
                started_s = _age_s(hold) if is_first else 0.0
                from_s = boot + max(0.0, self._after_s - started_s)
                watched[key] = _Watched(from_s, boot, Series(self._block, nbytes, self._block_s))
            elif boot < mine.from_s or mine.since < area.since:
                mine.since = boot
                mine.series = Series(self._block, nbytes, self._block_s)
            else:
                mine.series.add(self._block, nbytes)
                if mine.series.growth is not None:
                    self._growing.append((key, hold, mine.series))

    def _has_fallen(self, series: Series, nbytes: int, area: _Area) -> bool:
        return nbytes < series.lowest_lately and series.nbytes - nbytes > area.total // MUCH

    def _note_release(self, keys: Iterable[_AreaKey]) -> None:
        """What was in use before says nothing any more about what may be in use again."""
        for key in keys:
            if key in self._areas:
                self._areas[key].highest.clear()

    # ---- what follows ----

    def _forecast(self, boot: float) -> Iterator[Forecast]:
        by_area: dict[_AreaKey, list[tuple[Hold, Series, Growth]]] = {}
        for key, hold, series in self._growing:
            if series.growth is not None:
                by_area.setdefault(key, []).append((hold, series, series.growth))
        for key, growing in by_area.items():
            area = self._areas.get(key)
            if area is None or area.read_at != boot:
                continue
            whole = _together([growth for _, _, growth in growing])
            free = area.free_at_most
            full_in_s = free / whole.bytes_per_s
            if full_in_s > MAX_AHEAD * whole.span_s:
                continue
            growing.sort(key=lambda each: -each[2].bytes_per_s)
            yield Forecast(
                gpu=area.gpu,
                place=area.place,
                free_bytes=free,
                full_in_s=full_in_s,
                earliest_s=max(0.0, free / whole.most_bytes_per_s - whole.apart_s),
                latest_s=free / whole.least_bytes_per_s + whole.apart_s,
                growth=whole,
                growing=tuple(_growing_hold(hold, series, growth, free) for hold, series, growth in growing),
            )


def _together(growths: Collection[Growth]) -> Growth:
    return Growth(
        bytes_per_s=sum(each.bytes_per_s for each in growths),
        least_bytes_per_s=sum(each.least_bytes_per_s for each in growths),
        most_bytes_per_s=sum(each.most_bytes_per_s for each in growths),
        span_s=max(each.span_s for each in growths),
        apart_s=max(each.apart_s for each in growths),
    )


def _growing_hold(hold: Hold, series: Series, growth: Growth, free: int) -> GrowingHold:
    holder = hold.holder
    return GrowingHold(
        nbytes=series.nbytes,
        growth=growth,
        full_in_s=free / growth.bytes_per_s,
        pid=hold.pid,
        started_at=holder.started_at if holder else None,
        user=holder.user if holder else None,
        command=holder.command if holder else None,
    )


def _areas_of(gpu: GpuLedger, boot: float) -> Iterator[tuple[_AreaKey, _Area]]:
    """What of *gpu* has memory of its own, and says how much of it is free."""
    if gpu.status != "ok":
        return
    if not gpu.instances:
        yield from _area(gpu, None, str(gpu.index), gpu.total_bytes, gpu.entries, boot)
    for each in gpu.instances:
        entries = [entry for entry in gpu.entries if entry.gpu_instance == each.gpu_instance]
        place = f"{gpu.index}:{each.devices[0].index}" if each.devices else str(gpu.index)
        yield from _area(gpu, each.gpu_instance, place, each.total_bytes, entries, boot)


def _area(
    gpu: GpuLedger,
    instance: int | None,
    place: str,
    total: int | None,
    entries: Collection[Entry],
    boot: float,
) -> Iterator[tuple[_AreaKey, _Area]]:
    if not total or any(entry.kind == "unreported" and entry.nbytes for entry in entries):
        return
    free = sum(entry.nbytes or 0 for entry in entries if entry.kind == "free")
    yield (
        (gpu.uuid or str(gpu.index), instance),
        _Area(
            gpu=gpu.index,
            place=place,
            total=total,
            free=free,
            used=total - free,
            since=boot,
            read_at=boot,
            highest=deque(),
        ),
    )


def _sizes(ledger: Ledger, hold: Hold) -> dict[_AreaKey, int]:
    """What *hold* has on each GPU or instance, where all of that is known."""
    sizes: dict[_AreaKey, int | None] = {}
    for part in hold.parts:
        gpu, nbytes = ledger.gpus[part.at], part.entry.nbytes
        key = (gpu.uuid or str(gpu.index), part.entry.gpu_instance if gpu.instances else None)
        before = sizes.get(key, 0)
        sizes[key] = None if before is None or nbytes is None else before + nbytes
    return {key: nbytes for key, nbytes in sizes.items() if nbytes is not None}


def _age_s(hold: Hold) -> float:
    """For how long its youngest holder runs; what is not known is not thought to have just started."""
    ages = [each.age_s for each in hold.holders if each.age_s is not None]
    return min(ages) if ages else float("inf")
