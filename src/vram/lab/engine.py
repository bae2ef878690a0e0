"""Carries out experiments: enough room, a deadline, a clean end, and verdicts that others did not disturb."""

from __future__ import annotations

import time
from types import TracebackType

from vram.errors import VramError
from vram.host.ports import Host
from vram.lab.answer import Answer, CannotTell
from vram.lab.bench import Bench
from vram.lab.catalogue import Module, deadline_of, describe, library_of, load
from vram.lab.device import Device
from vram.lab.nursery import Nursery
from vram.model.lab import DeviceReading, Result, Verdict

ATTEMPTS = 2


class Session:
    """One GPU, one experiment after the other. Closing it leaves no process behind.

    Without *deadline_s* each experiment has its own.
    """

    def __init__(self, host: Host, device: Device, deadline_s: float | None = None) -> None:
        self._host, self._device, self._deadline_s = host, device, deadline_s
        self._nursery = Nursery(device.facts.uuid)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.close()

    def conduct(self, name: str, then: str | None = None) -> Result:
        """Put one claim to the test. Whatever goes wrong is a reason why it cannot be told here.

        What *then* will need first is started meanwhile.
        """
        began = time.monotonic()
        if then is not None:
            self._nursery.expect(library_of(load(then)))
        for _ in range(ATTEMPTS):
            answer, readings, again = self._attempt(load(name))
            if not again:
                break
        return _result(name, answer, readings, time.monotonic() - began)

    def _attempt(self, module: Module) -> tuple[Answer, tuple[DeviceReading, ...], bool]:
        """One attempt: its answer, its readings, and whether another one may do better."""
        allowed_s = deadline_of(module) if self._deadline_s is None else self._deadline_s
        try:
            bench = Bench(self._host, self._device, self._nursery, module.TAKES, allowed_s)
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


def _result(name: str, answer: Answer, readings: tuple[DeviceReading, ...], took_s: float) -> Result:
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
        took_s=round(took_s, 2),
    )


def _verdict(holds: bool | None) -> Verdict:
    return "cannot tell" if holds is None else "true here" if holds else "false here"
