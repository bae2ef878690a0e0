"""What one process holds: the entries of all GPUs, gathered by who must release them; and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from msgspec import Struct

from vram.ledger.processes import identity
from vram.model.ledger import Entry, GpuLedger, Holder, known_bytes
from vram.units import MIB


class HeldMemory(Struct, frozen=True):
    """Entries with the same holder and the same charged pid, on one GPU or several."""

    entries: tuple[Entry, ...]
    gpus: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """As far as sizes are known."""
        return known_bytes(self.entries)

    @property
    def holder(self) -> Holder | None:
        return self.entries[0].holder

    @property
    def charged_pid(self) -> int | None:
        return self.entries[0].charged_pid

    @property
    def living(self) -> tuple[Holder, ...]:
        """Everyone alive who holds these bytes; with ``sharing`` "one", who may hold them."""
        named = chain.from_iterable(entry.holders for entry in self.entries)
        living = {identity(holder): holder for holder in named if holder.alive}
        return tuple(living.values())

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(entry.evidence for entry in self.entries))

    @property
    def one_of(self) -> bool:
        """True where only one of the holders has some of these bytes, unknown which."""
        return any(entry.sharing == "one" for entry in self.entries)

    @property
    def certain(self) -> bool:
        """True where every entry is a fact, so the pid surely names who it seems to name."""
        return all(entry.confidence == "fact" for entry in self.entries)


def gather(
    gpus: Iterable[GpuLedger], wanted: Callable[[Entry], bool], *, any_size: bool = False
) -> tuple[HeldMemory, ...]:
    """Gather the *wanted* entries by holder, the largest first; *any_size*: empty and unknown ones too."""
    found: dict[object, list[tuple[int, Entry]]] = {}
    for gpu in gpus:
        for entry in gpu.accounted:
            if (entry.nbytes or any_size) and wanted(entry):
                found.setdefault((identity(entry.holder), entry.charged_pid), []).append((gpu.index, entry))
    held = (_held(placed) for placed in found.values())
    return tuple(sorted(held, key=lambda each: -each.nbytes))


def _held(placed: list[tuple[int, Entry]]) -> HeldMemory:
    return HeldMemory(
        entries=tuple(entry for _, entry in placed),
        gpus=tuple(dict.fromkeys(index for index, _ in placed)),
    )


# ---- which state a process is in, as far as that matters for its memory ----


def is_stopped(holder: Holder) -> bool:
    """Stopped by a signal (T) or by a debugger (t): it runs nothing and keeps everything."""
    return holder.alive and holder.state in ("T", "t")


def is_stuck(holder: Holder) -> bool:
    """Waiting inside the kernel (D) or already exiting: no signal changes anything now."""
    return holder.alive and (holder.state == "D" or holder.exiting)


def is_healthy(holder: Holder) -> bool:
    """Alive, running from a file that still exists, and able to answer a signal."""
    return holder.alive and not holder.executable_deleted and not is_stopped(holder) and not is_stuck(holder)


# ---- what a context alone costs: memory that no trim returns ----

# A bare context is 518 MiB on an H200, with a first PyTorch tensor 612; desktop programs that
# merely draw stay far below.
MIN_CONTEXT = 100 * MIB
MAX_CONTEXT = 640 * MIB

ONLY_THE_CONTEXT = "little more than the CUDA context, freed only when the process exits or is parked"


def is_bare(nbytes: int | None) -> bool:
    """Whether a process that is charged so much can hold hardly more than its context."""
    return nbytes is not None and MIN_CONTEXT <= nbytes <= MAX_CONTEXT


def is_bare_context(entries: tuple[Entry, ...]) -> bool:
    """Whether these are one process's bytes on one NVIDIA GPU, and no more than about its context."""
    return len(entries) == 1 and entries[0].kind in ("process", "context") and is_bare(entries[0].nbytes)
