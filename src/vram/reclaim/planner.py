"""From the ledger to a plan: caches and leftovers first, a healthy process only where it is named.

With a size, the smallest plan that frees it: least harmful actions first, and no step that the others make
superfluous.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.engine import require_code
from vram.diagnosis.leftover import code_of
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
from vram.reclaim.candidates import ActionCandidate, PlanContext, candidates, with_holders
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
    options: tuple[Option, ...]
    reaches: bool
    may_reach: bool = False

    @property
    def nbytes(self) -> int:
        return sum(option.nbytes or 0 for option in self.options)

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
        return Selection(gpu, fewest(harmless, goal, harm=_rank, excludes=_excludes), reaches=True)
    # Who cannot say what it only caches is asked before anybody who works is harmed: the rest is done only
    # where it is still needed.
    unknown = tuple(each for each in options if each.nbytes is None)
    if _sum(known) >= goal:
        return Selection(gpu, (*unknown, *fewest(known, goal, harm=_rank, excludes=_excludes)), reaches=True)
    counted = frozenset(pid for each in known for pid in each.pids)
    most = _sum(known) + sum(each.most for each in unknown if not each.pids & counted)
    return Selection(gpu, (*unknown, *known), reaches=False, may_reach=bool(unknown) and most >= goal)


def _sum(options: Sequence[Option]) -> int:
    return sum(each.nbytes or 0 for each in options)


def _rank(option: Option) -> tuple[bool, int]:
    """Caches, then leftovers; of those who work, parked before ended."""
    order = ("park", "kill") if option.harms else ("trim", "kill", "reset")
    return option.harms, order.index(option.kind)


def _excludes(chosen: Option, other: Option) -> bool:
    """One process is parked or terminated, not both."""
    return other.kind != "trim" and bool(other.pids & chosen.pids)


LOSES: dict[StepKind, str] = {
    "trim": "nothing; later allocations are slower at first",
    "park": "no work; it is paused until `vram unpark`, and its memory is in host RAM",
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
    request, instead_of = with_holders(host, ledger, _checked_words(request))
    context = PlanContext.of(ledger, findings, request, parked(host) if request.pids else (), instead_of)
    choice = _Choice(host, context)
    for pid in request.pids:
        # Whether it may be touched at all comes before whether it holds anything.
        choice.identify(pid)
    context.named()
    if request.goal_bytes is None:
        steps = choice.everything()
        # A GPU that does not answer cannot be measured, and must not prevent that for the others.
        silent = {gpu.index for gpu in ledger.gpus if is_silent(gpu)}
        gpus = tuple(gpu for gpu in context.gpus if gpu not in silent)
    else:
        chosen = choice.enough(request.goal_bytes)
        steps = tuple(step for option in chosen.options for step in option.steps)
        gpus = (chosen.gpu,)
    made = with_digest(ledger.taken_at, host.limits.boot_id(), request.goal_bytes, gpus, steps)
    return Draft(plan=made, skipped=skipped(host, context, made, choice.refusals))


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

    def enough(self, goal: int) -> Selection:
        """The smallest plan for *goal* on the GPU where it does the least harm."""
        wanted = self._context.gpus
        if self._context.request.pids:
            held = {gpu for process in self._context.named() for gpu in process.gpus}
            wanted = tuple(gpu for gpu in wanted if gpu in held)
        self._require_possible(goal, wanted)
        found = [self._on(gpu, goal) for gpu in wanted]
        best = min(found, key=Selection.cost, default=Selection(0, (), reaches=False))
        if not best.reaches:
            self._require_unrefused()
        if not (best.reaches or best.may_reach):
            self._require_named(tuple(step for option in best.options for step in option.steps))
            raise self._out_of_reach(goal, best)
        return best

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
                gpus=process.gpus,
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

    def _out_of_reach(self, goal: int, best: Selection) -> GoalImpossible | DeviceError:
        for process in self._context.named():
            if process.unreported_gpus:
                pid = process.pid
                return DeviceError(
                    f"GPU {process.unreported_gpus[0]} does not answer: what pid {pid} would free is unknown",
                    hint=f"`vram kill {pid}` terminates it anyway",
                )
        possible = best.nbytes + sum(option.most for option in best.options if option.nbytes is None)
        most = f"at most {size(possible)} would be freed" if possible else "nothing would be freed"
        where = f" on GPU {best.gpu}" if len(self._context.ledger.gpus) > 1 else ""
        hint = (
            "`vram who` shows who holds the rest; --park-idle parks idle processes, --pid PID adds one"
            " by name"
        )
        if self._context.ledger.host.wsl_facts is not None:
            hint = (
                "`vram who` shows who holds the rest; --pid PID allows terminating a healthy process;"
                " close Windows programs in Windows"
            )
        return GoalImpossible(
            f"cannot free {size(goal)} without harming a process in use: {most}{where}",
            hint=hint,
        )


def _on_one_gpu(steps: tuple[Step, ...], context: PlanContext) -> tuple[Step, ...]:
    """A framework reports its caches for all GPUs of its process: of one among several nothing is known."""
    if context.request.goal_bytes is None:
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
    """The actions that are allowed, least harm first: caches, leftovers, then what interrupts."""
    request = context.request
    if request.only is not None:
        return (request.only,)
    allowed = actions.up_to(request.up_to or "kill")
    if not request.pids:
        return tuple(kind for kind in ("trim", "kill", "park") if kind in allowed or _asked(kind, request))
    if request.goal_bytes is not None:
        return allowed
    if request.up_to:
        return allowed[-1:]
    # Who only holds memory of the dead is terminated by being named; who works is only trimmed.
    leftover = all(
        any(code_of(entry) for entry in process.retained) and not process.charged
        for process in context.named()
    )
    return ("kill",) if leftover else ("trim",)


def _asked(kind: StepKind, request: PlanRequest) -> bool:
    return kind == "park" and request.park_idle


def _checked_words(request: PlanRequest) -> PlanRequest:
    """Return *request* with codes in upper case. Raises where a word of it means nothing."""
    for code in request.findings:
        require_code(code)
    if request.up_to == "reset":
        raise UsageError("a reset is never part of a plan", hint="see `vram reset --help`")
    return replace(request, findings=tuple(code.strip().upper() for code in request.findings))
