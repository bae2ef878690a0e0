"""RMM: only its asynchronous resources can shrink, and those are driver pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, Framework, loaded

if TYPE_CHECKING:
    from ..framework import Line


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
