"""From the ledger to a plan: leftovers, caches where they are allowed, a healthy process only if it is named.

With a size, the smallest plan that makes it available: least harmful actions first, and no step that the
others make superfluous.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
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
from vram.ledger.processes import ProcessMemory, is_silent
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.plan import Draft, PlanRequest, Step, StepKind, Target
from vram.reclaim import actions
from vram.reclaim.actions import Action
from vram.reclaim.candidates import STOPPED, ActionCandidate, PlanContext, candidates, with_holders
from vram.reclaim.device_state import available_bytes
from vram.reclaim.identity import identify, require_certain
from vram.reclaim.plan_file import with_digest
from vram.reclaim.selection import fewest
from vram.reclaim.skipped import skipped
from vram.reclaim.state import parked
from vram.units import size


class Option(Struct, frozen=True):
    """Steps that only make sense together, and what they surely free; None where that is unknown.

    ``most`` is what they can free at most.
    """

    kind: StepKind
    steps: tuple[Step, ...]
    most: int = 0
    named: bool = False

    @property
    def nbytes(self) -> int | None:
        known = [step.predicted_bytes for step in self.steps if step.predicted_bytes is not None]
        return sum(known) if known else None

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(step.target.process.pid for step in self.steps if step.target)

    @property
    def harms(self) -> bool:
        """Whether it interrupts or ends a process that works."""
        return self.kind == "park" or (self.kind == "kill" and self.named)


class Selection(Struct, frozen=True):
    """What was chosen for one GPU. ``reaches``: what is known of it adds up to the goal; ``may_reach``:
    with what cannot be known beforehand it could."""

    gpu: int
    goal: int
    options: tuple[Option, ...]
    reaches: bool
    may_reach: bool = False

    @property
    def nbytes(self) -> int:
        return sum(option.nbytes or 0 for option in self.options)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Least harm first: who works is touched only where the rest was not enough."""
        return tuple(step for option in sorted(self.options, key=_rank) for step in option.steps)

    def cost(self) -> tuple[int, ...]:
        """Least harm to people first, then fewest processes, then fewest bytes more than needed."""
        harmed = sum(len(each.steps) for each in self.options if each.harms)
        unsure = 0 if self.reaches else 1 if self.may_reach else 2
        steps = sum(len(each.steps) for each in self.options)
        # Where no plan surely reaches the goal, the one that comes nearest is taken.
        return (unsure, harmed, steps, self.nbytes if self.reaches else -self.nbytes, self.gpu)


def smallest(gpu: int, options: Sequence[Option], goal: int) -> Selection:
    """Choose from *options* what reaches *goal* with the least harm."""
    known = [each for each in options if each.nbytes]
    harmless = [each for each in known if not each.harms]
    if _sum(harmless) >= goal:
        return Selection(gpu, goal, fewest(harmless, goal, harm=_rank, excludes=_excludes), reaches=True)
    # Who cannot say what it only caches is asked before anybody who works is harmed: the rest is done only
    # where it is still needed.
    unknown = tuple(each for each in options if each.nbytes is None)
    if _sum(known) >= goal:
        chosen = fewest(known, goal, harm=_rank, excludes=_excludes)
        return Selection(gpu, goal, (*unknown, *chosen), reaches=True)
    counted = frozenset(pid for each in known for pid in each.pids)
    most = _sum(known) + sum(each.most for each in unknown if not each.pids & counted)
    may_reach = bool(unknown) and most >= goal
    return Selection(gpu, goal, (*unknown, *known), reaches=False, may_reach=may_reach)


def _sum(options: Sequence[Option]) -> int:
    return sum(each.nbytes or 0 for each in options)


def _rank(option: Option) -> tuple[bool, int]:
    """Leftovers, which are nobody's, then caches; of those who work, parked before ended."""
    order = ("park", "kill") if option.harms else ("kill", "trim", "reset")
    return option.harms, order.index(option.kind)


def _excludes(chosen: Option, other: Option) -> bool:
    """One process is parked or terminated, not both."""
    return other.kind != "trim" and bool(other.pids & chosen.pids)


LOSES: dict[StepKind, str] = {
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
    request, instead_of = with_holders(host, ledger, _checked_words(request))
    paused = parked(host) if request.pids else ()
    context = PlanContext.of(ledger, findings, request, paused, instead_of, asked)
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
    return Draft(plan=plan, skipped=skipped(host, context, plan, choice.refusals))


class _Choice:
    """Checks the candidates of every allowed action, and chooses."""

    def __init__(self, host: Host, context: PlanContext) -> None:
        self._host = host
        self._context = context
        self._trims: dict[int, Step] = {}
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
                if kind == "trim" or not any(
                    option.pids & each.pids for each in found if each.kind != "trim"
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
                self._refused(candidate, error)
                continue
            if kind == "trim" and all(step.predicted_bytes == 0 for step in steps):
                continue  # it was asked, and caches nothing
            named = bool(context.request.pids) and not self._is_leftover(candidate)
            most = sum(process.charged_on(context.gpus) for process in candidate.processes)
            yield Option(kind, _on_one_gpu(steps, context), most, named)

    def _is_leftover(self, candidate: ActionCandidate) -> bool:
        """Whether nobody in it works with memory of its own."""
        return all(not process.charged for process in candidate.processes)

    def _steps(self, action: Action, candidate: ActionCandidate, before: list[Step]) -> Iterator[Step]:
        for process, predicted in zip(candidate.processes, candidate.predicted, strict=True):
            pid = process.pid
            if candidate.kind == "trim" and pid in self._trims:
                yield self._trims[pid]  # asked once, for whichever GPU
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
            step = action.check(self._host, step, before)
            if candidate.kind == "trim":
                self._trims[pid] = step
            yield step

    def _target(self, candidate: ActionCandidate, process: ProcessMemory) -> Target:
        host, request, pid = self._context.ledger.host, self._context.request, process.pid
        require_certain(host, process)
        target = self.identify(pid)
        paused = pid in self._context.parked
        if target.process.started_at != process.holder.started_at and not paused:
            raise WorldChanged(f"pid {pid} is a different process now", hint="try again")
        # Root frees everybody's leftovers; it attaches to other people's live processes only by name.
        named = bool(request.pids or request.findings) or candidate.finding is not None
        if target.uid != host.uid and not named:
            raise NotPermitted(f"pid {pid} belongs to {target.user}", hint=f"name it: --pid {pid}")
        return target

    def _refused(self, candidate: ActionCandidate, error: Refused) -> None:
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
        else:
            more = "--park-idle parks idle processes, --pid PID adds one by name"
        return f"`vram who` shows who holds the rest{caches}; {more}"


def _on_one_gpu(steps: tuple[Step, ...], context: PlanContext) -> tuple[Step, ...]:
    """A framework reports its caches for all GPUs of its process: of one among several nothing is known."""
    if context.request.goal_bytes is None and context.request.available_bytes is None:
        return steps
    return tuple(
        replace(step, predicted_bytes=None) if step.kind == "trim" and len(step.gpus) > 1 else step
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
    allowed = actions.up_to(request.up_to or "kill")
    if not request.pids:
        ends = "kill" in allowed
        wanted = {"kill": ends, "trim": _asks_for_caches(request), "park": request.park_idle}
        return tuple(kind for kind in ("kill", "trim", "park") if wanted[kind])
    if request.goal_bytes is not None or request.available_bytes is not None:
        return allowed
    if request.up_to:
        return allowed[-1:]
    # Who only holds memory of the dead is terminated by being named; who works is only trimmed.
    leftover = all(
        any(code_of(entry) for entry in process.retained) and not process.charged
        for process in context.named()
    )
    return ("kill",) if leftover else ("trim",)


def _asks_for_caches(request: PlanRequest) -> bool:
    """Whether live processes may be visited: by that word, or by findings that speak of them."""
    of_the_living = any(code not in (*CODES, STOPPED) for code in request.findings)
    return request.caches or request.up_to == "trim" or of_the_living


def _checked_words(request: PlanRequest) -> PlanRequest:
    """Return *request* with codes in upper case. Raises where a word of it means nothing."""
    for code in request.findings:
        require_code(code)
    if request.up_to == "reset":
        raise UsageError("a reset is never part of a plan", hint="see `vram reset --help`")
    if request.available_bytes is not None and request.goal_bytes is not None:
        raise UsageError("give SIZE or --more SIZE, not both")
    return replace(request, findings=tuple(code.strip().upper() for code in request.findings))
