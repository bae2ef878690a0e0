"""From the ledger to a plan: leftovers, caches where they are allowed, a healthy process only if it is named.

With a size, the smallest plan that makes it available: least harmful actions first, and no step that the
others make superfluous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from msgspec.structs import replace

from vram.diagnosis.engine import require_code
from vram.diagnosis.leftover import CODES, code_of
from vram.errors import (
    AttachDenied,
    DeviceError,
    GoalImpossible,
    NotPermitted,
    NotReachable,
    Refused,
    UsageError,
    WorldChanged,
)
from vram.host.ports import Host
from vram.ledger.jobs import HeldByJob, find_held_jobs, starters
from vram.ledger.processes import ProcessMemory, is_silent, processes
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.plan import Draft, Plan, PlanRequest, Step, StepKind, Target
from vram.reclaim import actions
from vram.reclaim.actions import GENTLE, Action
from vram.reclaim.activity import measure_jobs
from vram.reclaim.candidates import (
    ORPHAN,
    STOPPED,
    ActionCandidate,
    Leftover,
    PlanContext,
    candidates,
    leftovers,
    starters_on_no_gpu,
    with_holders,
)
from vram.reclaim.device_state import available_bytes, read_and_diagnose
from vram.reclaim.identity import identify, require_certain
from vram.reclaim.plan_file import with_digest
from vram.reclaim.selection import Option, Selection, smallest
from vram.reclaim.skipped import skipped
from vram.reclaim.state import parked
from vram.units import size

LOSES: dict[StepKind, str] = {
    "release": "what the server has loaded",
    "trim": "nothing; later allocations are slower at first",
    "park": "no work; it is stopped until `vram unpark` (its parent sees that), its memory is in host RAM",
    "kill": "all unsaved work",
    "reset": "nothing, once nobody uses the GPU",
}
NOT_ATTACHED = (NotReachable, AttachDenied)
"""Why a process cannot be trimmed: usual, and no news where something else is planned."""

LEFTOVER_LOSES = "no GPU work: the owner of the memory is dead"


def plan(host: Host, ledger: Ledger, findings: tuple[Finding, ...], request: PlanRequest) -> Draft:
    """Return what would be done for *request*; nothing is touched by that.

    Raises the refusal where a process that was named must be left alone, and GoalImpossible
    where everything allowed together would not reach the goal.
    """
    asked = request.pids
    request, instead_of = with_holders(host, ledger, _check_words(request))
    paused = parked(host) if request.pids else ()
    context = PlanContext.of(ledger, findings, request, paused, instead_of, asked)
    if request.job or request.orphans or ORPHAN in request.findings:
        context = replace(context, starters=starters_on_no_gpu(host, ledger))
    choice = _Choice(host, context)
    for pid in request.pids:
        # Whether it may be touched at all comes before whether it holds anything.
        choice.identify(pid)
    context.named()
    made, wanted = partial(with_digest, ledger.taken_at, host.limits.boot_id()), request.available_bytes
    if wanted is None and request.goal_bytes is None:
        steps = choice.everything()
        # A GPU that does not answer cannot be measured, and must not prevent that for the others.
        silent = {gpu.index for gpu in ledger.gpus if is_silent(gpu)}
        gpus = tuple(gpu for gpu in context.gpus if gpu not in silent)
        plan = made(None, gpus, steps)
    elif wanted is not None and (there := choice.has_already(wanted)) is not None:
        return Draft(plan=made(0, (there,), (), wanted))
    else:
        chosen = choice.enough()
        plan = made(chosen.goal, (chosen.gpu,), chosen.steps, wanted)
    return Draft(
        plan=plan,
        skipped=skipped(host, context, plan, choice.refusals),
        activity=measure_jobs(host, ledger, _ended_with_their_job(plan, request)),
    )


def _ended_with_their_job(plan: Plan, request: PlanRequest) -> Iterator[int]:
    for step in plan.steps:
        if step.kind == "kill" and step.target and (request.job or step.finding == ORPHAN):
            yield step.target.process.pid


class _Choice:
    """Checks the candidates of every allowed action, and chooses."""

    def __init__(self, host: Host, context: PlanContext) -> None:
        self._host = host
        self._context = context
        self._asked: dict[tuple[StepKind, int], Step | Refused] = {}
        self._targets: dict[int, Target] = {}
        self.refusals: dict[int, Refused] = {}

    def identify(self, pid: int) -> Target:
        """Who has *pid*: read once for a plan. Raises where it must not be touched."""
        if pid not in self._targets:
            self._targets[pid] = identify(self._host, pid)
        return self._targets[pid]

    def everything(self) -> tuple[Step, ...]:
        """All caches and leftovers, or all that was named."""
        found: list[Option] = []
        for kind in _actions(self._context):
            for option in self._options(self._context, kind, found):
                if kind in GENTLE or not any(
                    option.pids & each.pids for each in found if each.kind not in GENTLE
                ):
                    found.append(option)
        steps = tuple(step for option in found for step in option.steps)
        self._require_named(steps)
        return steps

    def has_already(self, wanted: int) -> int | None:
        """The GPU that has *wanted* bytes available now, the one with most of them; None where none has."""
        available = available_bytes(self._context.ledger)
        here = [gpu for gpu in self._context.gpus if available.get(gpu, -1) >= wanted]
        return max(here, key=lambda gpu: (available[gpu], -gpu), default=None)

    def enough(self) -> Selection:
        """The smallest plan for what is asked for, on the GPU where it does the least harm."""
        request, gpus = self._context.request, self._context.gpus
        if request.pids:
            held = {gpu for process in self._context.named() for gpu in process.memory_gpus}
            gpus = tuple(gpu for gpu in gpus if gpu in held)
        self._require_possible(request.available_bytes or request.goal_bytes or 0, gpus)
        goals = self._goals(gpus)
        found = [self._on(gpu, goal) for gpu, goal in goals.items()]
        best = min(found, key=Selection.cost, default=None)
        if best is None or not best.reaches:
            self._require_unrefused()
        if best is not None and (best.reaches or best.may_reach):
            return best
        self._require_named(best.steps if best else ())
        raise self._out_of_reach(best)

    def _goals(self, gpus: tuple[int, ...]) -> dict[int, int]:
        """What is to be freed on each of *gpus*; one that does not say what is available is left out."""
        request = self._context.request
        if request.available_bytes is None:
            return dict.fromkeys(gpus, request.goal_bytes or 0)
        available = available_bytes(self._context.ledger)
        return {gpu: request.available_bytes - available[gpu] for gpu in gpus if gpu in available}

    def _on(self, gpu: int, goal: int) -> Selection:
        narrowed = replace(self._context, gpus=(gpu,))  # bytes are counted there
        options: list[Option] = []
        for kind in _actions(narrowed):
            options += self._options(narrowed, kind, options)
        return smallest(gpu, options, goal)

    def _options(self, context: PlanContext, kind: StepKind, before: list[Option]) -> Iterator[Option]:
        action = actions.action(kind)
        for candidate in candidates(context, kind):
            try:
                earlier = [step for option in before for step in option.steps]
                steps = tuple(self._steps(action, candidate, earlier))
            except Refused as error:
                self._add_refusal(candidate, error)
                continue
            if kind == "trim" and all(step.predicted_bytes == 0 for step in steps):
                continue  # it was asked, and caches nothing
            works = any(process.charged for process in candidate.processes)
            named = bool(context.request.pids) and works
            most = sum(process.charged_on(context.gpus) for process in candidate.processes)
            yield Option(kind, _on_one_gpu(steps, context), most, named)

    def _steps(self, action: Action, candidate: ActionCandidate, before: list[Step]) -> Iterator[Step]:
        for process, predicted in zip(candidate.processes, candidate.predicted, strict=True):
            pid = process.pid
            asked = self._asked.get((candidate.kind, pid))
            if isinstance(asked, Refused):
                raise asked
            if asked is not None:
                yield asked  # asked once, for whichever GPU
                continue
            step = Step(
                kind=candidate.kind,
                target=self._target(candidate, process),
                gpus=process.memory_gpus or process.gpus,
                predicted_bytes=predicted,
                loses=_loses(candidate, process),
                reversible=candidate.kind != "kill",
                reason=candidate.reason,
                finding=candidate.finding,
            )
            try:
                step = action.check(self._host, step, before)
            except Refused as error:
                if candidate.kind == "release":
                    self._asked[candidate.kind, pid] = error
                raise
            if candidate.kind in GENTLE:
                self._asked[candidate.kind, pid] = step
            yield step

    def _target(self, candidate: ActionCandidate, process: ProcessMemory) -> Target:
        host, request, pid = self._context.ledger.host, self._context.request, process.pid
        require_certain(host, process)
        target = self.identify(pid)
        paused = pid in self._context.parked
        if target.process.started_at != process.holder.started_at and not paused:
            raise WorldChanged(f"pid {pid} is a different process now", hint="try again")
        # Root frees all users' leftovers; it attaches to other people's live processes only by name.
        named = bool(request.pids or request.findings) or candidate.finding is not None
        if target.uid != host.uid and not named:
            raise NotPermitted(f"pid {pid} belongs to {target.user}", hint=f"name it: --pid {pid}")
        return target

    def _add_refusal(self, candidate: ActionCandidate, error: Refused) -> None:
        for process in candidate.processes:
            known = self.refusals.get(process.pid)
            # That a process cannot be attached to for a trim is usual; a later refusal says more.
            if known is None or isinstance(known, NOT_ATTACHED):
                self.refusals[process.pid] = error

    def _require_named(self, steps: tuple[Step, ...]) -> None:
        """Who was named and gets no step was refused: that is the answer."""
        planned = {step.target.process.pid for step in steps if step.target}
        for pid in self._context.request.pids:
            if pid in self.refusals and pid not in planned:
                raise self.refusals[pid]

    def _require_unrefused(self) -> None:
        """Where what is left is not surely enough, the refusal of one that was named is the answer."""
        for pid in self._context.request.pids:
            refusal = self.refusals.get(pid)
            if refusal is not None and not isinstance(refusal, NOT_ATTACHED):
                raise refusal

    def _require_possible(self, goal: int, gpus: tuple[int, ...]) -> None:
        totals = [gpu.total_bytes for gpu in self._context.ledger.gpus if gpu.index in gpus]
        if totals and None not in totals and goal > max(total or 0 for total in totals):
            largest = size(max(total or 0 for total in totals))
            raise GoalImpossible(f"{size(goal)} is more than the GPU has ({largest})", hint="request less")

    def _out_of_reach(self, best: Selection | None) -> GoalImpossible | DeviceError:
        context, request = self._context, self._context.request
        for process in context.named():
            if process.unreported_gpus:
                pid = process.pid
                return DeviceError(
                    f"GPU {process.unreported_gpus[0]} does not answer: what pid {pid} would free is unknown",
                    hint=f"`vram kill {pid}` terminates it anyway",
                )
        if best is None and request.available_bytes is not None:
            return DeviceError(
                "no GPU here reports how much memory is available", hint="--more SIZE frees that much more"
            )
        best = best or Selection(0, request.goal_bytes or 0, (), reaches=False)
        possible = best.nbytes + sum(option.most for option in best.options if option.nbytes is None)
        where = f" on GPU {best.gpu}" if len(context.ledger.gpus) > 1 else ""
        if request.available_bytes is None:
            wanted = f"free {size(best.goal)}"
            most = f"at most {size(possible)} would be freed" if possible else "nothing would be freed"
        else:
            wanted = f"make {size(request.available_bytes)} available"
            most = f"at most {size(request.available_bytes - best.goal + possible)} would be available"
        return GoalImpossible(
            f"cannot {wanted} without harming a process in use: {most}{where}", hint=self._ways_on()
        )

    def _ways_on(self) -> str:
        """What could be allowed beyond this request."""
        context = self._context
        caches = "" if "trim" in _actions(context) else "; --caches also releases caches of live processes"
        if context.ledger.host.wsl_facts is not None:
            more = "--pid PID allows terminating a healthy process; close Windows programs in Windows"
        elif not any(gpu.has_own_memory for gpu in context.ledger.gpus):
            more = "--pid PID allows terminating a healthy process; CPU programs use the same memory"
        else:
            more = "--park-idle parks idle processes, --pid PID adds one by name"
        return f"`vram who` shows who holds the rest{caches}; {more}"


def _on_one_gpu(steps: tuple[Step, ...], context: PlanContext) -> tuple[Step, ...]:
    """A framework or server reports for all GPUs of its process: of one among several nothing is known."""
    if context.request.goal_bytes is None and context.request.available_bytes is None:
        return steps
    return tuple(
        replace(step, predicted_bytes=None) if step.kind in GENTLE and len(step.gpus) > 1 else step
        for step in steps
    )


def _loses(candidate: ActionCandidate, process: ProcessMemory) -> str:
    if candidate.kind == "kill" and process.uses_mps:
        return f"{LOSES['kill']}; it is an MPS client, and other clients of the same server may fail with it"
    if candidate.kind == "kill" and not process.charged and any(map(code_of, process.retained)):
        return LEFTOVER_LOSES
    return LOSES[candidate.kind]


def _actions(context: PlanContext) -> tuple[StepKind, ...]:
    """The actions that are allowed, least harm first: leftovers, caches, then what interrupts."""
    request = context.request
    if request.only is not None:
        return (request.only,)
    # Only where it was asked for: a server loses what it has loaded.
    allowed = tuple(
        kind for kind in actions.up_to(request.up_to or "kill") if kind != "release" or request.release
    )
    if not request.pids:
        wanted = {
            "kill": "kill" in allowed,
            "release": request.release,
            "trim": _asks_for_caches(request),
            "park": request.park_idle,
        }
        return tuple(kind for kind in actions.HARMLESS_FIRST if wanted[kind])
    if request.goal_bytes is not None or request.available_bytes is not None:
        return allowed
    if request.up_to:
        return allowed[-1:]
    # Who only holds memory of the dead is terminated by being named; who works is only trimmed.
    leftover = all(
        any(code_of(entry) for entry in process.retained) and not process.charged
        for process in context.named()
    )
    if leftover:
        return ("kill",)
    return GENTLE if request.release else ("trim",)


def _asks_for_caches(request: PlanRequest) -> bool:
    """Whether live processes may be visited: by that word, or by findings that speak of them."""
    of_the_living = any(code not in (*CODES, STOPPED, ORPHAN) for code in request.findings)
    return request.caches or request.up_to == "trim" or of_the_living


def _check_words(request: PlanRequest) -> PlanRequest:
    """Return *request* with codes in upper case. Raises where a word of it means nothing."""
    for code in request.findings:
        require_code(code)
    if request.up_to == "reset":
        raise UsageError("a reset is never part of a plan", hint="see `vram reset --help`")
    if request.available_bytes is not None and request.goal_bytes is not None:
        raise UsageError("give SIZE or --more SIZE, not both")
    return replace(request, findings=tuple(code.strip().upper() for code in request.findings))


# ---- a plan for the holders of one leftover, or for one orphaned job, alone ----


def plan_ending(host: Host, holders: Collection[tuple[int, int]], deadline_s: float) -> Draft:
    """Read the machine and return the plan for the leftover that *holders* (pid, start time) hold.

    Raises WorldChanged where they are not, all of them and no others, the holders of one leftover that
    `vram free` would end without being told a name, and the refusal where one of them must be left alone.
    """
    ledger, findings = read_and_diagnose(host, (), deadline_s)
    wanted = set(holders)
    found = [each for each in leftovers(ledger, processes(ledger)) if _identities(each) & wanted]
    if len(found) != 1 or _identities(found[0]) != wanted:
        pids = ", ".join(str(pid) for pid, _ in sorted(wanted))
        raise WorldChanged(
            f"pid {pids} no longer holds a leftover, or no longer alone", hint="make a new plan"
        )
    return _of_those(plan(host, ledger, findings, PlanRequest(only="kill")), wanted, found[0])


def plan_ending_orphans(host: Host, members: Collection[tuple[int, int]], deadline_s: float) -> Draft:
    """Read the machine and return the plan for the job of which *members* (pid, start time) are left.

    Raises WorldChanged where they are not, all of them and no others, one job that VR208 names, and
    the refusal where one of them works or must be left alone.
    """
    ledger, findings = read_and_diagnose(host, (), deadline_s)
    wanted, known = set(members), processes(ledger)
    found = [each for each in find_held_jobs(ledger) if set(each.pids) & {pid for pid, _ in wanted}]
    named = [set(each.pids) for each in findings if each.code == ORPHAN]
    if (
        len(found) != 1
        or not found[0].is_orphan
        or {(each.pid, each.started_at) for each in found[0].holders} != wanted
        or set(found[0].pids) not in named
    ):
        pids = ", ".join(str(pid) for pid, _ in sorted(wanted))
        raise WorldChanged(
            f"pid {pids} is no longer all that is left of an orphaned job", hint="make a new plan"
        )
    for pid in found[0].pids:
        if not known[pid].idle:
            raise Refused(f"pid {pid}, or a GPU that it is on, works", hint=f"see `vram why {pid}`")
    draft = plan(host, ledger, findings, PlanRequest(only="kill", findings=(ORPHAN,)))
    return _of_those(draft, wanted, found[0], starters(found[0]))


def _of_those(
    draft: Draft,
    wanted: set[tuple[int, int]],
    which: Leftover | HeldByJob,
    before: Collection[int] = (),
) -> Draft:
    """The steps of *draft* that end *wanted*, as a plan; raises the refusal where it does not end all.

    *before* are pids that would start them again, and are ended with them where the draft does that.
    """
    ends = {step.target.process: step for step in draft.plan.steps if step.target}
    if not wanted <= {(each.pid, each.started_at) for each in ends}:
        raise _refusal(draft, which.pids)
    steps = [
        step for each, step in ends.items() if (each.pid, each.started_at) in wanted or each.pid in before
    ]
    return Draft(plan=with_digest(draft.plan.made_at, draft.plan.boot_id, None, which.gpus, steps))


def _identities(leftover: Leftover) -> set[tuple[int, int | None]]:
    return {(each.pid, each.holder.started_at) for each in leftover.processes}


def _refusal(draft: Draft, pids: Collection[int]) -> Refused:
    for each in draft.skipped:
        if each.pid in pids:
            return Refused(each.why, hint=f"`{each.command}`" if each.command else "")
    return Refused("the planner leaves it alone", hint="see `vram free --dry-run`")
