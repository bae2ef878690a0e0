"""What memory still contained of its last owner's data, as plain data, and what the test covered."""

from __future__ import annotations

from msgspec import Struct

from vram.deprecation import warn_renamed


class Trial(Struct, frozen=True, kw_only=True):
    """Bytes were written, freed, allocated again and read.

    ``source`` is the kind of memory. ``control`` is how many bytes were read back before the free: unless
    it is all, the trial proves nothing. ``nonzero`` counts bytes of any former owner. ``skipped`` says
    why the trial was not made.
    """

    source: str
    sampled: int = 0
    control: int = 0
    found: int = 0
    nonzero: int = 0
    same_address: bool = False
    skipped: str | None = None

    @property
    def is_valid(self) -> bool:
        return self.skipped is None and self.sampled > 0 and self.control == self.sampled

    @property
    def place(self) -> str:
        """Old name of ``source``."""
        warn_renamed("place", "source")
        return self.source


class Remanence(Struct, frozen=True, kw_only=True):
    """One run on one GPU; it is valid for this GPU, driver and mode, and for the bytes sampled."""

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
            return f"  {trial.source}: not measured, {trial.skipped}"
        if not trial.is_valid:
            read = f"{trial.control:,} of {trial.sampled:,}"
            return f"  {trial.source}: no result, the control found {read} bytes"
        scope = f"{trial.sampled:,} of {self.total:,} bytes sampled"
        return f"  {trial.source}: {scope}, {_found(trial)} (the control found all)"


def _found(trial: Trial) -> str:
    ours = "none found" if not trial.found else f"{trial.found:,} found"
    if trial.found == trial.sampled:
        ours = "every old byte found"
    others = trial.nonzero - trial.found
    return ours if others <= 0 else f"{ours}, and {others:,} others that are not zero"
