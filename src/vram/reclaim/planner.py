"""From the ledger to a plan: caches and leftovers first, a healthy process only where it is named."""

from __future__ import annotations

from collections.abc import Iterator

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
from vram.model.finding import Finding
from vram.model.ledger import Ledger, ParkedProcess
from vram.model.plan import Draft, Request, Step, StepKind, Target
from vram.reclaim import actions
from vram.reclaim.accounts import Account, is_silent
from vram.reclaim.actions import Action
from vram.reclaim.candidates import ActionCandidate, PlanContext, candidates
from vram.reclaim.identity import identify
from vram.reclaim.naming import with_holders
from vram.reclaim.plan_file import with_digest
from vram.reclaim.selection import Option, Selection, smallest
from vram.reclaim.skipped import skipped
from vram.units import size

LOSES: dict[StepKind, str] = {
    "trim": "nothing; later allocations are slower at first",
    "park": "no work: it is paused until unparked, and its memory lies in host RAM",
    "kill": "whatever it has not saved",
    "reset": "nothing, once nobody uses the GPU",
}
NOT_ATTACHED = (NotReachable, AttachDenied)
"""Why a process cannot be trimmed: usual, and no news where something else is planned."""

LEFTOVER_LOSES = "no GPU memory in use: the owner is dead"


def plan(host: Host, ledger: Ledger, findings: tuple[Finding, ...], request: Request) -> Draft:
    """Return what would be done for *request*; nothing is touched by that.

    Raises the refusal where a process that was named must be left alone, and GoalImpossible
    where everything allowed together would not reach the goal.
    """
    request, instead_of = with_holders(host, ledger, _understood(request))
    context = PlanContext.of(ledger, findings, request, parked(host) if request.pids else (), instead_of)
    choice = _Choice(host, context)
    for pid in request.pids:
        # Whether it may be touched at all comes before whether it holds anything.
        choice.identify(pid)
    context.named()
    if request.goal_bytes is None:
        steps = choice.everything()
        # A GPU that does not answer cannot be measured, and must not keep the others from it.
        silent = {gpu.index for gpu in ledger.gpus if is_silent(gpu)}
        gpus = tuple(gpu for gpu in context.gpus if gpu not in silent)
    else:
        chosen = choice.enough(request.goal_bytes)
        steps = tuple(step for option in chosen.options for step in option.steps)
        gpus = (chosen.gpu,)
    sealed = with_digest(ledger.taken_at, host.limits.boot_id(), request.goal_bytes, gpus, steps)
    return Draft(plan=sealed, skipped=skipped(host, context, sealed, choice.refusals))


def parked(host: Host) -> tuple[ParkedProcess, ...]:
    """Who is parked by this user."""
    from vram.reclaim.state import has_parked

    if not has_parked():
        return ()
    from vram.reclaim.journal import parked_now

    return parked_now(host)


class _Choice:
    """Looks at the candidates of every allowed action, and picks."""

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
            held = {gpu for account in self._context.named() for gpu in account.gpus}
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
        narrowed = replace_gpus(self._context, gpu)
        options: list[Option] = []
        for kind in _actions(narrowed):
            options += self._options(narrowed, kind, options)
        return smallest(gpu, options, goal)

    def _options(self, context: PlanContext, kind: StepKind, before: list[Option]) -> Iterator[Option]:
        action = actions.action(kind)
        for candidate in candidates(context, kind):
            try:
                earlier = [step for option in before for step in option.steps]
                steps = tuple(self._made(action, candidate, earlier))
            except Refused as error:
                self._refused(candidate, error)
                continue
            if kind == "trim" and all(step.predicted_bytes == 0 for step in steps):
                continue  # it was asked, and caches nothing
            named = bool(context.request.pids) and not self._is_leftover(candidate)
            most = sum(context.own_bytes(account) for account in candidate.accounts)
            yield Option(kind, _on_one_gpu(steps, context), most, named)

    def _is_leftover(self, candidate: ActionCandidate) -> bool:
        """Whether nobody in it works with memory of its own."""
        return all(not account.own for account in candidate.accounts)

    def _made(self, action: Action, candidate: ActionCandidate, before: list[Step]) -> Iterator[Step]:
        for account, predicted in zip(candidate.accounts, candidate.predicted, strict=True):
            pid = account.holder.pid
            if candidate.kind == "trim" and pid in self._trims:
                yield self._trims[pid]  # asked once, for whichever GPU
                continue
            step = Step(
                kind=candidate.kind,
                target=self._target(candidate, account),
                gpus=account.gpus,
                predicted_bytes=predicted,
                loses=_loses(candidate, account),
                reversible=candidate.kind != "kill",
                reason=candidate.reason,
                finding=candidate.finding,
            )
            step = action.check(self._host, step, before)
            if candidate.kind == "trim":
                self._trims[pid] = step
            yield step

    def _target(self, candidate: ActionCandidate, account: Account) -> Target:
        host, request, pid = self._context.ledger.host, self._context.request, account.holder.pid
        # Under WSL2 the bytes are in doubt, and never the pids: those are read here, from open files.
        here = host.initial_pid_namespace or host.wsl_facts is not None
        if not account.surely_named and not here:
            raise NotPermitted(
                f"seen from inside this PID namespace, pid {pid} may be somebody else's",
                hint="run vram on the host",
            )
        target = self.identify(pid)
        paused = pid in self._context.parked
        if target.process.started_at != account.holder.started_at and not paused:
            raise WorldChanged(f"pid {pid} is another process now", hint="try again")
        # Root gives everybody's leftovers back; into other people's live processes it goes only by name.
        named = bool(request.pids or request.findings) or candidate.finding is not None
        if target.uid != host.uid and not named:
            raise NotPermitted(f"pid {pid} belongs to {target.user}", hint=f"name it: --pid {pid}")
        return target

    def _refused(self, candidate: ActionCandidate, error: Refused) -> None:
        for account in candidate.accounts:
            known = self.refusals.get(account.holder.pid)
            # That a process cannot be attached to for a trim is usual; a later refusal says more.
            if known is None or isinstance(known, NOT_ATTACHED):
                self.refusals[account.holder.pid] = error

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
            raise GoalImpossible(f"{size(goal)} are more than the GPU has ({largest})", hint="ask for less")

    def _out_of_reach(self, goal: int, best: Selection) -> GoalImpossible | DeviceError:
        for account in self._context.named():
            if account.untold:
                pid = account.holder.pid
                return DeviceError(
                    f"GPU {account.untold[0]} does not answer: what pid {pid} would give back is unknown",
                    hint=f"`vram kill {pid}` ends it all the same",
                )
        possible = best.nbytes + sum(option.most for option in best.options if option.nbytes is None)
        most = f"at most {size(possible)} would come back" if possible else "nothing would come back"
        where = f" on GPU {best.gpu}" if len(self._context.ledger.gpus) > 1 else ""
        hint = "`vram who` lists who holds the rest; --park-idle allows to park idle processes, --pid PID one"
        if self._context.ledger.host.wsl_facts is not None:
            hint = (
                "`vram who` lists who holds the rest; --pid PID allows to end a healthy process, and"
                " Windows programs are closed in Windows"
            )
        return GoalImpossible(
            f"{size(goal)} cannot be given back without harming a process that works: {most}{where}",
            hint=hint,
        )


def replace_gpus(context: PlanContext, gpu: int) -> PlanContext:
    """The same, with bytes counted on one GPU."""
    return replace(context, gpus=(gpu,))


def _on_one_gpu(steps: tuple[Step, ...], context: PlanContext) -> tuple[Step, ...]:
    """A framework's caches are told for all GPUs of its process: of one among several they tell nothing."""
    if context.request.goal_bytes is None:
        return steps
    return tuple(
        replace(step, predicted_bytes=None) if step.kind == "trim" and len(step.gpus) > 1 else step
        for step in steps
    )


def _loses(candidate: ActionCandidate, account: Account) -> str:
    if candidate.kind == "kill" and "mps" in account.holder.lists:
        return f"{LOSES['kill']}; it uses MPS, and other clients of the same server may fail with it"
    if candidate.kind == "kill" and not account.own and any(map(code_of, account.kept)):
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
    # Who only holds memory of the dead is ended by being named; who works is only trimmed.
    leftover = all(
        any(code_of(entry) for entry in account.kept) and not account.own for account in context.named()
    )
    return ("kill",) if leftover else ("trim",)


def _asked(kind: StepKind, request: Request) -> bool:
    return kind == "park" and request.park_idle


def _understood(request: Request) -> Request:
    """Check the words, and write codes as they are written."""
    for code in request.findings:
        require_code(code)
    if request.up_to == "reset":
        raise UsageError("a reset is never part of a plan", hint="see `vram reset --help`")
    return replace(request, findings=tuple(code.strip().upper() for code in request.findings))
