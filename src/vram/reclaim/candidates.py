"""Which processes could free memory, action by action: judged by the ledger alone, before any is touched.

Whom a pid on the command line means, which leftovers end together, and the candidates of each action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis import words
from vram.diagnosis.leftover import DMABUF, EXPORTED, ORPHANED, code_of, doubt, leftover_parts, working
from vram.diagnosis.remedies import AS_ROOT, SUDO_VRAM
from vram.errors import CannotPark, DeviceError, NoSuchProcess, NotOnGpu
from vram.host.ports import Host
from vram.ledger.holds import find_holds, in_ledger_order, narrow
from vram.ledger.jobs import find_held_jobs, job_of, starters
from vram.ledger.processes import (
    ProcessMemory,
    freed_by,
    is_healthy,
    is_stopped,
    living_holders,
    processes,
    reports_holders,
)
from vram.model.finding import Finding
from vram.model.ledger import Entry, Holder, Ledger, known_bytes
from vram.model.plan import PlanRequest, StepKind
from vram.model.process import ParkedProcess
from vram.units import size

STOPPED = "VR201"
ORPHAN = "VR208"


def with_holders(host: Host, ledger: Ledger, request: PlanRequest) -> tuple[PlanRequest, dict[int, int]]:
    """*request* with all processes that its pids mean.

    A dead pid means those that hold its memory, the holder of a leftover all who hold it with it, and with
    ``tree`` the descendants are meant too, with ``job`` all that was launched together. Also, which of the
    pids stand for which dead one. Raises NoSuchProcess where a dead pid's holders are not certain, or
    cannot be seen.
    """
    if not request.pids:
        return request, {}
    known = processes(ledger)
    units = (
        {} if request.alone else {pid: each.pids for each in leftovers(ledger, known) for pid in each.pids}
    )
    meant = {pid: tuple(_meant(host, ledger, known, units, pid, request)) for pid in request.pids}
    pids = tuple(dict.fromkeys(each for pid in request.pids for each in meant[pid]))
    dead = {each: pid for pid, people in meant.items() if pid not in people for each in people}
    return replace(request, pids=pids), {} if request.tree or request.job else dead


def _meant(
    host: Host,
    ledger: Ledger,
    known: Mapping[int, ProcessMemory],
    units: Mapping[int, tuple[int, ...]],
    pid: int,
    request: PlanRequest,
) -> Iterable[int]:
    charged = (
        narrow(hold, lambda entry: entry.charged_pid == pid) for hold in find_holds(ledger, empty=True)
    )
    left = [part.entry for part in in_ledger_order(hold for hold in charged if hold is not None)]
    if left and pid not in known and _is_dead(host, pid):
        return _holders(ledger, pid, left)
    if request.job:
        return _launched_together(ledger, pid)
    if request.tree:
        children = [each for each in host.proc.descendants(pid) if each in known]
        named = (pid, *children) if pid in known or not children else tuple(children)
        return dict.fromkeys(each for one in named for each in units.get(one, (one,)))
    # One of several holders frees nothing by ending alone.
    return units.get(pid, (pid,))


def _launched_together(ledger: Ledger, pid: int) -> tuple[int, ...]:
    job = job_of(ledger, pid)
    if job is None:
        raise NotOnGpu(
            f"pid {pid} belongs to no job that holds GPU memory: no launcher is known that started it",
            hint=f"`vram kill --tree {pid}` terminates it and its descendants",
        )
    # Those first who would start others again.
    return tuple(dict.fromkeys((*starters(job), *job.pids)))


def starters_on_no_gpu(host: Host, ledger: Ledger) -> dict[int, ProcessMemory]:
    """Those that started processes of a job, would do it again, and hold nothing on a GPU themselves."""
    found: dict[int, ProcessMemory] = {}
    known = processes(ledger)
    for held in find_held_jobs(ledger):
        for pid in starters(held):
            seen = host.proc.facts(pid) if pid not in known else None
            if seen is not None and seen[1].uid == held.holders[0].uid and not seen[1].is_dead:
                holder = Holder(
                    pid=pid,
                    started_at=seen[0].started_at,
                    user=seen[1].user,
                    command=" ".join(seen[1].argv) or seen[1].command,
                    alive=True,
                    state=seen[1].state,
                )
                found[pid] = ProcessMemory(holder=holder, gpus=held.gpus)
    return found


def _is_dead(host: Host, pid: int) -> bool:
    found = host.proc.facts(pid)
    return found is None or found[1].is_dead


def _holders(ledger: Ledger, pid: int, left: list[Entry]) -> tuple[int, ...]:
    nbytes = size(known_bytes(left))
    people = {holder.pid: holder for entry in left for holder in living_holders(entry)}
    if not people:
        raise NoSuchProcess(
            f"pid {pid} has exited, but the driver still lists {nbytes} for it; the holder is not visible",
            hint=f"run it as root: {AS_ROOT}" if ledger.host.uid else "`vram why` shows more",
        )
    # A pid that was given by name counts as consent; whose it was is gone, so its holders must be certain.
    if all(entry.confidence == "fact" and entry.sharing != "one" for entry in left):
        return tuple(people)
    foreign = ledger.host.uid != 0 and any(each.user != ledger.host.user for each in people.values())
    command = f"{SUDO_VRAM if foreign else 'vram'} kill {' '.join(map(str, people))}"
    raise NoSuchProcess(
        f"pid {pid} has exited; its {nbytes} is most likely held by pid {', '.join(map(str, people))}",
        hint=f"to terminate them: {command}",
    )


class Leftover(Struct, frozen=True):
    """Processes that must all end before these bytes are freed: ``entries`` with their GPU."""

    processes: tuple[ProcessMemory, ...]
    entries: tuple[tuple[int, Entry], ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def code(self) -> str:
        """The finding that speaks of its largest entry."""
        return code_of(max(self.entries, key=lambda each: each[1].nbytes or 0)[1]) or ORPHANED

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({gpu for gpu, _ in self.entries}))

    def nbytes(self, gpus: tuple[int, ...] = ()) -> int:
        """What is surely freed on *gpus* (empty: all) when all of them have ended."""
        return sum(_surely_freed(entry for at, entry in self.entries if not gpus or at in gpus))


def _surely_freed(entries: Iterator[Entry]) -> Iterator[int]:
    """The bytes of *entries*, less the largest of those that none of their holders may have."""
    alternatives: dict[tuple[int, ...], list[Entry]] = {}
    for entry in entries:
        if entry.sharing == "one" and entry.unheld:
            alternatives.setdefault(tuple(each.pid for each in living_holders(entry)), []).append(entry)
        else:
            yield entry.nbytes or 0
    for found in alternatives.values():
        sizes = sorted(entry.nbytes or 0 for entry in found)
        yield sum(sizes[: max(0, len(sizes) - found[0].unheld)])


def leftovers(
    ledger: Ledger, known: Mapping[int, ProcessMemory], codes: tuple[str, ...] = ()
) -> list[Leftover]:
    """What can be freed by terminating holders without harming anybody, the largest first.

    Entries that share a holder are one leftover. *codes* narrows it down to those findings.
    """
    group_of: dict[int, _Group] = {}
    works = working(ledger)
    for part in leftover_parts(ledger):
        gpu, entry = part.gpu, part.entry
        if doubt(entry, works) is not None or (codes and code_of(entry) not in codes):
            continue
        people = [holder.pid for holder in living_holders(entry)]
        joined = {id(group_of[pid]): group_of[pid] for pid in people if pid in group_of}
        # The smaller groups move into the largest: each pid moves a few times at most.
        group = max(joined.values(), key=lambda each: len(each.pids), default=_Group([], []))
        for other in joined.values():
            if other is not group:
                group.pids += other.pids
                group.entries += other.entries
                group_of.update(dict.fromkeys(other.pids, group))
        group.pids += [pid for pid in people if group_of.get(pid) is not group]
        group.entries.append((gpu, entry))
        group_of.update(dict.fromkeys(people, group))
    distinct = {id(group): group for group in group_of.values()}.values()
    found = [
        Leftover(tuple(known[pid] for pid in sorted(group.pids)), tuple(group.entries)) for group in distinct
    ]
    return sorted(found, key=lambda each: (-each.nbytes(), each.pids))


class _Group(Struct):
    pids: list[int]
    entries: list[tuple[int, Entry]]


class ActionCandidate(Struct, frozen=True, kw_only=True):
    """Processes that are acted on together, in order, and the bytes that each of them frees."""

    kind: StepKind
    processes: tuple[ProcessMemory, ...]
    predicted: tuple[int | None, ...]
    reason: str
    finding: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(each or 0 for each in self.predicted)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)


class PlanContext(Struct, frozen=True):
    """Everything that the choice is made from.

    Harm is judged by the whole ledger: who has leftovers on one GPU may work on another. Bytes are
    counted on ``gpus`` alone.
    """

    ledger: Ledger
    findings: tuple[Finding, ...]
    request: PlanRequest
    known: dict[int, ProcessMemory]
    gpus: tuple[int, ...]
    all_leftovers: tuple[Leftover, ...] = ()
    parked: dict[int, ParkedProcess] = {}
    instead_of: dict[int, int] = {}
    """Holders that a dead pid on the command line stands for, and that pid."""
    asked: tuple[int, ...] = ()
    """The pids on the command line, before they were replaced by those whom they mean."""
    works: frozenset[int] = frozenset()
    """Healthy processes with GPU memory of their own."""
    starters: dict[int, ProcessMemory] = {}
    """Processes of jobs that hold nothing on a GPU, and would start others again that do."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        findings: tuple[Finding, ...],
        request: PlanRequest,
        parked: Iterable[ParkedProcess] = (),
        instead_of: dict[int, int] | None = None,
        asked: tuple[int, ...] = (),
    ) -> PlanContext:
        every = tuple(gpu.index for gpu in ledger.gpus)
        known = processes(ledger)
        found = tuple(leftovers(ledger, known, request.findings))
        paused = {each.pid: each for each in parked}
        gpus = request.gpus or every
        return cls(
            ledger,
            findings,
            request,
            known,
            gpus,
            all_leftovers=found,
            parked=paused,
            instead_of=instead_of or {},
            asked=asked,
            works=working(ledger),
        )

    def named(self) -> tuple[ProcessMemory, ...]:
        """The processes that the user named, in that order. Raises where one is on none of the GPUs."""
        # Who is to be ended is meant as soon as it has the GPU's files open.
        there = self._here(by_files=not self.request.gpus or self.request.only == "kill")
        there |= {pid: _paused(each) for pid, each in self.parked.items() if pid not in there}
        there |= self.starters
        missing = [pid for pid in self.request.pids if pid not in there]
        if missing:
            raise self._not_found(missing[0])
        return tuple(there[pid] for pid in dict.fromkeys(self.request.pids))

    def _here(self, *, by_files: bool) -> dict[int, ProcessMemory]:
        """Those with memory on the GPUs; with *by_files* also those that only have their files open."""
        wanted = set(self.gpus)
        return {
            pid: each
            for pid, each in self.known.items()
            if wanted.intersection(each.gpus if by_files else each.memory_gpus)
        }

    def _not_found(self, pid: int) -> NotOnGpu | DeviceError:
        silent = [
            gpu.index for gpu in self.ledger.gpus if gpu.index in self.gpus and not reports_holders(gpu)
        ]
        if silent:
            return DeviceError(
                f"GPU {silent[0]} does not answer: whether pid {pid} holds memory there is unknown",
                hint="`vram why` shows more about the GPU",
            )
        return NotOnGpu(
            f"pid {pid} holds no memory on {'this GPU' if self.request.gpus else 'any GPU'}",
            hint="`vram who` lists those that do",
        )

    def chosen(self) -> tuple[ProcessMemory, ...]:
        """Whom the user means: those named, those of the findings named, or all processes on the GPUs."""
        if self.request.pids:
            return self.named()
        here = self._here(by_files=False)
        if self.request.findings:
            pids = {pid for each in self.findings if each.code in self.request.findings for pid in each.pids}
            return tuple(here[pid] for pid in sorted(pids) if pid in here)
        return tuple(here.values())

    def leftovers(self) -> list[Leftover]:
        """Those with bytes on the GPUs, narrowed by ``--finding``."""
        return [each for each in self.all_leftovers if set(each.gpus) & set(self.gpus)]


def _paused(process: ParkedProcess) -> ProcessMemory:
    """A parked process has nothing on a GPU, and may still be named."""
    holder = Holder(
        pid=process.pid, started_at=None, user=process.user, command=process.command, alive=True, state="S"
    )
    return ProcessMemory(holder=holder, gpus=process.gpus)


def candidates(context: PlanContext, kind: StepKind) -> Iterator[ActionCandidate]:
    """All candidates for one action."""
    return {"release": _releases, "trim": _trims, "park": _parks, "kill": _kills}[kind](context)


def _releases(context: PlanContext) -> Iterator[ActionCandidate]:
    """All processes that work: whether one is a server, the action asks."""
    for process in context.chosen():
        if process.charged and is_healthy(process.holder):
            reason = "it may be a server that can release its memory"
            yield ActionCandidate(kind="release", processes=(process,), predicted=(None,), reason=reason)


def _trims(context: PlanContext) -> Iterator[ActionCandidate]:
    for process in context.chosen():
        if process.charged and is_healthy(process.holder):
            reason = "it may hold unused cached memory"
            yield ActionCandidate(kind="trim", processes=(process,), predicted=(None,), reason=reason)


def _parks(context: PlanContext) -> Iterator[ActionCandidate]:
    """Only who was named, or, where idle processes were asked for, those."""
    named = bool(context.request.pids)
    if not named and not context.request.park_idle:
        return
    for process in context.chosen():
        if not process.charged or not is_healthy(process.holder):
            continue
        if not _on_nvidia(context, process):
            if named:
                raise CannotPark(
                    f"pid {process.pid} has its memory on a GPU that is not NVIDIA's; no other driver can"
                    " park processes",
                    hint=f"`vram kill {process.pid}` terminates it",
                )
            continue
        if named or process.idle:
            reason = "you named it" if named else "it is waiting, its GPU is idle, and --park-idle allows it"
            nbytes = process.charged_on(context.gpus)
            yield ActionCandidate(kind="park", processes=(process,), predicted=(nbytes,), reason=reason)


def _on_nvidia(context: PlanContext, process: ProcessMemory) -> bool:
    return any(gpu.driver == "nvidia" for gpu in context.ledger.gpus if gpu.index in process.gpus)


def _kills(context: PlanContext) -> Iterator[ActionCandidate]:
    if context.request.pids:
        # One candidate for all: bytes that they hold together are freed by the last of them.
        named = context.named()
        yield _named_kill(context, named, "you named it" if len(named) == 1 else "you named them")
        return
    for leftover in context.leftovers():
        yield ActionCandidate(
            kind="kill",
            processes=leftover.processes,
            predicted=(*[0] * (len(leftover.processes) - 1), leftover.nbytes(context.gpus)),
            reason=_leftover_reason(leftover),
            finding=leftover.code,
        )
    if context.request.orphans or ORPHAN in context.request.findings:
        yield from _orphans(context)
    if STOPPED in context.request.findings:
        for process in context.chosen():
            if process.charged and process.holder.state == "T" and is_stopped(process.holder):
                yield _named_kill(context, (process,), "it is stopped, and --finding VR201 names it", STOPPED)


def _orphans(context: PlanContext) -> Iterator[ActionCandidate]:
    """One candidate for each job whose launcher is dead, if all that is left of it can be ended."""
    for each in find_held_jobs(context.ledger):
        if each.job.is_orphan and set(each.gpus) & set(context.gpus) and all(map(is_healthy, each.holders)):
            reason = f"{words.members(each.job, len(each.pids))}, launcher dead"
            everyone = context.known | context.starters
            pids = dict.fromkeys((*starters(each), *each.pids))
            people = tuple(everyone[pid] for pid in pids if pid in everyone)
            yield _named_kill(context, people, reason, ORPHAN)


def _leftover_reason(leftover: Leftover) -> str:
    nbytes = size(known_bytes(each for _, each in leftover.entries))
    if leftover.code == EXPORTED:
        return f"{nbytes} held by an exported handle; its owner is dead"
    if leftover.code == DMABUF:
        return f"{nbytes} held by a dma-buf; its owner is dead"
    dead = dict.fromkeys(each.charged_pid for _, each in leftover.entries if each.charged_pid is not None)
    return f"{nbytes} of dead pid {', '.join(map(str, dead))}, held by forked children"


def _named_kill(
    context: PlanContext, named: tuple[ProcessMemory, ...], reason: str, finding: str | None = None
) -> ActionCandidate:
    pids = [process.pid for process in named]
    dead = dict.fromkeys(context.instead_of[pid] for pid in pids if pid in context.instead_of)
    if dead:
        reason = f"pid {', '.join(map(str, dead))} is dead, and this process holds its memory"
    elif context.request.job:
        reason = f"you named the job of pid {', '.join(map(str, context.asked))}"
    elif context.asked and not set(pids) <= set(context.asked):
        reason = f"you named pid {', '.join(map(str, context.asked))}; all of these hold the same memory"
    shared = sorted({pid for process in named for pid in process.co_holders} - set(pids))
    if shared:
        reason += f"; shared memory stays until pid {', '.join(map(str, shared))} exits too"
    returned = freed_by(context.ledger, pids, context.gpus)
    paused = [context.parked[pid] for pid in pids if pid in context.parked]
    if paused:
        reason += "; " + ", ".join(
            f"pid {each.pid} is parked, {size(each.nbytes)} in host memory" for each in paused
        )
    unknown = [_is_unknown(process, context.request) for process in named]
    predicted = tuple(
        None if no and not nbytes else nbytes for no, nbytes in zip(unknown, returned, strict=True)
    )
    return ActionCandidate(kind="kill", processes=named, predicted=predicted, reason=reason, finding=finding)


def _is_unknown(process: ProcessMemory, request: PlanRequest) -> bool:
    """Whether what it would free is unknown rather than 0.

    Where a whole GPU reports nothing, no process is terminated for a size that was asked for.
    """
    has_goal = request.goal_bytes is not None or request.available_bytes is not None
    silent = bool(process.unreported_gpus) and not has_goal
    return silent or process.has_unknown_size
