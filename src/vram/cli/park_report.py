"""Several processes parked or brought back one after the other: what was done and what was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.cli.parking import say
from vram.cli.terminal import Progress, emit
from vram.errors import ExitCode, VramError
from vram.model.parking import GpuShare, Parked
from vram.model.plan import Target
from vram.reclaim.parking import Moved, Parking
from vram.reclaim.preflight import DriverReport, ParkOptions, identify_parkable
from vram.report.escape import inert
from vram.report.json import encode

if TYPE_CHECKING:
    from vram.host.ports import Host


class MovedLine(Struct, frozen=True, kw_only=True):
    """A process that was moved, and how long that took; ``driver_s`` of it in the driver's calls."""

    pid: int
    nbytes: int
    shares: tuple[GpuShare, ...]
    took_s: float
    driver_s: float


class RefusedLine(Struct, frozen=True, kw_only=True):
    """A process that was not moved; ``exit_code`` names the kind of reason."""

    pid: int
    message: str
    hint: str
    exit_code: int


class ParkReport(Struct, frozen=True, kw_only=True):
    """What ``vram park --json`` and ``vram unpark --json`` print."""

    schema: int = 1
    moved: tuple[MovedLine, ...]
    refused: tuple[RefusedLine, ...]


class ParkRun:
    """Collects outcomes and prints them; the exit code is that of the first refusal."""

    def __init__(self, silent: bool, sentence: Callable[[Parked], str]) -> None:
        self._silent = silent
        self._sentence = sentence
        self._moved: list[MovedLine] = []
        self._refused: list[RefusedLine] = []
        self.progress = Progress()

    @property
    def exit_code(self) -> int:
        return self._refused[0].exit_code if self._refused else ExitCode.OK

    def check_all(
        self, host: Host, parking: Parking, report: DriverReport, pids: Sequence[int], *, anyway: bool
    ) -> list[tuple[Target, tuple[GpuShare, ...]]]:
        """Check every one of *pids* before the first is touched; one refusal stops them all."""
        found: list[tuple[Target, tuple[GpuShare, ...]]] = []
        for pid in pids:
            if pid not in report.listed or parking.journal.find(pid):
                self._require_not_parked(host, parking, pid)
            taken = sum(share.nbytes for _, shares in found for share in shares)
            options = ParkOptions(taken_before=taken, together=len(pids), anyway=anyway)
            found.append(identify_parkable(host, report, pid, options))
        return found

    def _require_not_parked(self, host: Host, parking: Parking, pid: int) -> None:
        """Raise where it is parked already. The driver is asked only where the process uses CUDA."""
        if host.limits.uses_cuda(pid) and not host.limits.read(pid).given_up:
            parking.require_not_parked(pid)

    @contextmanager
    def attempt(self, words: str, pids: Sequence[int], nbytes: int) -> Iterator[None]:
        """Move processes, all or none; where that fails, the error is recorded and what follows is tried."""
        self.progress.begin(words, nbytes)
        try:
            yield
        except VramError as error:
            self.progress.end()
            self._refused += [
                RefusedLine(pid=pid, message=str(error), hint=error.hint, exit_code=int(error.exit_code))
                for pid in pids
            ]
            if not self._silent:
                say(f"{error}" + (f" ({error.hint})" if error.hint else ""))
        finally:
            self.progress.end()

    def done(self, moved: Moved) -> None:
        entry = moved.entry
        self._moved.append(
            MovedLine(
                pid=entry.target.process.pid,
                nbytes=entry.nbytes,
                shares=entry.shares,
                took_s=round(moved.took_s, 6),
                driver_s=round(moved.driver_s, 6),
            )
        )
        self.progress.end()
        if not self._silent:
            emit(inert(self._sentence(moved.entry)) + "\n")

    def json(self) -> bytes:
        return encode(ParkReport(moved=tuple(self._moved), refused=tuple(self._refused)))
