"""Who might give memory back, rung by rung; judged by the ledger alone, before anybody is looked at."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vram.diagnosis.health import is_healthy
from vram.errors import CannotPark, DeviceError, NotOnGpu
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.plan import StepKind, Wish
from vram.reclaim.accounts import Account, accounts, keepers, returns, tells_who
from vram.reclaim.leftovers import Leftover, doubt, leftovers


class Candidate(Struct, frozen=True, kw_only=True):
    """Processes that go together, in order, and the bytes that come back with each of them."""

    kind: StepKind
    accounts: tuple[Account, ...]
    predicted: tuple[int | None, ...]
    reason: str
    finding: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(each or 0 for each in self.predicted)


class Scene(Struct, frozen=True):
    """Everything that the choice is made from."""

    ledger: Ledger
    findings: tuple[Finding, ...]
    wish: Wish
    known: dict[int, Account]

    @classmethod
    def of(cls, ledger: Ledger, findings: tuple[Finding, ...], wish: Wish) -> Scene:
        return cls(ledger, findings, wish, accounts(ledger))

    def named(self) -> tuple[Account, ...]:
        """The processes that the user named, in that order. Raises where one is on no GPU."""
        missing = [pid for pid in self.wish.pids if pid not in self.known]
        if missing:
            raise self._not_found(missing[0])
        return tuple(self.known[pid] for pid in dict.fromkeys(self.wish.pids))

    def _not_found(self, pid: int) -> NotOnGpu | DeviceError:
        silent = [gpu.index for gpu in self.ledger.gpus if not tells_who(gpu)]
        if silent:
            return DeviceError(
                f"GPU {silent[0]} does not answer: whether pid {pid} holds memory there cannot be told",
                hint="`vram why` tells more of the GPU",
            )
        return NotOnGpu(
            f"pid {pid} holds no memory of {'this GPU' if self.wish.gpus else 'any GPU'}",
            hint="`vram who` lists those that do",
        )

    def chosen(self) -> tuple[Account, ...]:
        """Whom the user means: those named, those of the findings named, or everybody."""
        if self.wish.pids:
            return self.named()
        if self.wish.findings:
            pids = {pid for each in self.findings if each.code in self.wish.findings for pid in each.pids}
            return tuple(self.known[pid] for pid in sorted(pids) if pid in self.known)
        return tuple(self.known.values())

    def leftovers(self) -> tuple[Leftover, ...]:
        wanted = self.wish.findings
        return tuple(
            each for each in leftovers(self.findings, self.known) if not wanted or each.finding.code in wanted
        )


def candidates(scene: Scene, kind: StepKind) -> Iterator[Candidate]:
    """All candidates for one rung."""
    yield from {"trim": _trims, "park": _parks, "kill": _kills}[kind](scene)


def _trims(scene: Scene) -> Iterator[Candidate]:
    for account in scene.chosen():
        if account.own and is_healthy(account.holder):
            reason = "it may keep memory that it only caches"
            yield Candidate(kind="trim", accounts=(account,), predicted=(None,), reason=reason)


def _parks(scene: Scene) -> Iterator[Candidate]:
    named = bool(scene.wish.pids)
    for account in scene.chosen():
        if not account.own or not is_healthy(account.holder):
            continue
        if not _on_nvidia(scene, account):
            if named:
                raise CannotPark(
                    f"pid {account.holder.pid} has its memory on a GPU that is not NVIDIA's, and no other"
                    " driver can park processes",
                    hint=f"`vram kill {account.holder.pid}` ends it",
                )
            continue
        if named or (account.idle and scene.wish.goal_bytes is not None):
            reason = "you named it" if named else "it waits, and its GPU does nothing"
            yield Candidate(kind="park", accounts=(account,), predicted=(account.own_bytes,), reason=reason)


def _on_nvidia(scene: Scene, account: Account) -> bool:
    return any(gpu.driver == "nvidia" for gpu in scene.ledger.gpus if gpu.index in account.gpus)


def _kills(scene: Scene) -> Iterator[Candidate]:
    if scene.wish.pids:
        yield from _named_kills(scene)
        return
    for leftover in scene.leftovers():
        if doubt(leftover) is None:
            yield Candidate(
                kind="kill",
                accounts=leftover.accounts,
                predicted=_with_the_last(leftover.nbytes, len(leftover.accounts)),
                reason=leftover.finding.title,
                finding=leftover.finding.code,
            )


def _named_kills(scene: Scene) -> Iterator[Candidate]:
    """One candidate for all: bytes that they keep together come back with the last of them."""
    named = scene.named()
    pids = [account.holder.pid for account in named]
    shared = sorted({pid for account in named for pid in _others(account)} - set(pids))
    reason = "you named it"
    if shared:
        reason += f"; what it shares stays until pid {', '.join(map(str, shared))} let go too"
    returned = returns(scene.ledger, pids)
    untold = [_is_untold(account, scene.wish) for account in named]
    predicted = tuple(
        None if no and not nbytes else nbytes for no, nbytes in zip(untold, returned, strict=True)
    )
    yield Candidate(kind="kill", accounts=named, predicted=predicted, reason=reason)


def _is_untold(account: Account, wish: Wish) -> bool:
    """The driver does not say how much this is: nothing is not what is meant by 0.

    Where it says nothing of a whole GPU, nobody is ended for a size that was asked for.
    """
    silent = bool(account.untold) and wish.goal_bytes is None
    return silent or any(entry.confidence == "unknown" and entry.nbytes == 0 for entry in account.own)


def _others(account: Account) -> Iterator[int]:
    for entry in (*account.own, *account.kept):
        yield from (holder.pid for holder in keepers(entry))


def _with_the_last(nbytes: int, count: int) -> tuple[int, ...]:
    return (*[0] * (count - 1), nbytes)
