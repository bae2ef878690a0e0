"""From the ledger to a plan: enough of the ladder to reach the goal, least harm first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from vram.diagnosis.manual import page
from vram.errors import (
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
from vram.model.ledger import Ledger
from vram.model.plan import Draft, Step, StepKind, Target, Wish
from vram.reclaim import ladder
from vram.reclaim.accounts import Account, is_silent
from vram.reclaim.candidates import Candidate, Scene, candidates
from vram.reclaim.identity import capture
from vram.reclaim.plan_file import seal
from vram.reclaim.rung import Preparing, Rung
from vram.reclaim.spared import spared
from vram.units import size

LOSES: dict[StepKind, str] = {
    "trim": "nothing; later allocations are slower at first",
    "park": "no work: it stands still until unparked, and its memory lies in host RAM",
    "kill": "whatever it has not saved",
    "reset": "nothing, once nobody uses the GPU",
}


def plan(host: Host, ledger: Ledger, findings: tuple[Finding, ...], wish: Wish) -> Draft:
    """Return what would be done for *wish*; nothing is touched by that.

    Raises the refusal where a process that was named must be left alone, and GoalImpossible
    where everything allowed together would not reach the goal.
    """
    scene = Scene.of(ledger, findings, _understood(wish))
    for pid in wish.pids:
        # Whether it may be touched at all comes before whether it has anything to give.
        capture(host, pid)
    _require_possible(scene)
    choice = _Choice(host, scene)
    steps = choice.steps()
    # A GPU that does not answer cannot be measured, and must not keep the others from it.
    gpus = tuple(gpu.index for gpu in ledger.gpus if not is_silent(gpu))
    sealed = seal(ledger.taken_at, host.vitals.boot_id(), wish.goal_bytes, gpus, steps)
    return Draft(plan=sealed, spared=spared(scene, sealed, choice.refusals))


def _loses(kind: StepKind, account: Account) -> str:
    if kind == "kill" and "mps" in account.holder.lists:
        return f"{LOSES[kind]}; it uses MPS, and other clients of the same server may fail with it"
    return LOSES[kind]


class _Choice:
    """Picks candidates, rung by rung, and looks at whom it picked."""

    def __init__(self, host: Host, scene: Scene) -> None:
        self._host = host
        self._scene = scene
        self._left = scene.wish.goal_bytes
        self._found: list[Step] = []
        self._settled: set[int] = set()
        self.refusals: dict[int, Refused] = {}

    def steps(self) -> tuple[Step, ...]:
        for kind in _rungs(self._scene.wish):
            self._climb(kind)
        found = self._found
        if self._scene.wish.pids and self._is_wanting():
            self._require_something(found)
        if self._left is not None and self._left > 0 and not any(s.predicted_bytes is None for s in found):
            raise self._out_of_reach(found)
        return tuple(found)

    def _climb(self, kind: StepKind) -> None:
        rung = ladder.rung(kind)
        pool = [each for each in candidates(self._scene, kind) if not self._is_settled(each)]
        while pool and self._is_wanting():
            candidate = _pick(pool, self._left)
            try:
                steps = tuple(self._made(rung, candidate))
            except Refused as error:
                self._refused(candidate, error)
                continue
            if kind == "trim" and all(step.predicted_bytes == 0 for step in steps):
                continue  # it was asked, and caches nothing
            self._take(kind, steps)

    def _is_wanting(self) -> bool:
        """Whether more is to be found: the goal is not reached, or there is none."""
        return self._left is None or self._left > 0

    def _is_settled(self, candidate: Candidate) -> bool:
        """Parked or ended already by this plan: nothing is left to give."""
        return any(account.holder.pid in self._settled for account in candidate.accounts)

    def _made(self, rung: Rung, candidate: Candidate) -> Iterator[Step]:
        for account, predicted in zip(candidate.accounts, candidate.predicted, strict=True):
            step = Step(
                kind=candidate.kind,
                target=self._target(account),
                gpus=account.gpus,
                predicted_bytes=predicted,
                loses=_loses(candidate.kind, account),
                reversible=candidate.kind != "kill",
                reason=candidate.reason,
                finding=candidate.finding,
            )
            if isinstance(rung, Preparing):
                step = rung.prepare(self._host, step)
            rung.check(self._host, step, self._found)
            yield step

    def _target(self, account: Account) -> Target:
        host, wish, pid = self._scene.ledger.host, self._scene.wish, account.holder.pid
        # Under WSL2 the bytes are in doubt, and never the pids: those are read here, from open files.
        here = host.initial_pid_namespace or host.wsl_facts is not None
        if not account.surely_named and not here:
            raise NotPermitted(
                f"seen from inside this PID namespace, pid {pid} may be somebody else's",
                hint="run vram on the host",
            )
        target = capture(self._host, pid)
        if target.process.started_at != account.holder.started_at:
            raise WorldChanged(f"pid {pid} is another process now", hint="try again")
        if target.uid != host.uid and not (wish.pids or wish.findings):
            raise NotPermitted(f"pid {pid} belongs to {target.user}", hint=f"name it: --pid {pid}")
        return target

    def _refused(self, candidate: Candidate, error: Refused) -> None:
        for account in candidate.accounts:
            known = self.refusals.get(account.holder.pid)
            # That nothing leads into a process to trim it is the rule; a later refusal says more.
            if known is None or isinstance(known, NotReachable):
                self.refusals[account.holder.pid] = error

    def _take(self, kind: StepKind, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if self._left is not None:
                self._left -= step.predicted_bytes or 0
            if step.target is not None and kind != "trim":
                self._settled.add(step.target.process.pid)
            self._found.append(step)

    def _require_something(self, found: list[Step]) -> None:
        """Who was named and gets no step was refused: that is the answer."""
        planned = {step.target.process.pid for step in found if step.target}
        for pid in self._scene.wish.pids:
            if pid in self.refusals and pid not in planned:
                raise self.refusals[pid]

    def _out_of_reach(self, found: list[Step]) -> GoalImpossible | DeviceError:
        for account in self._scene.named():
            if account.untold:
                pid = account.holder.pid
                return DeviceError(
                    f"GPU {account.untold[0]} does not answer: what pid {pid} would give back cannot be told",
                    hint=f"`vram kill {pid}` ends it all the same",
                )
        possible = sum(step.predicted_bytes or 0 for step in found)
        most = f"at most {size(possible)} would come back" if possible else "nothing would come back"
        hint = "`vram who` shows who holds the rest; --pid PID allows to park or end a healthy process"
        if self._scene.ledger.host.wsl_facts is not None:
            hint = (
                "`vram who` shows who holds the rest; --pid PID allows to end a healthy process, and"
                " Windows programs are closed in Windows"
            )
        return GoalImpossible(
            f"{size(self._scene.wish.goal_bytes or 0)} cannot be given back by what is allowed: {most}",
            hint=hint,
        )


def _pick(pool: list[Candidate], left: int | None) -> Candidate:
    """Take the smallest that is enough, else the largest: as few as possible are harmed."""
    enough = [each for each in pool if left is not None and each.nbytes >= left]
    best = min(enough, key=_order) if enough else max(pool, key=lambda each: each.nbytes)
    pool.remove(best)
    return best


def _order(candidate: Candidate) -> tuple[int, int]:
    return candidate.nbytes, candidate.accounts[0].holder.pid


def _rungs(wish: Wish) -> tuple[StepKind, ...]:
    if wish.only is not None:
        return (wish.only,)
    rungs = ladder.below(wish.up_to or "trim")
    if wish.goal_bytes is None and wish.pids and wish.up_to:
        return rungs[-1:]
    return rungs


def _understood(wish: Wish) -> Wish:
    """Fill in what a wish means where it does not say it."""
    for code in wish.findings:
        page(code)
    codes = tuple(code.strip().upper() for code in wish.findings)
    harm_is_meant = wish.goal_bytes is not None or bool(codes)
    if wish.up_to == "reset":
        raise UsageError("a reset is never part of a plan", hint="see `vram reset --help`")
    return replace(wish, findings=codes, up_to=wish.up_to or ("kill" if harm_is_meant else "trim"))


def _require_possible(scene: Scene) -> None:
    scene.named()
    goal = scene.wish.goal_bytes
    total = _sum(gpu.total_bytes for gpu in scene.ledger.gpus)
    if goal is not None and total is not None and goal > total:
        whole = "the GPU has" if len(scene.ledger.gpus) == 1 else f"all {len(scene.ledger.gpus)} GPUs have"
        raise GoalImpossible(f"{size(goal)} are more than {whole} ({size(total)})", hint="ask for less")


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(each or 0 for each in known)
