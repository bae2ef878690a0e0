"""One line of the benchmark: a figure of ours beside somebody else's, or beside a bound."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["met", "MISSED", "absent", "for information"]


class Row(NamedTuple):
    """``ratio`` is ours over theirs: below 1 we are faster. ``target`` bounds the ratio, or,
    where nobody else is measured, the figure itself."""

    what: str
    ours: float
    unit: Literal["s", "bytes"]
    versus: str = ""
    theirs: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def verdict(self) -> Verdict:
        if self.versus and self.theirs is None:
            return "absent"
        if self.target is None:
            return "for information"
        measured = self.ratio if self.versus else self.ours
        return "met" if measured is not None and measured <= self.target else "MISSED"

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return (self.what, self._shown(self.ours), self._against(), ratio, self._bound(), self.verdict)

    def _against(self) -> str:
        if not self.versus:
            return self.note
        return f"{self.versus} {self._shown(self.theirs)}" if self.theirs is not None else self.versus

    def _bound(self) -> str:
        if self.target is None:
            return ""
        return f"<= {self.target:.2f}" if self.versus else f"<= {self._shown(self.target)}"

    def _shown(self, figure: float) -> str:
        if self.unit == "bytes":
            return f"{figure / 1024**2:.1f} MiB"
        if figure >= 1:
            return f"{figure:.2f} s"
        return f"{figure * 1e3:.1f} ms" if figure >= 1e-3 else f"{figure * 1e6:.2f} µs"
