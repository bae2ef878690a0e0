"""Histories of GPU memory to judge forecasts by: what programs do that leak, and what those do that do not.

Each is made from a seed. A history is a list of moments, five seconds apart where nothing else is said, with
what each program holds then. What programs do between two readings is not seen, as on a real machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import exp, pi, sin
from random import Random
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from vram.forecast.forecaster import Forecaster
from vram.model.forecast import Forecast
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.moment import Moment
from vram.model.observation import HostFacts
from vram.units import GIB, MIB

TOTAL = 80 * GIB
INTERVAL_S = 5.0
PAUSE_S = 55.0
"""What the service allows between two readings with its usual interval."""
ALARM_S = 900.0
"""The alert of deploy/prometheus: full within so long."""
ALARM_AFTER_S = 120.0
HOST = HostFacts(name="host", kernel="6.18", user="root", uid=0)
PAGE = 2 * MIB

Program = Callable[[float], float | None]
"""What it holds so many seconds after the start; None while it does not run."""


class Read(NamedTuple):
    """One reading: when, and what each program holds; None where it failed. ``lost``: the GPU is silent."""

    at_s: float
    held: dict[int, int] | None
    wall_s: float
    lost: bool = False


class Found(NamedTuple):
    """What was forecast for a history, reading by reading, and when the GPU was full."""

    reads: tuple[tuple[float, Forecast | None], ...]
    full_s: float | None

    @property
    def alarms(self) -> list[float]:
        """When there was an alarm: so says each reading, and did for two minutes, as the alert asks."""
        found, since = [], None
        for at, each in self.reads:
            since = (
                (at if since is None else since) if each is not None and each.full_in_s <= ALARM_S else None
            )
            if since is not None and at - since >= ALARM_AFTER_S:
                found.append(at)
        return found

    @property
    def lead_s(self) -> float | None:
        """How long before it was full the first alarm was; None without one."""
        before = [at for at in self.alarms if self.full_s is not None and at < self.full_s]
        return self.full_s - before[0] if before and self.full_s is not None else None

    @property
    def flickers(self) -> int:
        """How often an alarm went out and came again."""
        alarms = set(self.alarms)
        on = [at in alarms for at, _ in self.reads]
        return sum(after and not before for before, after in pairwise(on)) - 1

    @property
    def covered(self) -> tuple[int, int]:
        """Of how many forecasts the interval holds the truth, and of how many in all."""
        said = [(at, each) for at, each in self.reads if each is not None and at < (self.full_s or 0.0)]
        held = [at + each.earliest_s <= (self.full_s or 0.0) <= at + each.latest_s for at, each in said]
        return sum(held), len(held)


# ---- histories ----


def run(*programs: Program, until_s: float, every_s: float = INTERVAL_S) -> Iterator[Read]:
    """The programs on one GPU, until it is full."""
    at_s = 0.0
    while at_s < until_s:
        held = {}
        for pid, program in enumerate(programs, 1):
            nbytes = program(at_s)
            if nbytes is not None:
                held[pid] = max(1, int(nbytes // PAGE)) * PAGE
        yield Read(at_s, held, at_s)
        if sum(held.values()) >= TOTAL:
            return
        at_s += every_s


def forecasts(reads: Iterator[Read], *, every_s: float = INTERVAL_S, is_young: bool = False) -> Found:
    """What is forecast, reading by reading. *is_young*: the programs have started with the history."""
    forecaster, found, full_s = Forecaster(every_s), [], None
    first: dict[int, float] = {}
    for read in reads:
        moment = Moment(1_800_000_000.0 + read.wall_s, 1000.0 + read.at_s, "boot")
        if read.held is None:
            forecaster.expire(moment, max(PAUSE_S, 3 * every_s))
        else:
            for pid in read.held:
                first.setdefault(pid, read.at_s)
            ages = {pid: read.at_s - first[pid] + (0 if is_young else 3600) for pid in read.held}
            forecaster.take(ledger(read.held, ages, lost=read.lost), moment, max(PAUSE_S, 3 * every_s))
            if sum(read.held.values()) >= TOTAL and full_s is None:
                full_s = read.at_s
        found.append((read.at_s, forecaster.forecasts[0] if forecaster.forecasts else None))
    return Found(tuple(found), full_s)


def ledger(held: dict[int, int], ages: dict[int, float], *, lost: bool = False) -> Ledger:
    entries = [
        Entry(
            kind="process",
            nbytes=nbytes,
            holder=Holder(
                pid=pid, started_at=pid, user="ada", command=f"python {pid}.py", alive=True, age_s=ages[pid]
            ),
        )
        for pid, nbytes in held.items()
    ]
    free = Entry(kind="free", nbytes=max(0, TOTAL - sum(held.values())))
    gpu = GpuLedger(index=0, uuid="GPU-0", name="H200", total_bytes=TOTAL, entries=(*entries, free))
    if lost:
        gpu = replace(gpu, status="lost", total_bytes=None, entries=())
    return Ledger(taken_at="", host=HOST, gpus=(gpu,))


# ---- what programs do ----


def steady(random: Random) -> Program:
    """It holds what it holds, and sometimes some pages more."""
    base, more = random.uniform(10, 79) * GIB, random.choice((0, 2, 64)) * MIB
    return lambda at_s: base + random.uniform(0, more)


def training(random: Random, most: float = 78.0) -> Program:
    """A step takes activations and frees them; readings meet it anywhere."""
    base = random.uniform(10, 40)
    height, rises = random.uniform(1, most - base), random.uniform(0.2, 0.9)
    steps = _steps(random, random.uniform(0.2, 40.0))
    return lambda at_s: GIB * (base + height * _tooth(steps(at_s), rises))


def _steps(random: Random, period_s: float) -> Callable[[float], float]:
    """How much of its step is done; steps take some percent more or less time than the last one."""
    before_s = done = 0.0

    def part(at_s: float) -> float:
        nonlocal before_s, done
        steps, before_s = (at_s - before_s) / period_s, at_s
        done += steps + random.gauss(0, 0.03) * max(0.0, steps) ** 0.5
        return done % 1.0

    return part


def _tooth(part: float, rises: float) -> float:
    return part / rises if part < rises else (1.0 - part) / (1.0 - rises)


def collected(random: Random, shortest_s: float = 20.0, longest_s: float = 290.0) -> Program:
    """It fills a pool until that is collected at once."""
    base, period_s = random.uniform(5, 30), random.uniform(shortest_s, longest_s)
    height, offset = random.uniform(5, 78 - base), random.random()
    return lambda at_s: GIB * (base + height * ((at_s / period_s + offset) % 1.0))


def warm_up(random: Random, longest_s: float = 280.0) -> Program:
    """A program that starts: it grows in one of four ways, and then trains or serves."""
    high, grows_s, how = random.uniform(20, 79), random.uniform(10, longest_s), random.randrange(4)
    step = random.uniform(0, 0.1) * high

    def grown(at_s: float) -> float:
        part = min(1.0, at_s / grows_s)
        if how == 0:
            return part
        if how == 1:
            return (1 - exp(-4 * part)) / (1 - exp(-4))
        if how == 2:
            return int(part * 12) / 12
        return part**2

    return lambda at_s: GIB * (grown(at_s) * high - random.uniform(0, step) * (at_s > grows_s))


def server(random: Random) -> Program:
    """Its load is that of its users: by day and by night, and up and down within minutes."""
    middle, swing = random.uniform(30, 50), random.uniform(5, 25)
    phase, wander, jitter = random.random(), 0.0, random.uniform(0.1, 2.0)

    def held(at_s: float) -> float:
        nonlocal wander
        wander = 0.97 * wander + random.gauss(0, jitter / 4)
        return GIB * min(79.0, max(2.0, middle + swing * sin(2 * pi * (at_s / 86400 + phase)) + wander))

    return held


def noise(random: Random) -> Program:
    """It allocates and frees by chance, around a level that it comes back to."""
    middle, share = random.uniform(20, 60), random.choice((0.0, 0.5, 0.9, 0.98))
    width, now = random.uniform(0.5, (79 - middle) / 4), 0.0

    def held(at_s: float) -> float:
        nonlocal now
        now = share * now + (1 - share**2) ** 0.5 * random.gauss(0, width)
        return GIB * min(79.0, max(1.0, middle + now))

    return held


def spikes(random: Random) -> Program:
    """Now and then it takes nearly everything, for a moment."""
    base, often = random.uniform(10, 60), random.uniform(0.002, 0.05)
    left = 0

    def held(at_s: float) -> float:
        nonlocal left
        left = random.randint(1, 8) if random.random() < often else max(0, left - 1)
        return GIB * (79.0 if left else base)

    return held


def hostile(random: Random) -> Program:
    """It jumps to the maximum and back, to make others believe what is not so."""
    return lambda at_s: GIB * random.choice((0.5, 79.0))


def between(program: Program, start_s: float, end_s: float = float("inf")) -> Program:
    """*program*, which runs from then to then."""
    return lambda at_s: program(at_s - start_s) if start_s <= at_s < end_s else None


# ---- leaks: full after *full_s* ----


def leak(random: Random, full_s: float, base: float | None = None) -> Program:
    """A little more with every request."""
    low = random.uniform(5, 50) if base is None else base
    return lambda at_s: GIB * (low + (80.5 - low) * at_s / full_s + random.uniform(0, 0.05))


def leak_by_steps(random: Random, full_s: float) -> Program:
    """More with every epoch."""
    low, steps = random.uniform(5, 50), random.randint(40, 200)
    return lambda at_s: GIB * (low + (80.5 - low) * int(steps * at_s / full_s) / steps)


def leak_in_training(random: Random, full_s: float) -> Program:
    """A training whose steps come back to a level that rises."""
    low, height = random.uniform(5, 30), random.uniform(2, 20)
    steps, rises = _steps(random, random.uniform(0.2, 20.0)), random.uniform(0.2, 0.9)
    rest = 80.5 - low - height
    return lambda at_s: GIB * (low + rest * at_s / full_s + height * _tooth(steps(at_s), rises))


def leak_after_warm_up(random: Random, full_s: float) -> Program:
    """Four minutes of start, and then the leak."""
    low = random.uniform(20, 60)
    return lambda at_s: (
        GIB * (low * min(1.0, at_s / 240) + (80.5 - low) * max(0.0, at_s - 240) / (full_s - 240))
    )


def leak_that_hastens(random: Random, full_s: float) -> Program:
    """The more it holds, the faster it grows."""
    low = random.uniform(5, 50)
    return lambda at_s: GIB * (low + (80.5 - low) * (at_s / full_s) ** 1.5)


# ---- what is counted ----


class Quiet(NamedTuple):
    """Programs that do not leak, of which an alarm is a false one."""

    make: Callable[[Random], tuple[Program, ...]]
    hours: float = 1.5
    every_s: float = INTERVAL_S
    is_young: bool = False


def _quarters(*programs: Program) -> tuple[Program, ...]:
    return tuple(lambda at_s, each=each: (each(at_s) or 0.0) / 4 for each in programs)  # type: ignore[misc]


QUIET = {
    "steady": Quiet(lambda random: (steady(random),)),
    "training, by steps": Quiet(lambda random: (training(random),)),
    "a pool that is collected": Quiet(lambda random: (collected(random),)),
    "start of a training": Quiet(lambda random: (warm_up(random),), hours=0.5, is_young=True),
    "starts beside a training": Quiet(
        lambda random: (
            *_quarters(training(random)),
            between(_quarters(warm_up(random))[0], 900.0),
            between(_quarters(warm_up(random))[0], 1400.0, 2400.0),
        )
    ),
    "up and down by chance": Quiet(lambda random: (noise(random),), hours=3),
    "spikes": Quiet(lambda random: (spikes(random),)),
    "to the maximum and back": Quiet(lambda random: (hostile(random),), hours=0.5, every_s=1.0),
    "a server, two days": Quiet(lambda random: (server(random),), hours=48, every_s=20.0),
    "four programs": Quiet(
        lambda random: _quarters(training(random), collected(random), noise(random), steady(random))
    ),
    "programs that come and go": Quiet(
        lambda random: tuple(
            between(_quarters(leak(random, 1200.0))[0], 120.0 * at, 120.0 * at + random.uniform(30, 280))
            for at in range(30)
        )
    ),
}

LEAKS: dict[str, tuple[Callable[[Random, float], tuple[Program, ...]], bool]] = {
    "with every request": (lambda random, full_s: (leak(random, full_s),), False),
    "with every epoch": (lambda random, full_s: (leak_by_steps(random, full_s),), False),
    "under the steps of a training": (lambda random, full_s: (leak_in_training(random, full_s),), False),
    "after four minutes of start": (lambda random, full_s: (leak_after_warm_up(random, full_s),), True),
    "faster and faster": (lambda random, full_s: (leak_that_hastens(random, full_s),), False),
    "beside a training": (
        lambda random, full_s: (leak(random, full_s, 20.0), *_quarters(training(random, 20.0))),
        False,
    ),
}
FULL_S = (1200.0, 2400.0, 3600.0, 7200.0, 14400.0, 28800.0)
"""When a leak has filled the GPU."""


def quiet(kind: str, seed: int) -> Found:
    """What is forecast of the history *seed* of that kind."""
    how = QUIET[kind]
    reads = run(*how.make(Random(f"{kind} {seed}")), until_s=how.hours * 3600, every_s=how.every_s)
    return forecasts(reads, every_s=how.every_s, is_young=how.is_young)


def leaking(kind: str, seed: int) -> Found:
    make, is_young = LEAKS[kind]
    random, full_s = Random(f"{kind} {seed}"), FULL_S[seed % len(FULL_S)]
    return forecasts(run(*make(random, full_s), until_s=2 * full_s), is_young=is_young)


def slow_pool(seed: int) -> Program:
    """A pool that is collected every ten to thirty minutes: nothing tells its first time from a leak."""
    return collected(Random(seed), 600.0, 1800.0)


def count(histories: int) -> None:
    """Print what docs/guides/serve.md says."""
    for kind in QUIET:
        found = [quiet(kind, seed) for seed in range(histories)]
        print(f"{kind}: {sum(bool(each.alarms) for each in found)} of {histories} with a false alarm")
    for kind in LEAKS:
        found = [leaking(kind, seed) for seed in range(histories)]
        leads = [each.lead_s for each in found if each.lead_s is not None]
        held, said = (sum(each.covered[at] for each in found) for at in (0, 1))
        print(
            f"{kind}: {len(leads)} of {histories} found, {min(leads):.0f} s before at least, "
            f"{median(leads):.0f} s mostly, "
            f"{held / said:.0%} of intervals right, {sum(max(0, each.flickers) for each in found)} out and on"
        )
    slow = [forecasts(run(slow_pool(seed), until_s=3 * 3600.0)) for seed in range(histories)]
    print(f"pools that take longer: {sum(bool(each.alarms) for each in slow)} of {histories} taken for leaks")


if __name__ == "__main__":
    import sys

    count(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
