"""Carries out one experiment: enough room, a deadline, its end, and a verdict that others did not disturb."""

from __future__ import annotations

import time

from vram.errors import VramError
from vram.host.ports import Host
from vram.lab.answer import Answer, CannotTell
from vram.lab.bench import Bench, open_bench
from vram.lab.catalogue import Module, deadline_of, describe, load
from vram.lab.device import Device
from vram.model.lab import Reading, Result, Verdict

ATTEMPTS = 2


def conduct(name: str, host: Host, device: Device, deadline_s: float | None = None) -> Result:
    """Put one claim to the test. Whatever goes wrong is a reason why it cannot be told here.

    Without *deadline_s* each experiment has its own.
    """
    began = time.monotonic()
    module = load(name)
    allowed_s = deadline_of(module) if deadline_s is None else deadline_s
    for _ in range(ATTEMPTS):
        answer, readings, again = _attempt(module, host, device, allowed_s)
        if not again:
            break
    told = describe(name)
    return Result(
        experiment=told.name,
        topic=told.topic,
        claim=told.claim,
        source=told.source,
        verdict=_verdict(answer.holds),
        because=answer.because,
        figures=answer.figures,
        readings=readings,
        took_s=round(time.monotonic() - began, 2),
    )


def _attempt(
    module: Module, host: Host, device: Device, deadline_s: float
) -> tuple[Answer, tuple[Reading, ...], bool]:
    """One attempt: its answer, its readings, and whether another one may do better."""
    try:
        bench = open_bench(host, device, module.TAKES, deadline_s)
    except (CannotTell, VramError) as error:
        return Answer(None, str(error)), (), False
    with bench:
        answer = _measured(module, bench)
    disturbance = bench.disturbance or _leftover(bench)
    if disturbance:
        answer = Answer(None, disturbance, answer.figures)
    return answer, tuple(bench.readings), disturbance is not None


def _measured(module: Module, bench: Bench) -> Answer:
    try:
        return module.measure(bench)
    except (CannotTell, VramError) as error:
        return Answer(None, str(error))


def _leftover(bench: Bench) -> str | None:
    """With every process gone the device must be where it was: else somebody else moved, or we misread."""
    try:
        if bench.settled():
            return None
    except VramError as error:
        return str(error)
    return "the device did not come back to where it was: other memory moved meanwhile"


def _verdict(holds: bool | None) -> Verdict:
    return "cannot tell" if holds is None else "true here" if holds else "false here"
