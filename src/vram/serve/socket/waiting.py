"""Who waits for room on a GPU: each an open connection, forgotten when it closes.

In the order of arrival: what the first one needs is kept for it, and no later one gets of that. Two things
cost a user's place, so that no user is kept out by one who only waits: room that was granted and not used,
and room that was kept for too long. That user's requests then go behind all others for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import NotPermitted, UsageError
from vram.ledger.holds import find_holds
from vram.model.ledger import Ledger
from vram.policy.policy import Waiter
from vram.reclaim.device_state import available_bytes
from vram.serve.socket.peers import account_of

MAX_WAITERS, MAX_OF_ONE_USER = 256, 4
# So long the room of one who was just served is not offered to the next: a program takes a while to use it.
GRANT_S = 60.0
# So long the first one keeps others from room that is not enough for it.
KEEP_S = 600.0
BEHIND_S = 1800.0

OnRoom = Callable[[int, int], None]
"""Called with the GPU and what is free there."""


class _Place(Struct):
    """A place in the list: who waits, on whose account, and whom to tell."""

    waiter: Waiter
    account: int
    on_room: OnRoom


class _Grant(Struct):
    """Room that was promised, with what was available there then and what that user held.

    It is used when half of it has gone: to that user, or to any, as a container may run as another user.
    """

    place: _Place
    gpu: int
    at: float
    available: int
    held: int
    is_used: bool = False
    is_open: bool = True

    @property
    def nbytes(self) -> int:
        return self.place.waiter.nbytes


class WaitingList:
    """The requests that wait, and those that have just been served."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._grants: list[_Grant] = []
        self._kept_for: dict[int, tuple[float, float]] = {}  # by account: the first time, and the last
        self._behind: dict[int, float] = {}  # by account: until when
        self._number = 0

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        return tuple(each.waiter for each in self._places.values())

    def add(self, uid: int, nbytes: int, gpus: tuple[int, ...], on_room: OnRoom) -> Waiter:
        """Let a request wait; :meth:`remove` it when the connection closes."""
        if not 0 < nbytes < 1 << 60:
            raise UsageError("the size is not possible", hint="for example 20GiB")
        account = account_of(uid)
        of_account = sum(each.account == account for each in self._places.values())
        if len(self._places) >= MAX_WAITERS or of_account >= MAX_OF_ONE_USER:
            raise NotPermitted("too many requests wait already", hint="end one of them first")
        self._number += 1
        waiter = Waiter(number=self._number, uid=uid, nbytes=nbytes, gpus=tuple(sorted(set(gpus))))
        self._places[waiter.number] = _Place(waiter, account, on_room)
        return waiter

    def remove(self, number: int) -> None:
        """Its room is free for others at once. Whether it is used is still watched."""
        self._places.pop(number, None)
        for grant in self._grants:
            grant.is_open = grant.is_open and grant.place.waiter.number != number

    def serve(self, ledger: Ledger, boot: float) -> None:
        """Tell those for whom there is room now; *boot* is the time by the clock that never jumps."""
        available = available_bytes(ledger)
        self._judge(ledger, available, boot)
        left = {
            gpu: nbytes - sum(each.nbytes for each in self._grants if each.is_open and each.gpu == gpu)
            for gpu, nbytes in available.items()
        }
        for place in self._in_order(boot):
            waiter = place.waiter
            usable = [gpu for gpu in left if not waiter.gpus or gpu in waiter.gpus]
            best = max(usable, key=lambda gpu: (left[gpu], -gpu), default=None)
            if best is None:
                continue
            if left[best] >= waiter.nbytes:
                self._grant(place, best, left[best], ledger, available, boot)
                left[best] -= waiter.nbytes
            elif self._is_kept_for(place.account, boot):
                left[best] = 0

    def _in_order(self, boot: float) -> list[_Place]:
        self._behind = {account: until for account, until in self._behind.items() if boot < until}
        waiting = [place for place in self._places.values() if not place.waiter.is_served]
        return sorted(waiting, key=lambda each: (each.account in self._behind, each.waiter.number))

    def _grant(
        self, place: _Place, gpu: int, free: int, ledger: Ledger, available: dict[int, int], boot: float
    ) -> None:
        place.waiter = replace(place.waiter, is_served=True)
        held = _held_bytes(ledger, gpu, place.waiter.uid)
        self._grants.append(_Grant(place, gpu, boot, available[gpu], held))
        place.on_room(gpu, free)

    def _is_kept_for(self, account: int, boot: float) -> bool:
        """Whether what is free is kept for who waits and needs more than that; not for more than KEEP_S.

        That is counted for the user, who could leave and come again.
        """
        if account in self._behind:
            return False
        self._kept_for = {key: kept for key, kept in self._kept_for.items() if boot - kept[1] < BEHIND_S}
        first, _ = self._kept_for.get(account, (boot, boot))
        self._kept_for[account] = first, boot
        if boot - first > KEEP_S:
            self._behind[account] = boot + BEHIND_S
            del self._kept_for[account]
        return account not in self._behind

    # ---- is it used? ----

    def _judge(self, ledger: Ledger, available: dict[int, int], boot: float) -> None:
        """See what was taken of each grant; one that is over and was not used costs its user's place."""
        for grant in self._grants:
            account = grant.place.account
            by_user = _held_bytes(ledger, grant.gpu, grant.place.waiter.uid) - grant.held
            by_all = grant.available - available.get(grant.gpu, grant.available)
            grant.is_used = grant.is_used or 2 * max(by_user, by_all) >= grant.nbytes
            if grant.is_used:
                self._kept_for.pop(account, None)
            elif boot - grant.at >= GRANT_S:
                self._behind[account] = boot + BEHIND_S
        self._grants = [grant for grant in self._grants if boot - grant.at < GRANT_S]


def _held_bytes(ledger: Ledger, gpu: int, uid: int) -> int:
    entries = (part.entry for hold in find_holds(ledger) for part in hold.parts if part.gpu == gpu)
    return sum(entry.nbytes or 0 for entry in entries if entry.holder and entry.holder.uid == uid)
