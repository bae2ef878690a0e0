"""One node's snapshot judged: its sums where it can be believed, else a line that says why not.

A snapshot comes from another machine, and its root can write anything into it. So it is
read within limits, compared with what was asked for, and refused where it contradicts itself. What is
wrong with it never raises: it becomes a node in the state "rejected", without any of its figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice

from msgspec import Struct

from vram.diagnosis.verdict import is_missing, judge, without_driver
from vram.errors import BadSnapshot, NewerSnapshot
from vram.fleet.transport import NodeFailed
from vram.ledger.build import build_ledger
from vram.ledger.holds import find_holds
from vram.ledger.processes import living_holders
from vram.model.fleet import FleetGhost, FleetGpu, FleetNode, FleetShare, Grouping, NodeCode, NodeState
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts, MigFacts
from vram.model.ledger import KINDS, Entry, GpuLedger, Holder, Ledger
from vram.model.moment import read_rfc3339
from vram.model.observation import Observation, Survey
from vram.model.process import ProcessFacts
from vram.probes import bundle
from vram.report.process_rows import rows
from vram.units import duration, size

MAX_SNAPSHOT_BYTES = 32 << 20
"""A node of 16 GPUs and 2,000 processes has a fifth of it."""
_MAX_GPUS = 64
_MAX_GPU_BYTES = 16 << 40
_MAX_PID = 1 << 31
_MAX_AGE_S = 100 * 365 * 86400
# Clocks of nodes differ by seconds where they are kept, and by hours where a time zone is wrong.
_MAX_APART_S = 3600
_GAP_PART = 16  # the driver's own totals may differ by so much of the whole: they are read one by one
_MAX_GHOSTS = 32
_MAX_SHARES = 256
_MAX_NAME_LENGTH = 200

_UNREAD = ("no-driver", "not-judged", "too-large", "unreachable")
_NO_OBJECT = "it is not a snapshot of vram: it does not begin with {, as after what a login script prints"
_PROBE_FAILURES = ("failed", "timeout", "lost")


class JudgeRequest(Struct, frozen=True, kw_only=True):
    """What was asked: the node's name, the host names it may have (None: any), and when.

    ``now`` None: the snapshot was recorded earlier, and only must not come from the future.
    ``path`` is where the snapshot lies.
    """

    name: str
    path: str
    host_names: tuple[str, ...] | None = None
    now: float | None = None
    by: Grouping | None = None


def judge_snapshot(data: bytes, asked: JudgeRequest) -> FleetNode:
    """Return the node that *data* describes, or a line that says why it is not believed."""
    try:
        survey = _read(data)
        _require_honest(survey, asked)
        return _node(survey, asked, len(data))
    except NodeFailed as error:
        return rejected(asked.name, error.code, error.message)


def rejected(name: str, code: NodeCode, message: str) -> FleetNode:
    """A node whose snapshot is not counted."""
    state: NodeState = "unread" if code in _UNREAD else "rejected"
    return FleetNode(name=name, state=state, code=code, message=message[:500])


def _read(data: bytes) -> Survey:
    try:
        return bundle.loads(data, "it")
    except NewerSnapshot as error:
        raise NodeFailed("other-version", str(error)) from error
    except BadSnapshot as error:
        # Nothing of it is quoted: it may be a file that the reader of this message may not read.
        words = str(error) if data[:1] in (b"{", b"") else _NO_OBJECT
        raise NodeFailed("bad-snapshot", words) from error


# ---- is it what was asked for, and can it be? ----


def _require_honest(survey: Survey, asked: JudgeRequest) -> None:
    said = survey.host.name
    if asked.host_names is not None and _short(said) not in map(_short, asked.host_names):
        raise NodeFailed("other-host", f"its snapshot says that it is {said[:60]!r}")
    _require_time(survey.taken_at, asked.now)
    memory = ((seen.gpu, seen.facts) for seen in survey.observations)
    totals = {gpu: _whole(facts) for gpu, facts in memory if isinstance(facts, MemoryFacts)}
    for seen in survey.observations:
        _require_possible(seen, totals)
    _require_gpus(survey)


def _short(name: str) -> str:
    """A host name without its domain: some nodes know theirs, some do not."""
    return name.lower().partition(".")[0]


def _require_time(text: str, now: float | None) -> None:
    try:
        taken = read_rfc3339(text)
        at = (taken if taken.tzinfo else taken.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError) as error:
        raise NodeFailed("impossible", "its snapshot was taken at no time that exists") from error
    apart_s = at - (datetime.now(timezone.utc).timestamp() if now is None else now)
    if apart_s > _MAX_APART_S or (now is not None and apart_s < -_MAX_APART_S):
        where = "in the future" if apart_s > 0 else "ago"
        raise NodeFailed("wrong-time", f"its snapshot was taken {duration(abs(apart_s))} {where}")


def _require_possible(seen: Observation, totals: dict[int | None, int]) -> None:
    if seen.gpu is not None and seen.gpu < 0:
        raise NodeFailed("impossible", f"it has a GPU {seen.gpu}")
    if seen.process is not None and not 0 <= seen.process.pid < _MAX_PID:
        raise NodeFailed("impossible", f"it has a process {seen.process.pid}")
    match seen.facts:
        case MemoryFacts():
            _require_memory(seen.gpu, seen.facts)
        case MigFacts(memory=MemoryFacts() as memory):
            _require_memory(seen.gpu, memory)
        case ChargeFacts() if (seen.nbytes or 0) > totals.get(seen.gpu, _MAX_GPU_BYTES):
            held = f"a process holds {size(seen.nbytes or 0)} on GPU {seen.gpu}"
            raise NodeFailed("impossible", f"{held}, which has {size(totals[seen.gpu])}")
        case ProcessFacts(age_s=float() as age_s) if not 0 <= age_s < _MAX_AGE_S:
            raise NodeFailed("impossible", f"it has a process that started {age_s:.0f} seconds ago")


def _is_limit(memory: MemoryFacts) -> bool:
    """Whether the total is a control group's limit: processes outside the group may hold more."""
    is_less = memory.device_total is not None
    return is_less or (memory.limit is not None and memory.limit.hard == memory.total)


def _whole(memory: MemoryFacts) -> int:
    """What a process can hold at most."""
    return (memory.device_total or _MAX_GPU_BYTES) if _is_limit(memory) else memory.total


def _require_memory(gpu: int | None, memory: MemoryFacts) -> None:
    total = memory.total
    if total > _MAX_GPU_BYTES:
        raise NodeFailed("impossible", f"GPU {gpu} has {size(total)} of memory")
    gap = total - memory.free - memory.used - (memory.reserved or 0)
    if _is_limit(memory) and gap >= 0:  # others use what is neither used here nor free
        gap = 0
    if memory.free > total or memory.used > total or abs(gap) > total // _GAP_PART:
        parts = f"{size(memory.used)} used and {size(memory.free)} free"
        raise NodeFailed("impossible", f"GPU {gpu} has {parts} of {size(total)}: that does not add up")


def _require_gpus(survey: Survey) -> None:
    gpus = {seen.gpu for seen in survey.observations if seen.gpu is not None}
    if len(gpus) > _MAX_GPUS:
        raise NodeFailed(
            "impossible", f"it says that it has {len(gpus):,} GPUs; {_MAX_GPUS} are the most here"
        )
    uuids: dict[str, int | None] = {}
    for seen in survey.observations:
        if isinstance(seen.facts, GpuFacts):
            other = uuids.setdefault(seen.facts.uuid, seen.gpu)
            if other != seen.gpu:
                raise NodeFailed("impossible", f"its GPUs {other} and {seen.gpu} have the same UUID")


# ---- its sums ----


def _node(survey: Survey, asked: JudgeRequest, nbytes: int) -> FleetNode:
    ledger = build_ledger(survey)
    missing = without_driver(ledger)
    if missing is not None:
        raise NodeFailed("no-driver", f"no driver answers there: {missing.message or 'none is installed'}")
    left = {verdict.index: verdict.entries for verdict in judge(ledger, leftovers=True)}
    gpus = tuple(_gpu(gpu, left.get(gpu.index, ())) for gpu in ledger.gpus)
    code, message = _gap(ledger)
    return FleetNode(
        name=asked.name,
        state=_state(gpus, code),
        code=code,
        message=message and message[:500],
        host=survey.host.name[:_MAX_NAME_LENGTH],
        taken_at=survey.taken_at,
        program=survey.program[:60],
        driver_version=_cut(ledger.driver.driver_version) if ledger.driver else None,
        virtual=survey.host.virtual or any(gpu.facts and gpu.facts.virtual for gpu in ledger.gpus),
        nbytes=nbytes,
        gpus=gpus,
        ghosts=tuple(_ghosts(ledger)) if any(gpu.leftover_bytes for gpu in gpus) else (),
        shares=tuple(shares(ledger, left, asked.by)) if asked.by else (),
    )


def _gpu(gpu: GpuLedger, left: Sequence[Entry]) -> FleetGpu:
    sums = gpu.bytes_by_kind()
    total, free, unexplained = sum(sums.values()), sums.get("free", 0), sums.get("unattributed", 0)
    held = sum(nbytes for kind, nbytes in sums.items() if KINDS[kind].held)
    known = not is_missing(gpu)
    leftovers = [entry for entry in left if entry.kind != "unattributed"]
    ages = (holder.age_s for entry in leftovers for holder in living_holders(entry))
    return FleetGpu(
        index=gpu.index,
        uuid=_cut(gpu.uuid),
        name=gpu.name[:_MAX_NAME_LENGTH],
        total_bytes=total if known else None,
        held_bytes=held if known else None,
        leftover_bytes=sum(entry.nbytes or 0 for entry in leftovers) if known else None,
        unexplained_bytes=unexplained if known else None,
        free_bytes=free if known else None,
        other_bytes=total - held - free if known else None,
        oldest_ghost_s=max((age_s for age_s in ages if age_s is not None), default=None),
        status=gpu.status,
        message=_cut(gpu.message),
    )


def _gap(ledger: Ledger) -> tuple[NodeCode | None, str | None]:
    """Why the answer is not whole; None where it is."""
    for gpu in ledger.gpus:
        if is_missing(gpu):
            return "gpu", f"GPU {gpu.index}: {gpu.message or gpu.status}"
    for probe in ledger.probes:
        if probe.status in _PROBE_FAILURES:
            return "source", f"{probe.name} {probe.status}: {probe.message or ''}".rstrip(": ")
    return None, None


def _state(gpus: Sequence[FleetGpu], code: NodeCode | None) -> NodeState:
    if any(gpu.leftover_bytes for gpu in gpus):
        return "leftovers"
    if any(gpu.unexplained_bytes for gpu in gpus):
        return "unexplained"
    return "ok" if code is None else "incomplete"


def _ghosts(ledger: Ledger) -> Iterator[FleetGhost]:
    """The largest, in the order of `vram ps`."""
    for row in islice((row for row in rows(ledger) if row.state == "ghost"), _MAX_GHOSTS):
        yield FleetGhost(
            gpus=row.gpus,
            places=row.places,
            nbytes=row.nbytes,
            pid=row.pid,
            user=_cut(row.user),
            command=_cut(row.command),
            age_s=row.age_s,
            dead_pids=row.dead_pids[:_MAX_GHOSTS],
            certain=row.certain,
        )


def _cut(text: str | None) -> str | None:
    return text and text[:_MAX_NAME_LENGTH]


# ---- who holds it: each held byte counted once ----


class _Share(Struct):
    held: int = 0
    left: int = 0
    processes: set[int] = set()
    gpus: set[int] = set()


def shares(ledger: Ledger, left: dict[int, tuple[Entry, ...]], by: Grouping) -> Iterator[FleetShare]:
    """What each user, job or pod holds, the largest first; *left* are the leftovers of each GPU."""
    found: dict[str | None, _Share] = {}
    leftovers = {id(entry) for entries in left.values() for entry in entries if entry.kind != "unattributed"}
    for hold in find_holds(ledger):
        for part in hold.parts if hold.known_bytes else ():
            people = hold.holders or part.entry.holders
            share = found.setdefault(_name(people[0], by) if people else None, _Share())
            nbytes = part.entry.nbytes or 0
            share.held += nbytes
            share.left += nbytes if id(part.entry) in leftovers else 0
            if nbytes:
                share.processes.update(person.pid for person in people[:1])
                share.gpus.add(part.gpu)
    largest = sorted(found, key=lambda name: -found[name].held)
    for name in largest[:_MAX_SHARES]:
        share = found[name]
        yield FleetShare(
            name=name,
            held_bytes=share.held,
            leftover_bytes=share.left,
            processes=len(share.processes),
            gpus=len(share.gpus),
        )


def _name(person: Holder, by: Grouping) -> str | None:
    origin = person.workload
    if by == "job":
        return _cut(origin.slurm_job or origin.claimed_job)
    return _cut(person.user) if by == "user" else _cut(origin.pod_name or origin.pod)
