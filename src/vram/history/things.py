"""What of a ledger is worth remembering: everything that is held, and each GPU's memory by kind.

A *thing* is an Item of ``vram watch`` with a key that can be built again from the file: a service that starts
again goes on where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from vram.diagnosis.tracker import Item, Key, items_of
from vram.diagnosis.verdict import judge
from vram.history.schema import EXPORTED, GHOST, HIDDEN, PROCESS, SAMPLED, TOGETHER, UNATTRIBUTED
from vram.ledger.holds import find_holds
from vram.ledger.instances import alone
from vram.ledger.processes import identity
from vram.model.hold import Hold, Identity
from vram.model.ledger import GpuLedger, Ledger, known_bytes

MAX_CHARACTERS = 1000  # of a command


def divide(ledger: Ledger) -> Ledger:
    """*ledger* with the MIG instances of each GPU after it, as GPUs of their own."""
    if not any(gpu.instances for gpu in ledger.gpus):
        return ledger
    gpus: list[GpuLedger] = []
    for gpu in ledger.gpus:
        parts = gpu.instances if gpu.mig is None else ()
        gpus += (gpu, *(alone(gpu, each.gpu_instance) for each in parts if each.devices))
    return replace(ledger, gpus=tuple(gpus))


def things(ledger: Ledger, keys: dict[int, Key]) -> Iterator[Item]:
    """Everything that is held on the GPUs of a divide *ledger*; *keys* are their names by place."""
    # A divide GPU's instances have everything that processes hold.
    whole = {at: keys[at] for at, gpu in enumerate(ledger.gpus) if not gpu.instances or gpu.mig is not None}
    for item in items_of(ledger, whole):
        (gpu,) = item.gpus
        kind = item.kind or "process"
        item.key = thing_key(topic_of(item), gpu, kind, identity(item.holder), item.dead_pid, item.code)
        yield item


def thing_key(
    topic: int, gpu: object, kind: str, who: Identity | None, dead_pid: int | None, code: str | None
) -> Key:
    """What tells a thing from others; two that are shared by several need a common member besides."""
    if topic == PROCESS:
        return topic, gpu, who
    if topic == GHOST:
        return topic, gpu, dead_pid
    return topic, gpu, code if topic == EXPORTED else kind


def topic_of(item: Item) -> int:
    if item.topic == "ghost":
        return EXPORTED if item.kind == "exported" else GHOST
    if item.topic == "process":
        return TOGETHER if item.members else PROCESS
    return UNATTRIBUTED if item.topic == "unattributed" else HIDDEN


def idle_pids(ledger: Ledger) -> set[int]:
    """Processes that do nothing with their memory: asleep while their GPUs rest, or stopped."""
    at_work = {gpu.index for gpu in ledger.gpus if gpu.facts is None or gpu.facts.utilization != 0}
    return {
        hold.holders[0].pid
        for hold in find_holds(ledger)
        if hold.what == "process" and (hold.state in ("idle", "stopped") or _is_idle_orphan(hold, at_work))
    }


def _is_idle_orphan(hold: Hold, at_work: set[int]) -> bool:
    is_resting = hold.holders[0].state == "S" and at_work.isdisjoint(hold.gpus)
    return hold.state == "orphan" and is_resting


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
    sums = gpu.bytes_by_kind()
    used = sum(nbytes for kind, nbytes in sums.items() if kind != "free")
    return (total, used, leftover, *(sums.get(kind) or None for kind in SAMPLED))


def plain(text: str | None) -> str | None:
    """*text* of others as the file can hold it: cut, without zero bytes and halves of characters."""
    if text is None:
        return None
    short = text[:MAX_CHARACTERS].replace("\0", " ")
    return short if short.isprintable() else short.encode("utf-8", "backslashreplace").decode()
