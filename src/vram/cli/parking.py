"""What the parking commands share: pids, recovery after a vram that died, and what was moved or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.cli.arguments import Parser
from vram.cli.terminal import Progress, emit, emit_json, say
from vram.errors import ExitCode, UsageError, VramError
from vram.model.parking import GpuShare, Parked
from vram.report.escape import inert

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.plan import Target
    from vram.reclaim.parking import Moved, Parking, Recovered, Unjournaled
    from vram.reclaim.preflight import DriverReport


def add_pids_argument(parser: Parser) -> None:
    parser.add_argument("pids", nargs="*", metavar="PID", help="the processes' pids")


def numbers(words: Sequence[str]) -> list[int]:
    """Pids as they were typed, each once."""
    for word in words:
        if not (word.isascii() and word.isdigit() and 0 < int(word) < 1 << 22):
            raise UsageError(f"{word!r} is not a pid", hint="write it like 4711; `vram who` lists them")
    return list(dict.fromkeys(map(int, words)))


def with_jobs(host: Host, pids: Sequence[int]) -> list[int]:
    """*pids* and the others of their jobs; a launcher, which holds nothing, stands for what it launched."""
    from vram.errors import NotOnGpu
    from vram.ledger.jobs import job_of
    from vram.reclaim.device_state import READ_S, read_ledger

    ledger = read_ledger(host, (), READ_S)
    found: dict[int, None] = {}
    for pid in pids:
        job = job_of(ledger, pid)
        if job is None:
            raise NotOnGpu(
                f"pid {pid} belongs to no job that holds GPU memory: no launcher is known that started it",
                hint=f"`vram park --tree {pid}` parks it and its descendants",
            )
        found.update(dict.fromkeys(job.pids))
    return list(found)


def recover(parking: Parking) -> tuple[Recovered, ...]:
    """Undo what a vram that died left behind, and say so."""
    words = {
        "unlocked": "was left locked by a vram that was killed; it is running again",
        "brought back": "was left parked by a `vram borrow` that was killed; it is back on its GPU",
        "no room": "was left parked by a `vram borrow` that was killed; its GPU has no room for it yet",
    }
    found = parking.recover() if parking.journal.entries() else ()
    for bad in parking.journal.set_aside:
        kept = f"; it is kept as {bad.kept_as}" if bad.kept_as else ""
        say(f"journal entry {bad.name} is not used: {bad.reason}{kept}")
    for each in found:
        pid = each.entry.target.process.pid
        if each.done in words:
            say(f"pid {pid} {words[each.done]}")
        if each.detail:
            say(f"pid {pid}: {each.detail}")
    return found


def warn_of_unasked(unjournaled: Unjournaled) -> None:
    """Say where the driver may know of more parked processes than it reported."""
    if unjournaled.unknown_state:
        say(unjournaled.unknown_state)
    for pid in unjournaled.silent:
        say(f"the driver does not answer about pid {pid}: whether it is parked is unknown")
    if not unjournaled.complete:
        say("the driver did not report on every process in time: more may be parked")


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

    def check_all(
        self, host: Host, parking: Parking, report: DriverReport, pids: Sequence[int], *, anyway: bool
    ) -> list[tuple[Target, tuple[GpuShare, ...]]]:
        """Check every one of *pids* before the first is touched; one refusal stops them all."""
        from vram.reclaim.preflight import ParkOptions, identify_parkable

        found: list[tuple[Target, tuple[GpuShare, ...]]] = []
        for pid in pids:
            may_be_parked = pid not in report.listed or parking.journal.find(pid)
            # The driver is asked only about a process that uses CUDA.
            if may_be_parked and host.limits.uses_cuda(pid) and not host.limits.read(pid).given_up:
                parking.require_not_parked(pid)
            taken = sum(share.nbytes for _, shares in found for share in shares)
            options = ParkOptions(taken_before=taken, together=len(pids), anyway=anyway)
            found.append(identify_parkable(host, report, pid, options))
        return found

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

    def finish(self) -> int:
        """Print the report where JSON was asked for; return the exit code."""
        if self._silent:
            emit_json(ParkReport(moved=tuple(self._moved), refused=tuple(self._refused)))
        return self._refused[0].exit_code if self._refused else ExitCode.OK
