"""MIG devices through NVML: which there are, and whose processes run on which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vram.host.local.nvml_values import Figures, text


class MigDevice:
    """A device's handle, and the fields of its facts."""

    __slots__ = ("handle", "names")

    def __init__(self, handle: Any, names: dict[str, Any]) -> None:
        self.handle = handle
        self.names = names


def find(ask: Callable[..., Any], gpu: Any) -> list[MigDevice] | None:
    """Every MIG device of *gpu*; numbers may have holes. None where the GPU does not tell."""
    most = ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if most is None:
        return None
    handles = {at: ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, at) for at in range(most)}
    found = (_device(ask, handle, at) for at, handle in handles.items() if handle is not None)
    return [device for device in found if device is not None]


def _device(ask: Callable[..., Any], handle: Any, index: int) -> MigDevice | None:
    uuid, name = ask("nvmlDeviceGetUUID", handle), ask("nvmlDeviceGetName", handle)
    instance = ask("nvmlDeviceGetGpuInstanceId", handle)
    compute = ask("nvmlDeviceGetComputeInstanceId", handle)
    if uuid is None or instance is None or compute is None:  # it was destroyed while we asked
        return None
    names = {"uuid": text(uuid), "name": text(name or "unknown MIG device")}
    return MigDevice(
        handle, {"index": index, **names, "gpu_instance": int(instance), "compute_instance": int(compute)}
    )


def placed(whole: Figures, parts: Iterable[tuple[MigDevice, Figures]]) -> Figures:
    """What the devices list, and what only the whole GPU does; nobody twice.

    A device's own list need not repeat which instance it is. The whole GPU's list, which only
    the privileged get, says it for each process; where it does not, whoever a device lists is
    known already.
    """
    figures: Figures = {}
    for device, listed in parts:
        for (pid, instance, compute), figure in listed.items():
            key = (
                pid,
                device.names["gpu_instance"] if instance is None else instance,
                device.names["compute_instance"] if compute is None else compute,
            )
            figures[key] = figure
    known = {pid for pid, _, _ in figures}
    for key, figure in whole.items():
        if key not in figures and (key[1] is not None or key[0] not in known):
            figures[key] = figure
    return figures
