"""PyTorch, JAX and TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, PINNED, Framework, alive, loaded, may_have_instances

if TYPE_CHECKING:
    from ..framework import Line


class PyTorch(Framework):
    """Left alone while a CUDA graph is captured: freeing then would break the capture."""

    name = "PyTorch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    @classmethod
    def find(cls) -> Iterator[PyTorch]:
        torch, cuda = loaded("torch"), loaded("torch.cuda")
        if torch is not None and cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork():
            yield cls(torch)

    def measure(self) -> Iterator[Line]:
        cuda = self._torch.cuda
        # With another backend the bytes lie in the driver's pool, which is listed on its own.
        native = getattr(cuda, "get_allocator_backend", lambda: "native")() == "native"
        for device in driver.devices():
            stats = cuda.memory_stats(device)
            held = stats.get("reserved_bytes.all.current", 0)
            used = stats.get("active_bytes.all.current", 0)
            splinters = stats.get("inactive_split_bytes.all.current", 0)
            yield self.line(DEVICE, device, held, max(0, held - used - splinters) if native else None, used)
        yield from self._pinned()

    def _pinned(self) -> Iterator[Line]:
        stats: dict[str, int] = getattr(self._torch.cuda, "host_memory_stats", dict)()
        owned, active = stats.get("allocated_bytes.current"), stats.get("active_bytes.current")
        # Older versions call "allocated" what is in use, and "reserved" what is owned.
        held, used = (stats.get("reserved_bytes.current"), owned) if active is None else (owned, active)
        if held:
            yield self.line(PINNED, None, held, None if used is None else max(0, held - used))

    def objections(self) -> Iterator[str]:
        if self._torch.cuda.is_current_stream_capturing() or any(
            map(driver.is_capturing, _capture_streams())
        ):
            yield "a CUDA graph is being captured: nothing was released"

    def release(self) -> Iterator[str]:
        native = self._torch._C
        if hasattr(native, "_cuda_clearCublasWorkspaces"):
            native._cuda_clearCublasWorkspaces()
        self._torch.cuda.ipc_collect()
        self._torch.cuda.empty_cache()
        accelerator: Any = getattr(self._torch, "accelerator", None)
        if hasattr(accelerator, "empty_host_cache"):
            accelerator.empty_host_cache()
        elif hasattr(native, "_host_emptyCache"):
            native._host_emptyCache()
        yield from ()


def _capture_streams() -> set[int]:
    """The streams on which torch.cuda.graph() captures, in any thread.

    A stream can be asked about from any thread, but only this thread's own is known to PyTorch.
    """
    graphs = loaded("torch.cuda.graphs")
    if graphs is None or not may_have_instances(graphs, "graph"):
        return set()
    streams = (getattr(each, "capture_stream", None) for each in alive((graphs.graph,)))
    return {each.cuda_stream for each in streams if each is not None}


_NO_GPU = ("cpu", "interpreter")


class Jax(Framework):
    """Only backends that exist already: asking JAX for its devices would make them."""

    name = "JAX"

    def __init__(self, jax: Any, devices: list[Any]) -> None:
        self._jax, self._devices = jax, devices

    @classmethod
    def find(cls) -> Iterator[Jax]:
        jax, bridge = loaded("jax"), loaded("jax._src.xla_bridge")
        backends = dict(getattr(bridge, "_backends", None) or {})
        made = (backend for name, backend in backends.items() if name not in _NO_GPU)
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
            "JAX dropped its compiled functions and compiles them again when they are called; its pool "
            "cannot shrink. XLA_PYTHON_CLIENT_PREALLOCATE=false, XLA_PYTHON_CLIENT_MEM_FRACTION or "
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform make it start smaller"
        )


class TensorFlow(Framework):
    """Only where its runtime is started: listing its devices would start it."""

    name = "TensorFlow"

    def __init__(self, config: Any) -> None:
        self._config = config

    @classmethod
    def find(cls) -> Iterator[TensorFlow]:
        tensorflow, eager = loaded("tensorflow"), loaded("tensorflow.python.eager.context")
        if tensorflow is not None and getattr(getattr(eager, "_context", None), "_initialized", False):
            yield cls(tensorflow.config)

    def measure(self) -> Iterator[Line]:
        for number, _ in enumerate(self._config.list_logical_devices("GPU")):
            used = self._config.experimental.get_memory_info(f"GPU:{number}")["current"]
            yield self.line(DEVICE, number, used, 0)

    def release(self) -> Iterator[str]:
        yield "TensorFlow keeps its pool until it ends; TF_FORCE_GPU_ALLOW_GROWTH=true starts smaller"
