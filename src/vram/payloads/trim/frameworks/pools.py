"""Pools of the driver: those behind cuda.core's and RMM's resources, and its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, Framework, alive, loaded
from ..sticky_errors import sentence

if TYPE_CHECKING:
    from ..framework import Line


class CudaCore(Framework):
    """A device's default pool is the driver's, and is listed there."""

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


class Rmm(Framework):
    """The resource of every device that is awake, and what it is built on."""

    name = "RMM"

    def __init__(self, resources: Any) -> None:
        self._resources = resources

    @classmethod
    def find(cls) -> Iterator[Rmm]:
        resources = loaded("rmm.mr")
        if resources is not None:
            yield cls(resources)

    def _all(self) -> Iterator[tuple[int, Any]]:
        for device in driver.devices():
            resource = self._resources.get_per_device_resource(device)
            while resource is not None:
                yield device, resource
                resource = getattr(resource, "upstream_mr", None)

    def measure(self) -> Iterator[Line]:
        for device, resource in self._all():
            if hasattr(resource, "pool_handle"):
                counted = driver.pool_bytes(int(resource.pool_handle()))
                if counted is not None:
                    yield self.line(DEVICE, device, counted[0], counted[0] - counted[1])
            elif hasattr(resource, "pool_size"):
                yield self.line(DEVICE, device, resource.pool_size(), 0)

    def release(self) -> Iterator[str]:
        for device, resource in self._all():
            if hasattr(resource, "pool_handle"):
                driver.trim_pool(device, int(resource.pool_handle()))
            elif hasattr(resource, "pool_size"):
                yield "RMM's pool cannot shrink while it is in use; a CudaAsyncMemoryResource can"


class Pools(Framework):
    """On every device where this thread has a context to work in; none is made for it."""

    name = "driver pools"

    @classmethod
    def find(cls) -> Iterator[Pools]:
        if driver.devices():
            yield cls()

    def measure(self) -> Iterator[Line]:
        for device in driver.devices():
            counted = [pair for pool in driver.pools(device) if (pair := driver.pool_bytes(pool))]
            held = sum(reserved for reserved, _ in counted)
            yield self.line(DEVICE, device, held, held - sum(used for _, used in counted))
            graphs = driver.graph_bytes(device)
            if graphs is not None and graphs[0]:
                yield {**self.line(DEVICE, device, graphs[0], graphs[0] - graphs[1]), "name": "CUDA graphs"}

    def objections(self) -> Iterator[str]:
        """After a sticky error nothing can be freed, and some libraries abort when they are made to try."""
        for device, code in driver.broken().items():
            yield sentence(code, device)

    def release(self) -> Iterator[str]:
        for device in driver.devices():
            for pool in driver.pools(device):
                driver.trim_pool(device, pool)
            driver.trim_graphs(device)
        yield from ()
