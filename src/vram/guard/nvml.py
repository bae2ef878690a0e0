"""NVML inside this process: started by the first call that needs it, and which GPUs CUDA will number."""

from __future__ import annotations

import os

from vram.payloads.libnvml import Nvml

_started: Nvml | None = None


def nvml() -> Nvml | None:
    """The library, started by the first call of this process that needs it, and anew once it was gone."""
    global _started
    if _started is not None and _started.gone:
        _started.close()
        _started = None
    if _started is None or _started.pid != os.getpid():
        _started = Nvml.start()
    return _started


def visible_names(count: int) -> list[str]:
    """What NVML calls the GPUs that CUDA will number 0, 1, …, as far as the environment tells."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(count)]
    names: list[str] = []
    for word in chosen.split(","):
        name = word.strip()
        # CUDA stops at the first word that it cannot read, and so do we.
        if not (name.isdecimal() and int(name) < count) and not name.startswith(("GPU-", "MIG-")):
            break
        names.append(name)
    return names
