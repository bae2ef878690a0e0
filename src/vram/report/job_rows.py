"""One row for each job: what ``vram`` lists, and ``vram top`` of orphans. `vram ps` has every process."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from vram.diagnosis import words
from vram.ledger.holds import find_holds
from vram.ledger.jobs import HeldByJob, by_job, has_shared_launcher
from vram.model.hold import Hold, State, place_order
from vram.model.ledger import Ledger
from vram.model.process import Job
from vram.report.process_rows import JobRow, ProcessRow, rank, row_of
from vram.units import counted, size

# A rank that is stopped or stuck is what its job waits for: it has a row of its own.
_FOLDED: tuple[State, ...] = ("orphan", "ok", "idle")
ORPHANS: tuple[State, ...] = ("orphan",)


def rows_by_job(ledger: Ledger, states: Collection[State] = _FOLDED) -> tuple[ProcessRow, ...]:
    """As ``process_rows.rows``, but processes of one job that are in one of *states* are one row.

    It works where one of them does: ranks wait for each other all the time.
    """
    found: list[ProcessRow] = []
    together: dict[bool, list[Hold]] = {}
    for hold in find_holds(ledger):
        if _can_fold(hold, states):
            together.setdefault(hold.state == "orphan", []).append(hold)
        else:
            found.append(row_of(hold))
    jobs = [job for holds in together.values() for job in by_job(holds)]
    found += [job_row(job) if len(job.holds) > 1 else row_of(job.holds[0]) for job in jobs]
    return tuple(sorted(found, key=rank))


def _can_fold(hold: Hold, states: Collection[State]) -> bool:
    job = hold.holder.job if hold.what == "process" and hold.holder else None
    if job is None or hold.state not in states:
        return False
    # What such a launcher started is ended together, and is no one thing to its user before.
    return hold.state == "orphan" or not has_shared_launcher(job)


def job_row(held: HeldByJob) -> JobRow:
    """The row of all processes of *held*, which are all orphans, or all in use."""
    rows = [row_of(hold) for hold in held.holds]
    first = rows[0]
    sizes = [row.nbytes for row in rows if row.nbytes is not None]
    by_place = _sums(rows)
    return JobRow(
        gpus=held.gpus,
        places=tuple(by_place),
        nbytes=sum(sizes) if sizes else None,
        nbytes_by_place=by_place,
        pid=first.pid,
        started_at=first.started_at,
        others=tuple(identity for row in rows[1:] for identity in row.identities),
        user=first.user,
        age_s=max((row.age_s for row in rows if row.age_s is not None), default=None),
        state="ok" if any(row.state == "ok" for row in rows) else first.state,
        command=job_name(held),
        note=", ".join(_notes(held)),
        parent=first.parent,
        group=first.group,
        workers=tuple(pid for row in rows for pid in row.workers),
        certain=all(row.certain for row in rows),
        job=held.job,
    )


def _sums(rows: list[ProcessRow]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for row in rows:
        for place, nbytes in row.nbytes_by_place.items():
            known = found.get(place)
            found[place] = known if nbytes is None else (known or 0) + nbytes
    return {place: found[place] for place in sorted(found, key=place_order)}


def _notes(held: HeldByJob) -> Iterator[str]:
    workers = sum(len(hold.workers) for hold in held.holds)
    if workers:
        yield f"+{counted(workers, 'worker')}"
    if cached := sum(hold.bytes_of("cached") for hold in held.holds):
        yield f"{size(cached)} cached"
    if any(each.executable_deleted for each in held.holders):
        yield "its program file was deleted"


# ---- what a job is called ----


def job_name(held: HeldByJob) -> str:
    """Say what was launched, and how many: "torchrun train.py, 8 ranks", "multiprocessing, 4 workers"."""
    names = {_script(each.command or "") for each in held.holders} if _has_scripts(held.job) else {""}
    script = names.pop() if len(names) == 1 else ""  # mpirun starts several programs as one job, too
    count = words.members(held.job, len(held.holders), launcher=False)
    return f"{held.job.by}{script and ' '}{script}, {count}"


def _has_scripts(job: Job) -> bool:
    """Whether its processes have command lines of their own; others have titles, or their launcher's code."""
    return job.rank is not None


_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
# Options of Python that are followed by a word of theirs.
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def _script(command: str) -> str:
    """The program that a rank runs, by its name: train.py, pkg.train, a.out; "" where it has none."""
    parts = iter(command.split())
    program = next(parts, "").rpartition("/")[2]
    if not _PYTHON.fullmatch(program):
        return program
    for word in parts:
        if word in _WITH_VALUE:
            next(parts, "")
        elif word == "-m":
            return next(parts, "")
        elif re.fullmatch(r"-[a-zA-Z]*c", word):
            return ""
        elif not word.startswith("-"):
            return word.rpartition("/")[2]
    return ""
