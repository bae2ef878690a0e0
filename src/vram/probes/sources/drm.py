"""GPUs of AMD and Intel: what sysfs says of each, and ROCm's list of processes.

Who uses them is known by their open files, which are read with all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import Card, Host
from vram.model.files import CapacityFacts, ComputeFacts, SystemMemoryFacts
from vram.model.gpu import MemoryFacts
from vram.model.observation import Observation, Status
from vram.model.process import ProcessRef

NAME = "drm"


def observe(host: Host, observed: Iterable[Observation]) -> Iterator[Observation]:
    """Number the GPUs after NVIDIA's, which keep the numbers that CUDA and nvidia-smi give them.

    Where NVIDIA's driver does not answer, its GPUs still keep their numbers free: sysfs counts them.
    """
    cards = host.drm.cards()
    if not cards:
        return
    first = max((each.gpu + 1 for each in observed if each.gpu is not None), default=0)
    for index, card in enumerate(cards, first or host.drm.nvidia_gpus()):
        yield from _card(card, index)
    for charge in host.drm.compute():
        yield Observation(
            probe="drm.compute",
            status=charge.status,
            process=ProcessRef(charge.pid, host.proc.started_at(charge.pid)),
            nbytes=charge.nbytes,
            facts=ComputeFacts(charge.address, charge.system),
            message=charge.message,
            code=charge.code,
        )


def _card(card: Card, gpu: int) -> Iterator[Observation]:
    yield Observation(probe="drm.gpu", gpu=gpu, facts=card.facts)
    if card.total is None:
        yield Observation(
            probe="drm.memory", gpu=gpu, status=card.status, message=card.message, code=card.code
        )
    elif card.used is None and card.total:
        status: Status = card.status if card.status != "unsupported" else "ok"
        yield Observation(
            probe="drm.memory",
            gpu=gpu,
            status=status,
            facts=CapacityFacts(card.total),
            message=card.message,
            code=card.code if status != "ok" else None,
        )
    else:
        used = card.used or 0
        facts = MemoryFacts(total=card.total, free=max(0, card.total - used), used=used)
        yield Observation(probe="drm.memory", gpu=gpu, facts=facts)
    if card.system_total is not None or card.system_used is not None:
        system = SystemMemoryFacts(card.system_total, card.system_used)
        yield Observation(probe="drm.system", gpu=gpu, facts=system)
