"""Charges that moved: memory that a process has held since another one ended, as the history recorded it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from msgspec.structs import replace

from vram.diagnosis.held import MIN_CONTEXT, is_taken_over
from vram.errors import VramError
from vram.history.file import DAMAGE, open_for_reading
from vram.history.questions import within
from vram.history.schema import ENDED_UNSEEN, OPEN_SPAN, PROCESS
from vram.ledger.processes import in_use
from vram.model.ledger import Entry, GpuLedger, Ledger, TakenOver
from vram.units import size

# An answer to `vram why` that took longer would be worth less than the time.
_MAX_S = 0.25

# Where a hold that is still open grew in the reading in which others on its GPU ended: who they were, what
# they had, and how large it was before, from then on at least, and now.
_GROWN = """
SELECT step.moment, step.nbytes, ended.pid,
  coalesce((SELECT nbytes FROM step AS s WHERE s.hold = ended.id ORDER BY moment DESC LIMIT 1), ended.nbytes),
  coalesce((SELECT nbytes FROM step AS s WHERE s.hold = step.hold AND s.moment < step.moment
            ORDER BY moment DESC LIMIT 1), hold.nbytes),
  (SELECT min(nbytes) FROM step AS s WHERE s.hold = step.hold AND s.moment >= step.moment)
FROM hold
JOIN program ON program.id = hold.program
JOIN step ON step.hold = hold.id
JOIN hold AS ended ON ended.until = step.moment AND ended.gpu = hold.gpu AND ended.topic = ?
  AND ended.flags & ? = 0
JOIN program AS other ON other.id = ended.program AND other.uid IS program.uid
WHERE hold.gpu = ? AND hold.span = ? AND hold.topic = ? AND hold.pid = ? AND hold.started_at = ?
ORDER BY step.moment DESC LIMIT 100
"""


def with_taken_over(ledger: Ledger, path: str) -> Ledger:
    """*ledger*, in which entries say whose memory they have taken over; as it is where no history tells."""
    if not os.access(os.path.dirname(path), os.W_OK):
        return ledger  # there a reader has to copy the whole file first
    try:
        with closing(open_for_reading(path)) as connection, within(connection, _MAX_S):
            return replace(ledger, gpus=tuple(_with_sources(connection, gpu) for gpu in ledger.gpus))
    except (VramError, OSError, *DAMAGE):
        return ledger  # the history is no part of the answer


def _with_sources(connection: sqlite3.Connection, gpu: GpuLedger) -> GpuLedger:
    if gpu.driver != "nvidia" or gpu.instances or gpu.uuid is None:
        return gpu
    row = connection.execute("SELECT id FROM gpu WHERE uuid = ? AND mig IS NULL", (gpu.uuid,)).fetchone()
    if row is None:
        return gpu
    return replace(gpu, entries=tuple(_with_source(connection, row[0], entry) for entry in gpu.entries))


def _with_source(connection: sqlite3.Connection, gpu: int, entry: Entry) -> Entry:
    holder = entry.holder
    if entry.kind != "process" or not in_use(entry) or holder is None or (entry.nbytes or 0) < MIN_CONTEXT:
        return entry
    who = (PROCESS, ENDED_UNSEEN, gpu, OPEN_SPAN, PROCESS, holder.pid, holder.started_at)
    by_moment: dict[int, list[TakenOver]] = {}
    for moment, now, pid, ended, before, least in connection.execute(_GROWN, who):
        if None in (now, pid, ended, before, least) or not is_taken_over(ended, now - before):
            continue
        # What it has released since may have been just that.
        if least >= now and (entry.nbytes or 0) >= now:
            by_moment.setdefault(moment, []).append(TakenOver(pid, now - before))
    # Where two ended that had as much, whose it was is unknown.
    found = [sources[0] for sources in by_moment.values() if len(sources) == 1]
    told = (
        f"history: {size(each.nbytes)} of it was charged to pid {each.pid} until that ended" for each in found
    )
    return replace(entry, taken_over=tuple(found), evidence=(*entry.evidence, *told)) if found else entry
