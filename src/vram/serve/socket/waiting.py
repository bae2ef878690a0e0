"""Who waits for room on a GPU: each an open connection, forgotten when it closes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from vram.errors import NotPermitted, UsageError
from vram.model.ledger import Ledger
from vram.policy.decision import Waiter
from vram.reclaim.device_state import available_bytes

MOST_WAITERS, MOST_OF_ONE_USER = 256, 4
# So long the room of one who was just served is not offered to the next: a program takes a while to use it.
GRANT_S = 60.0

OnRoom = Callable[[int, int], None]
"""Called with the GPU and what is free there."""


class WaitingList:
    """In the order of arrival. Who came first is served first, unless there is room for a smaller request."""

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}
        self._on_room: dict[int, OnRoom] = {}
        self._grants: list[tuple[float, int, int, int]] = []
        self._number = 0

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        return tuple(self._waiters.values())

    def add(self, uid: int, nbytes: int, gpus: tuple[int, ...], on_room: OnRoom) -> Waiter:
        """Let somebody wait; :meth:`remove` it when the connection closes."""
        if not 0 < nbytes < 1 << 60:
            raise UsageError("the size is not possible", hint="for example 20GiB")
        if len(self._waiters) >= MOST_WAITERS or self._of(uid) >= MOST_OF_ONE_USER:
            raise NotPermitted("too many requests wait already", hint="end one of them first")
        self._number += 1
        waiter = Waiter(number=self._number, uid=uid, nbytes=nbytes, gpus=tuple(sorted(set(gpus))))
        self._waiters[waiter.number] = waiter
        self._on_room[waiter.number] = on_room
        return waiter

    def remove(self, number: int) -> None:
        self._waiters.pop(number, None)
        self._on_room.pop(number, None)
        self._grants = [grant for grant in self._grants if grant[3] != number]

    def serve(self, ledger: Ledger, boot: float) -> None:
        """Tell those for whom there is room now; *boot* is the time by the clock that never jumps."""
        self._grants = [grant for grant in self._grants if boot - grant[0] < GRANT_S]
        for waiter in self.waiters:
            if waiter.is_served:
                continue
            free = self._free(ledger, waiter)
            best = max(free, key=lambda gpu: (free[gpu], -gpu), default=None)
            if best is not None and free[best] >= waiter.nbytes:
                self._waiters[waiter.number] = replace(waiter, is_served=True)
                self._grants.append((boot, best, waiter.nbytes, waiter.number))
                self._on_room[waiter.number](best, free[best])

    def _free(self, ledger: Ledger, waiter: Waiter) -> dict[int, int]:
        return {
            gpu: nbytes - sum(grant[2] for grant in self._grants if grant[1] == gpu)
            for gpu, nbytes in available_bytes(ledger).items()
            if not waiter.gpus or gpu in waiter.gpus
        }

    def _of(self, uid: int) -> int:
        return sum(waiter.uid == uid for waiter in self._waiters.values())
