"""What before-oom does: asks those that agreed for memory, each as its owner, until enough is free."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from vram.model.plan import OutcomeStatus
from vram.policy.kinds.before_oom import RELIEFS
from vram.policy.policy import Decision, PolicyTarget, Relief
from vram.serve.socket.become import RunAs
from vram.serve.socket.peers import agreed_to, owner_of
from vram.serve.socket.worker import WorkerAnswer
from vram.units import size

# From what is fine to what a person should look at.
_STATUSES: tuple[OutcomeStatus, ...] = ("not-needed", "done", "refused", "failed", "unkillable")

Ask = Callable[[Relief, PolicyTarget, RunAs], Awaitable[WorkerAnswer]]
Tell = Callable[[], Awaitable[WorkerAnswer]]


async def relieve(
    decision: Decision,
    ask: Ask,
    tell: Tell | None,
    status_of: Callable[[WorkerAnswer], OutcomeStatus],
) -> WorkerAnswer:
    """Ask for *decision*, the least harm first, and then warn the owners of what grows.

    Whether a process agrees is read again right before.
    """
    freed, said = 0, []
    worst: OutcomeStatus = "not-needed"
    for relief in RELIEFS:
        for target in decision.targets:
            owner = owner_of(*target.identity)
            if freed >= decision.nbytes or owner is None or relief not in agreed_to(*target.identity):
                continue
            answer = await ask(relief, target, owner)
            freed += answer.freed_bytes or 0
            worst = max(worst, status_of(answer), key=_STATUSES.index)
            said.append(f"{relief} of pid {target.pid}: {_what_came_of_it(answer)}")
    if tell is not None:
        answer = await tell()
        worst = max(worst, status_of(answer), key=_STATUSES.index)
        said.append(answer.error.message if answer.error else answer.message)
    message = "; ".join(said) or "no process there agrees to it"
    return WorkerAnswer(is_last=True, status=worst, message=message, freed_bytes=freed)


def _what_came_of_it(answer: WorkerAnswer) -> str:
    if answer.error is not None:
        return answer.error.message
    return answer.message if answer.freed_bytes is None and answer.message else size(answer.freed_bytes or 0)
