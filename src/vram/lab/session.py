"""Carries out experiments: enough memory, a deadline, a clean end, and no disturbance by others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from vram.errors import VramError
from vram.host.ports import Host
from vram.lab.claim import CannotTell, Conclusion, DefinedClaim
from vram.lab.device import LabDevice
from vram.lab.experiment import Experiment
from vram.lab.worker import WorkerPool
from vram.model.lab import Result, StageReading, Verdict

ATTEMPTS = 2
AHEAD = 3
"""Workers of so many claims start early: importing PyTorch takes as long as three or four experiments."""


class LabSession:
    """One GPU, one experiment after the other. Closing it leaves no process behind.

    Without *deadline_s* each experiment has its own.
    """

    def __init__(self, host: Host, device: LabDevice, deadline_s: float | None = None) -> None:
        self._host, self._device, self._deadline_s = host, device, deadline_s
        self._pool = WorkerPool(device.facts.uuid)
        self._prestarted: set[str] = set()

    def __enter__(self) -> LabSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    def run(self, claim: DefinedClaim, upcoming: Sequence[DefinedClaim] = ()) -> Result:
        """Test one claim. Whatever goes wrong is a reason why it cannot be told here.

        The first workers that *upcoming* will need are started meanwhile.
        """
        began = time.monotonic()
        for each in upcoming[:AHEAD]:
            if each.name not in self._prestarted:
                self._prestarted.add(each.name)
                self._pool.prestart(each.library)
        for _ in range(ATTEMPTS):
            conclusion, readings, again = self._attempt(claim)
            if not again:
                break
        return _result(claim, conclusion, readings, time.monotonic() - began)

    def _attempt(self, claim: DefinedClaim) -> tuple[Conclusion, tuple[StageReading, ...], bool]:
        """One attempt: its conclusion, its readings, and whether another one may do better."""
        allowed_s = claim.deadline_s if self._deadline_s is None else self._deadline_s
        try:
            experiment = Experiment(self._host, self._device, self._pool, claim.takes, allowed_s)
        except (CannotTell, VramError) as error:
            return Conclusion(None, str(error)), (), False
        with experiment:
            conclusion = _measured(claim, experiment)
        disturbance = experiment.disturbance or _memory_left(experiment)
        if disturbance:
            conclusion = Conclusion(None, disturbance, conclusion.figures)
        return conclusion, tuple(experiment.readings), disturbance is not None


def _measured(claim: DefinedClaim, experiment: Experiment) -> Conclusion:
    try:
        return claim.measure(experiment)
    except (CannotTell, VramError) as error:
        return Conclusion(None, str(error))


def _memory_left(experiment: Experiment) -> str | None:
    """With every process gone the device must be where it was: else others moved, or we misread."""
    try:
        if experiment.settled():
            return None
    except VramError as error:
        return str(error)
    return "device memory did not return to its first value: other memory changed meanwhile"


def _result(
    claim: DefinedClaim, conclusion: Conclusion, readings: tuple[StageReading, ...], took_s: float
) -> Result:
    page = claim.describe()
    return Result(
        experiment=page.name,
        topic=page.topic,
        claim=page.claim,
        source=page.source,
        verdict=_verdict(conclusion.holds),
        because=conclusion.because,
        figures=conclusion.figures,
        readings=readings,
        took_s=round(took_s, 2),
    )


def _verdict(holds: bool | None) -> Verdict:
    return "cannot tell" if holds is None else "true here" if holds else "false here"
