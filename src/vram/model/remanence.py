"""What memory still showed of its last owner, in plain data, with how far the test reached."""

from __future__ import annotations

from msgspec import Struct


class Trial(Struct, frozen=True, kw_only=True):
    """Bytes were written, freed, asked for again and read.

    ``control`` is how many of them a reading before the free found: unless it is all, the trial
    says nothing. ``nonzero`` counts what was left of anybody. ``skipped`` says why it was not made.
    """

    place: str
    sampled: int = 0
    control: int = 0
    found: int = 0
    nonzero: int = 0
    same_address: bool = False
    skipped: str | None = None

    @property
    def is_valid(self) -> bool:
        return self.skipped is None and self.sampled > 0 and self.control == self.sampled


class Remanence(Struct, frozen=True, kw_only=True):
    """One run on one GPU; it speaks for this GPU, driver and mode, and for the bytes sampled."""

    gpu: str
    driver: str
    mode: str
    total: int
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        return "\n".join(
            [f"on {self.gpu}, driver {self.driver}, {self.mode}:", *map(self._line, self.trials)]
        )

    def _line(self, trial: Trial) -> str:
        if trial.skipped is not None:
            return f"  {trial.place}: not measured, {trial.skipped}"
        if not trial.is_valid:
            seen = f"{trial.control:,} of {trial.sampled:,}"
            return f"  {trial.place}: nothing can be said, the control found {seen} bytes"
        scope = f"{trial.sampled:,} of {self.total:,} bytes sampled"
        return f"  {trial.place}: {scope}, {_found(trial)} (the control found all)"


def _found(trial: Trial) -> str:
    ours = "none found" if not trial.found else f"{trial.found:,} found"
    if trial.found == trial.sampled:
        ours = "every old byte found"
    others = trial.nonzero - trial.found
    return ours if others <= 0 else f"{ours}, and {others:,} others that are not zero"
