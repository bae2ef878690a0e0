"""What guard's checks found: what a scope did not free, and what freed memory still contained."""

from __future__ import annotations

from msgspec import Struct


class ScopeNote(str):
    """A note on a scope: text for people, and a ``code`` for programs.

    The codes say why a gain could not be checked: ``graph-capture`` (a framework or a capture objected),
    ``context-inside`` (the context was made inside the scope) or ``mixed`` (other scopes ran meanwhile).
    """

    __slots__ = ("code",)
    code: str

    @classmethod
    def of(cls, code: str, text: str) -> ScopeNote:
        note = cls(text)
        note.code = code
        return note


class Gain(Struct, frozen=True):
    """Bytes in use at the end beyond those at the beginning, in one framework or outside all of them."""

    where: str
    nbytes: int


class LeakedArray(Struct, frozen=True, kw_only=True):
    """One live GPU array that did not exist at the beginning, and the reference that holds it, as text."""

    what: str
    nbytes: int
    holder: str


class EqualArrays(Struct, frozen=True, kw_only=True):
    """Arrays of one kind and size, in one container: ``holder`` has the span of their positions."""

    count: int
    each_nbytes: int
    what: str
    holder: str

    @property
    def nbytes(self) -> int:
        return self.count * self.each_nbytes


class Leak(Struct, frozen=True, kw_only=True):
    """The leak of one scope. ``names`` are several where scopes ran at the same time. ``arrays`` are the
    largest ones, each for itself; ``groups`` has equal ones together, and with them more of them."""

    names: tuple[str, ...]
    gains: tuple[Gain, ...]
    arrays: tuple[LeakedArray, ...] = ()
    groups: tuple[EqualArrays, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(gain.nbytes for gain in self.gains)


# ---- what memory still contained of its last owner's data, and what the test covered ----


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
