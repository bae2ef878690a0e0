"""cuda.core: pools that the program made for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, Framework, alive, loaded

if TYPE_CHECKING:
    from ..framework import Line


class CudaCore(Framework):
    """A device's default pool is the driver's, and is told there."""

    name = "cuda.core"

    def __init__(self, resources: list[Any]) -> None:
        self._resources = {int(each.handle): each for each in resources if int(each.handle)}

    @classmethod
    def find(cls) -> Iterator[CudaCore]:
        core = loaded("cuda.core") or loaded("cuda.core.experimental")
        kind = getattr(core, "DeviceMemoryResource", None)
        if kind is not None:
            yield cls(alive((kind,)))

    def _own(self) -> Iterator[tuple[int, int]]:
        known = {pool for device in driver.devices() for pool in driver.pools(device)}
        for handle, resource in self._resources.items():
            if handle not in known:
                yield int(resource.device_id), handle

    def measure(self) -> Iterator[Line]:
        for device, handle in self._own():
            counted = driver.pool_bytes(handle)
            if counted is not None:
                yield self.line(DEVICE, device, counted[0], counted[0] - counted[1])

    def release(self) -> Iterator[str]:
        for device, handle in self._own():
            driver.trim_pool(device, handle)
        yield from ()
