"""JAX: compiled programs go; its pool never shrinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..framework import DEVICE, Framework, loaded

if TYPE_CHECKING:
    from ..framework import Line

NO_GPU = ("cpu", "interpreter")


class Jax(Framework):
    """Only backends that exist already: asking JAX for its devices would make them."""

    name = "JAX"

    def __init__(self, jax: Any, devices: list[Any]) -> None:
        self._jax, self._devices = jax, devices

    @classmethod
    def find(cls) -> Iterator[Jax]:
        jax, bridge = loaded("jax"), loaded("jax._src.xla_bridge")
        backends = dict(getattr(bridge, "_backends", None) or {})
        made = (backend for name, backend in backends.items() if name not in NO_GPU)
        devices = [device for backend in made for device in backend.local_devices()]
        if jax is not None and devices:
            yield cls(jax, devices)

    def measure(self) -> Iterator[Line]:
        for device in self._devices:
            stats = device.memory_stats() or {}
            held = stats.get("pool_bytes") or stats.get("bytes_reserved") or stats.get("bytes_in_use")
            number = getattr(device, "local_hardware_id", device.id)
            yield self.line(DEVICE, number, held, 0, stats.get("bytes_in_use"))

    def release(self) -> Iterator[str]:
        self._jax.clear_caches()
        yield (
            "JAX forgot its compiled functions and compiles them again when they are called; its pool "
            "cannot shrink. XLA_PYTHON_CLIENT_PREALLOCATE=false, XLA_PYTHON_CLIENT_MEM_FRACTION or "
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform make it start smaller"
        )
