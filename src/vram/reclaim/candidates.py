"""Who might give memory back, action by action; judged by the ledger alone, before anybody is visited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vram.diagnosis.held import is_healthy, is_stopped, living_holders
from vram.diagnosis.leftover import code_of, working
from vram.errors import CannotPark, DeviceError, NotOnGpu
from vram.model.finding import Finding
from vram.model.ledger import Entry, Holder, Ledger, ParkedProcess, known_bytes
from vram.model.plan import Request, StepKind
from vram.reclaim.accounts import Account, accounts, returns, tells_who
from vram.reclaim.leftovers import Leftover, leftovers
from vram.units import size

STOPPED = "VR201"


class ActionCandidate(Struct, frozen=True, kw_only=True):
    """Processes that go together, in order, and the bytes that come back with each of them."""

    kind: StepKind
    accounts: tuple[Account, ...]
    predicted: tuple[int | None, ...]
    reason: str
    finding: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(each or 0 for each in self.predicted)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(account.holder.pid for account in self.accounts)


class PlanContext(Struct, frozen=True):
    """Everything that the choice is made from.

    Harm is judged by the whole ledger: who has leftovers on one GPU may work on another. Bytes are
    counted on ``gpus`` alone.
    """

    ledger: Ledger
    findings: tuple[Finding, ...]
    request: Request
    known: dict[int, Account]
    gpus: tuple[int, ...]
    all_leftovers: tuple[Leftover, ...] = ()
    parked: dict[int, ParkedProcess] = {}
    instead_of: dict[int, int] = {}
    """Holders that a dead pid on the command line stands for, and that pid."""
    works: frozenset[int] = frozenset()
    """Healthy processes with GPU memory of their own."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        findings: tuple[Finding, ...],
        request: Request,
        parked: Iterable[ParkedProcess] = (),
        instead_of: dict[int, int] | None = None,
    ) -> PlanContext:
        every = tuple(gpu.index for gpu in ledger.gpus)
        known = accounts(ledger)
        found = tuple(leftovers(ledger, known, request.findings))
        paused = {each.pid: each for each in parked}
        gpus = request.gpus or every
        return cls(ledger, findings, request, known, gpus, found, paused, instead_of or {}, working(ledger))

    def named(self) -> tuple[Account, ...]:
        """The processes that the user named, in that order. Raises where one is on none of the GPUs."""
        there = {pid: each for pid, each in self.known.items() if set(each.gpus) & set(self.gpus)}
        there |= {pid: _paused(each) for pid, each in self.parked.items() if pid not in there}
        missing = [pid for pid in self.request.pids if pid not in there]
        if missing:
            raise self._not_found(missing[0])
        return tuple(there[pid] for pid in dict.fromkeys(self.request.pids))

    def _not_found(self, pid: int) -> NotOnGpu | DeviceError:
        silent = [gpu.index for gpu in self.ledger.gpus if gpu.index in self.gpus and not tells_who(gpu)]
        if silent:
            return DeviceError(
                f"GPU {silent[0]} does not answer: whether pid {pid} holds memory there is unknown",
                hint="`vram why` tells more of the GPU",
            )
        return NotOnGpu(
            f"pid {pid} holds no memory of {'this GPU' if self.request.gpus else 'any GPU'}",
            hint="`vram who` lists those that do",
        )

    def chosen(self) -> tuple[Account, ...]:
        """Whom the user means: those named, those of the findings named, or everybody on the GPUs."""
        if self.request.pids:
            return self.named()
        here = {pid: each for pid, each in self.known.items() if set(each.gpus) & set(self.gpus)}
        if self.request.findings:
            pids = {pid for each in self.findings if each.code in self.request.findings for pid in each.pids}
            return tuple(here[pid] for pid in sorted(pids) if pid in here)
        return tuple(here.values())

    def leftovers(self) -> list[Leftover]:
        """Those with bytes on the GPUs, narrowed by ``--finding``."""
        return [each for each in self.all_leftovers if set(each.gpus) & set(self.gpus)]

    def own_bytes(self, account: Account) -> int:
        """What it is charged with on the GPUs that count."""
        return sum(account.own_by_gpu.get(gpu, 0) for gpu in self.gpus)


def _paused(process: ParkedProcess) -> Account:
    """A parked process has nothing on a GPU, and may be named all the same."""
    holder = Holder(
        pid=process.pid, started_at=None, user=process.user, command=process.command, alive=True, state="S"
    )
    return Account(holder=holder, gpus=process.gpus)


def candidates(context: PlanContext, kind: StepKind) -> Iterator[ActionCandidate]:
    """All candidates for one action."""
    yield from {"trim": _trims, "park": _parks, "kill": _kills}[kind](context)


def _trims(context: PlanContext) -> Iterator[ActionCandidate]:
    for account in context.chosen():
        if account.own and is_healthy(account.holder):
            reason = "it may hold memory that it only caches"
            yield ActionCandidate(kind="trim", accounts=(account,), predicted=(None,), reason=reason)


def _parks(context: PlanContext) -> Iterator[ActionCandidate]:
    """Only who was named, or, where idle processes were asked for, those."""
    named = bool(context.request.pids)
    if not named and not context.request.park_idle:
        return
    for account in context.chosen():
        if not account.own or not is_healthy(account.holder):
            continue
        if not _on_nvidia(context, account):
            if named:
                raise CannotPark(
                    f"pid {account.holder.pid} has its memory on a GPU that is not NVIDIA's, and no other"
                    " driver can park processes",
                    hint=f"`vram kill {account.holder.pid}` ends it",
                )
            continue
        if named or account.idle:
            reason = "you named it" if named else "it waits, its GPU does nothing, and --park-idle allows it"
            nbytes = context.own_bytes(account)
            yield ActionCandidate(kind="park", accounts=(account,), predicted=(nbytes,), reason=reason)


def _on_nvidia(context: PlanContext, account: Account) -> bool:
    return any(gpu.driver == "nvidia" for gpu in context.ledger.gpus if gpu.index in account.gpus)


def _kills(context: PlanContext) -> Iterator[ActionCandidate]:
    if context.request.pids:
        yield from _named_kills(context)
        return
    for leftover in context.leftovers():
        yield ActionCandidate(
            kind="kill",
            accounts=leftover.accounts,
            predicted=_with_the_last(leftover.nbytes(context.gpus), len(leftover.accounts)),
            reason=_leftover_reason(leftover),
            finding=leftover.code,
        )
    if STOPPED in context.request.findings:
        for account in context.chosen():
            if account.own and account.holder.state == "T" and is_stopped(account.holder):
                yield _named_kill(context, (account,), "it is stopped, and --finding VR201 names it", STOPPED)


def _leftover_reason(leftover: Leftover) -> str:
    entry = max(leftover.entries, key=lambda each: each[1].nbytes or 0)[1]
    nbytes = size(known_bytes(each for _, each in leftover.entries))
    if code_of(entry) == "VR103":
        return f"{nbytes} held by an exported handle whose maker is gone"
    if code_of(entry) == "VR104":
        return f"{nbytes} held by a dma-buf whose maker is gone"
    dead = dict.fromkeys(each.charged_pid for _, each in leftover.entries if each.charged_pid is not None)
    return f"{nbytes} of dead pid {', '.join(map(str, dead))}, held by forked children"


def _named_kills(context: PlanContext) -> Iterator[ActionCandidate]:
    """One candidate for all: bytes that they hold together come back with the last of them."""
    yield _named_kill(context, context.named(), "you named it")


def _named_kill(
    context: PlanContext, named: tuple[Account, ...], reason: str, finding: str | None = None
) -> ActionCandidate:
    pids = [account.holder.pid for account in named]
    dead = dict.fromkeys(context.instead_of[pid] for pid in pids if pid in context.instead_of)
    if dead:
        reason = f"pid {', '.join(map(str, dead))} is dead, and its memory is held here"
    shared = sorted({pid for account in named for pid in _others(account)} - set(pids))
    if shared:
        reason += f"; what it shares stays until pid {', '.join(map(str, shared))} ends too"
    returned = returns(context.ledger, pids, context.gpus)
    paused = [context.parked[pid] for pid in pids if pid in context.parked]
    if paused:
        reason += "; " + ", ".join(
            f"pid {each.pid} is parked, {size(each.nbytes)} in host memory" for each in paused
        )
    unknown = [_is_unknown(account, context.request) for account in named]
    predicted = tuple(
        None if no and not nbytes else nbytes for no, nbytes in zip(unknown, returned, strict=True)
    )
    return ActionCandidate(kind="kill", accounts=named, predicted=predicted, reason=reason, finding=finding)


def _is_unknown(account: Account, request: Request) -> bool:
    """The driver does not say how much this is: nothing is not what is meant by 0.

    Where it says nothing of a whole GPU, nobody is ended for a size that was asked for.
    """
    silent = bool(account.untold) and request.goal_bytes is None
    return silent or any(entry.nbytes is None for entry in account.own)


def _others(account: Account) -> Iterator[int]:
    entries: tuple[Entry, ...] = (*account.own, *account.kept)
    for entry in entries:
        yield from (holder.pid for holder in living_holders(entry))


def _with_the_last(nbytes: int, count: int) -> tuple[int, ...]:
    return (*[0] * (count - 1), nbytes)
