"""One MIG instance of a ledger: as a GPU of its own, and as the name of what an entry lies on.

Apart from ``mig.py``, which makes ledgers: who is sent one, as the service is, imports nothing of that.
"""

from __future__ import annotations

from msgspec.structs import replace

from vram.model.ledger import Entry, GpuLedger


def alone(gpu: GpuLedger, number: int, index: int | None = None) -> GpuLedger:
    """The ledger of one instance of *gpu*: its entries, which sum to its own total.

    Where several MIG devices share it, it bears the name of device *index*, else of the first.
    """
    found = next(each for each in gpu.instances if each.gpu_instance == number)
    device = next((each for each in found.devices if each.index == index), found.devices[0])
    return replace(
        gpu,
        uuid=device.uuid,
        name=device.name,
        total_bytes=found.total_bytes,
        entries=tuple(entry for entry in gpu.entries if entry.gpu_instance == number),
        status="ok" if found.total_bytes is not None else "unsupported",
        message=found.message,
        notes=found.notes,
        memory=found.memory,
        instances=(found,),
        mig=f"{gpu.index}:{device.index}",
    )


def mig_device(gpu: GpuLedger, entry: Entry) -> str | None:
    """Return the MIG device that an entry's bytes are on, as --gpu takes it.

    None on a whole GPU, and in an instance that has no device yet.
    """
    for instance in gpu.instances:
        if instance.gpu_instance == entry.gpu_instance and instance.devices:
            own = [each for each in instance.devices if each.compute_instance == entry.compute_instance]
            return f"{gpu.index}:{(own or instance.devices)[0].index}"
    return None
