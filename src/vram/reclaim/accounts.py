"""Per process: what it uses itself, what it keeps of others, and who else must let go of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from vram.diagnosis.held import in_use, living_holders
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes


class Account(Struct, frozen=True, kw_only=True):
    """One living process on the chosen GPUs. ``own`` is charged to it, ``kept`` is not."""

    holder: Holder
    own: tuple[Entry, ...] = ()
    kept: tuple[Entry, ...] = ()
    gpus: tuple[int, ...] = ()
    idle: bool = False
    """Every GPU that it uses says that it does nothing, and it waits."""
    untold: tuple[int, ...] = ()
    """Those of ``gpus`` that do not tell who has what: it may have more than is known of."""
    own_by_gpu: dict[int, int] = {}

    @property
    def own_bytes(self) -> int:
        return known_bytes(self.own)

    @property
    def certain(self) -> bool:
        """Whether all that it is said to hold surely is its to hold."""
        return all(entry.confidence == "fact" for entry in (*self.own, *self.kept))

    @property
    def surely_named(self) -> bool:
        """Whether its pid names the process that is meant: a driver's list may speak of the host's pids.

        Who keeps memory of others was found by open files, which are looked at here.
        """
        return all(entry.confidence == "fact" for entry in self.own)


class _Draft:
    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.own: list[Entry] = []
        self.kept: list[Entry] = []
        self.gpus: dict[int, GpuLedger] = {}
        self.own_by_gpu: dict[int, int] = {}


def accounts(ledger: Ledger) -> dict[int, Account]:
    """Everybody alive who has something to do with the ledger's GPUs, by pid."""
    drafts: dict[int, _Draft] = {}
    for gpu in ledger.gpus:
        for holder, entry in _parts(gpu):
            draft = drafts.setdefault(holder.pid, _Draft(holder))
            draft.gpus[gpu.index] = gpu
            if entry is not None:
                mine = in_use(entry) and entry.holder is not None and entry.holder.pid == holder.pid
                (draft.own if mine else draft.kept).append(entry)
                if mine:
                    draft.own_by_gpu[gpu.index] = draft.own_by_gpu.get(gpu.index, 0) + (entry.nbytes or 0)
    return {pid: _account(draft) for pid, draft in drafts.items()}


def returns(ledger: Ledger, pids: Sequence[int], gpus: Sequence[int] = ()) -> tuple[int, ...]:
    """For each of *pids*, ended in that order, the bytes that come back on *gpus* (empty: all) then.

    Bytes that several hold come back with the last of them, and never where one is left out.
    """
    given = dict.fromkeys(pids, 0)
    for gpu in ledger.gpus:
        for entry in gpu.accounted if not gpus or gpu.index in gpus else ():
            everybody = {holder.pid for holder in living_holders(entry)}
            if everybody and everybody <= given.keys():
                given[max(everybody, key=pids.index)] += entry.nbytes or 0
    return tuple(given[pid] for pid in pids)


def is_silent(gpu: GpuLedger) -> bool:
    """The driver says nothing of this GPU's memory, neither of the whole nor of its parts."""
    return gpu.driver == "nvidia" and gpu.total_bytes is None and not gpu.instances


def tells_who(gpu: GpuLedger) -> bool:
    """Whether a process that is not named on the GPU surely has nothing there."""
    broken = gpu.driver == "nvidia" and gpu.status in ("failed", "timeout", "lost")
    return not (is_silent(gpu) or broken)


def _parts(gpu: GpuLedger) -> Iterable[tuple[Holder, Entry | None]]:
    for entry in gpu.accounted:
        for holder in living_holders(entry):
            yield holder, entry
    for each in gpu.open_only:
        if each.holder.alive:
            yield each.holder, None
    for entry in gpu.system.entries if gpu.system and gpu.total_bytes != 0 else ():
        for holder in living_holders(entry):
            yield holder, None


def _account(draft: _Draft) -> Account:
    resting = all(gpu.facts is not None and gpu.facts.utilization == 0 for gpu in draft.gpus.values())
    return Account(
        holder=draft.holder,
        own=tuple(draft.own),
        own_by_gpu=draft.own_by_gpu,
        kept=tuple(draft.kept),
        gpus=tuple(sorted(draft.gpus)),
        idle=resting and draft.holder.state == "S",
        untold=tuple(sorted(index for index, gpu in draft.gpus.items() if not tells_who(gpu))),
    )
