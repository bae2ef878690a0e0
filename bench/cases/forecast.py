"""Forecasts: what one reading takes, beside comparing it with the one before, and what is remembered.

A simulated node (bench/simulated_node.py) stands for the machine: six hours of readings, a third of the holds
with another size in each. Times are CPU time; the ledger's holds are found before, as both need them. A
thousand GPUs are no machine, but a bound.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

from bench.row import Row
from bench.simulated_node import SimulatedNode
from vram.diagnosis.changes import Comparison
from vram.forecast.forecaster import Forecaster
from vram.ledger.holds import find_holds
from vram.model.ledger import Ledger
from vram.model.moment import Moment
from vram.units import MIB

HOURS, EVERY_S, PAUSE_S = 6, 10.0, 60.0
MANY_GPUS, MANY_READINGS = 1000, 60
MANY_S, MANY_BYTES = 0.1, 32 * MIB

Readings = list[tuple[Ledger, Moment]]


def run(turns: int) -> list[Row]:
    comparison, forecaster = Comparison(64 * MIB), Forecaster(EVERY_S)
    compared, forecast = [], []
    for ledger, moment in SimulatedNode(interval_s=EVERY_S, short=6).readings(HOURS * 3600):
        find_holds(ledger)
        began = time.thread_time()
        comparison.compare(ledger, ())
        between = time.thread_time()
        forecaster.take(ledger, moment, PAUSE_S)
        compared.append(between - began)
        forecast.append(time.thread_time() - between)
    beside = "finding out what changed"
    ours, theirs = statistics.median(forecast), statistics.median(compared)
    return [Row("forecasts of a reading, 16 GPUs, median", ours, "s", beside, theirs, 1.0), *_many()]


def _many() -> list[Row]:
    """A thousand GPUs, and three times as many holds."""
    readings = list(SimulatedNode(MANY_GPUS, EVERY_S, short=60).readings(MANY_READINGS * EVERY_S))
    spent = _taken(readings)
    tracemalloc.start()
    forecaster = Forecaster(EVERY_S)
    for ledger, moment in readings:
        forecaster.take(ledger, moment, PAUSE_S)
    remembered, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    what = f"forecasts of a reading, {MANY_GPUS:,} GPUs"
    return [
        Row(f"{what}, median", statistics.median(spent), "s", target=MANY_S),
        Row(f"{what}, the slowest", max(spent), "s"),
        Row(f"{what}: remembered", remembered, "bytes", target=MANY_BYTES),
    ]


def _taken(readings: Readings) -> list[float]:
    forecaster, spent = Forecaster(EVERY_S), []
    for ledger, moment in readings:
        find_holds(ledger)
        began = time.thread_time()
        forecaster.take(ledger, moment, PAUSE_S)
        spent.append(time.thread_time() - began)
    return spent
