"""What of a ledger is worth remembering: everything that somebody holds, and each GPU's memory by kind.

A *thing* is what two readings can both contain (an Item of ``vram watch``), with a key that can be built
again from the file, so that a service that starts again goes on where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from vram.diagnosis.held import is_stopped
from vram.diagnosis.verdict import judge
from vram.diagnosis.watched import Item, Key, items_of
from vram.history.schema import EXPORTED, GHOST, HIDDEN, PROCESS, SAMPLED, TOGETHER, UNATTRIBUTED
from vram.ledger.mig import alone
from vram.ledger.processes import identity, processes
from vram.model.hold import Identity
from vram.model.kinds import Kind
from vram.model.ledger import GpuLedger, Holder, Ledger, known_bytes

MAX_CHARACTERS = 1000  # of a command


class Thing(NamedTuple):
    """Something that somebody holds on the GPU of the name ``gpu``."""

    key: tuple[object, ...]
    topic: int
    gpu: Key
    kind: Kind
    nbytes: int | None
    holder: Holder | None
    members: frozenset[Identity | None]
    dead_pid: int | None
    code: str | None
    others: tuple[Identity, ...]
    idle: bool

    def is_same(self, members: frozenset[Identity | None]) -> bool:
        return not self.members or not members or not self.members.isdisjoint(members)


def thing_key(
    topic: int, gpu: object, kind: str, who: Identity | None, dead_pid: int | None, code: str | None
) -> tuple[object, ...]:
    """What a thing is told from others by; two that are shared by several need a common member besides."""
    if topic == PROCESS:
        return topic, gpu, who
    if topic == GHOST:
        return topic, gpu, dead_pid
    return topic, gpu, code if topic == EXPORTED else kind


def divided(ledger: Ledger) -> Ledger:
    """*ledger* with the MIG instances of each GPU after it, as GPUs of their own."""
    if not any(gpu.instances for gpu in ledger.gpus):
        return ledger
    gpus = (part for gpu in ledger.gpus for part in (gpu, *_instances(gpu)))
    return replace(ledger, gpus=tuple(gpus))


def _instances(gpu: GpuLedger) -> Iterator[GpuLedger]:
    for instance in gpu.instances:
        if instance.devices and gpu.mig is None:
            yield alone(gpu, instance.gpu_instance)


def things(ledger: Ledger, keys: dict[int, Key], idle: set[int]) -> Iterator[Thing]:
    """Everything that is held on the GPUs of a divided *ledger*; *keys* are their names by place."""
    # A divided GPU's instances have everything that processes hold.
    whole = {at: keys[at] for at, gpu in enumerate(ledger.gpus) if not gpu.instances or gpu.mig is not None}
    for item in items_of(ledger, whole):
        topic = _topic(item)
        kind: Kind = item.kind or "process"
        (gpu,) = item.gpus
        is_idle = topic == PROCESS and item.holder is not None and item.holder.pid in idle
        yield Thing(
            key=thing_key(topic, gpu, kind, identity(item.holder), item.dead_pid, item.code),
            topic=topic,
            gpu=gpu,
            kind=kind,
            nbytes=item.nbytes,
            holder=item.holder,
            members=item.members,
            dead_pid=item.dead_pid,
            code=item.code,
            others=_others(item),
            idle=is_idle,
        )


def _topic(item: Item) -> int:
    if item.topic == "ghost":
        return EXPORTED if item.kind == "exported" else GHOST
    if item.topic == "process":
        return TOGETHER if item.members else PROCESS
    return UNATTRIBUTED if item.topic == "unattributed" else HIDDEN


def _others(item: Item) -> tuple[Identity, ...]:
    """Who holds it besides its holder."""
    if not item.members:
        return tuple((pid, None) for pid in item.co_holders)
    return tuple(sorted((each for each in item.members if each and each != identity(item.holder)), key=str))


def idle_pids(ledger: Ledger) -> set[int]:
    """Processes that do nothing with their memory: asleep while their GPUs rest, or stopped."""
    found = processes(ledger)
    return {pid for pid, memory in found.items() if memory.idle or is_stopped(memory.holder)}


Sample = tuple[int | None, ...]
"""Total, what is not free, leftovers, then each kind of SAMPLED; all None where nothing is known."""
UNKNOWN_SAMPLE: Sample = (None,) * (3 + len(SAMPLED))


def samples(ledger: Ledger, keys: dict[int, Key]) -> dict[Key, Sample]:
    """The memory of each GPU of *ledger* by kind."""
    leftovers = judge(ledger, leftovers=True)
    return {
        keys[place]: _sample(gpu, known_bytes(leftovers[place].entries))
        for place, gpu in enumerate(ledger.gpus)
    }


def _sample(gpu: GpuLedger, leftover: int) -> Sample:
    total = gpu.system.total_bytes if gpu.total_bytes == 0 and gpu.system else gpu.total_bytes
    if total is None:
        return UNKNOWN_SAMPLE
    sums = dict.fromkeys(SAMPLED, 0)
    for entry in gpu.accounted:
        if entry.kind != "free" and entry.nbytes:
            sums[entry.kind] += entry.nbytes
    return (total, sum(sums.values()), leftover, *(sums[kind] or None for kind in SAMPLED))


def plain(text: str | None) -> str | None:
    """*text* of others as the file can hold it: cut, without zero bytes and halves of characters."""
    if text is None:
        return None
    short = text[:MAX_CHARACTERS]
    return short.replace("\0", " ") if short.isprintable() else _encodable(short)


def _encodable(text: str) -> str:
    return text.replace("\0", " ").encode("utf-8", "backslashreplace").decode()
