"""Every library that is known to hold GPU memory that it does not use, and how it releases that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .driver import driver, sentence
from .framework import DEVICE, PINNED, Framework, alive, loaded, may_have_instances
from .threads import do_while_others_sleep

if TYPE_CHECKING:
    from .framework import Line

# ---- PyTorch, JAX and TensorFlow ----


class PyTorch(Framework):
    """Left alone while a CUDA graph is captured: freeing then would break the capture."""

    name = "PyTorch"

    @classmethod
    def find(cls) -> Iterator[PyTorch]:
        torch, cuda = loaded("torch"), loaded("torch.cuda")
        if torch is not None and cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork():
            yield cls(torch)

    def measure(self) -> Iterator[Line]:
        cuda = self._library.cuda
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
        stats: dict[str, int] = getattr(self._library.cuda, "host_memory_stats", dict)()
        owned, active = stats.get("allocated_bytes.current"), stats.get("active_bytes.current")
        # Older versions call "allocated" what is in use, and "reserved" what is owned.
        held, used = (stats.get("reserved_bytes.current"), owned) if active is None else (owned, active)
        if held:
            yield self.line(PINNED, None, held, None if used is None else max(0, held - used))

    def objections(self) -> Iterator[str]:
        own_stream = self._library.cuda.is_current_stream_capturing()
        if own_stream or any(map(driver.is_capturing, _capture_streams())):
            yield "a CUDA graph is being captured: nothing was released"

    def release(self) -> Iterator[str]:
        torch = self._library
        native = torch._C
        yield from self._clear_workspaces(native)
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        accelerator: Any = getattr(torch, "accelerator", None)
        if hasattr(accelerator, "empty_host_cache"):
            accelerator.empty_host_cache()
        elif hasattr(native, "_host_emptyCache"):
            native._host_emptyCache()

    def _clear_workspaces(self, native: Any) -> Iterator[str]:
        """cuBLAS's workspaces, unless the GPU may still write to them.

        PyTorch frees them without asking: a thread that has just handed one to cuBLAS, and is about to launch
        a product, would have it write to memory that is no longer its own; so would each replay of a CUDA
        graph that was captured with one. While PyTorch's history is on, a thread that makes one waits for the
        interpreter, and holds the lock that clearing waits for.
        """
        clear = getattr(native, "_cuda_clearCublasWorkspaces", None)
        if clear is None or getattr(native, "_cuda_isHistoryEnabled", bool)():
            return
        graphs = loaded("torch.cuda.graphs")
        if graphs is not None and may_have_instances(graphs, "CUDAGraph") and alive((graphs.CUDAGraph,)):
            yield "cuBLAS's workspaces were kept: CUDA graphs may have been captured with them"
        elif not do_while_others_sleep(clear):
            yield "cuBLAS's workspaces were kept: other threads of the program were at work"


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
        super().__init__(jax)
        self._devices = devices

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
        self._library.clear_caches()
        yield (
            "JAX dropped its compiled functions and compiles them again when they are called; its pool "
            "cannot shrink. XLA_PYTHON_CLIENT_PREALLOCATE=false, XLA_PYTHON_CLIENT_MEM_FRACTION or "
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform make it start smaller"
        )


class TensorFlow(Framework):
    """Only where its runtime is started: listing its devices would start it."""

    name = "TensorFlow"

    @classmethod
    def find(cls) -> Iterator[TensorFlow]:
        tensorflow, eager = loaded("tensorflow"), loaded("tensorflow.python.eager.context")
        if tensorflow is not None and getattr(getattr(eager, "_context", None), "_initialized", False):
            yield cls(tensorflow)

    def measure(self) -> Iterator[Line]:
        config = self._library.config
        for number, _ in enumerate(config.list_logical_devices("GPU")):
            used = config.experimental.get_memory_info(f"GPU:{number}")["current"]
            yield self.line(DEVICE, number, used, 0)

    def release(self) -> Iterator[str]:
        yield "TensorFlow keeps its pool until it ends; TF_FORCE_GPU_ALLOW_GROWTH=true starts smaller"


# ---- CuPy, Numba and PyCUDA ----


def each_device(cupy: Any) -> Iterator[int]:
    """Every device that CuPy can work on, each the current one while it is yielded.

    Its Device sets the primary context when it is left. In a context of the program's own that would
    take the thread out of it, and make a primary one: there only that context's device is yielded.
    """
    if driver.is_in_own_context():
        yield from (each for each in [driver.current()] if each is not None)
        return
    for device in driver.primaries():
        with cupy.cuda.Device(device):
            yield device


class CuPy(Framework):
    """Its default pool, and one that the program put in its place."""

    name = "CuPy"
    module = "cupy"

    def __init__(self, cupy: Any) -> None:
        super().__init__(cupy)
        default = cupy.get_default_memory_pool()
        current = getattr(cupy.cuda.get_allocator(), "__self__", None)
        replaced = current is not default
        others = [current] if replaced and hasattr(current, "free_all_blocks") else []
        self._pools = [default, *others]
        self._is_foreign = replaced and not others

    def measure(self) -> Iterator[Line]:
        counted = [pool for pool in self._pools if hasattr(pool, "free_bytes")]
        for device in each_device(self._library):
            held = sum(pool.total_bytes() for pool in counted)
            yield self.line(DEVICE, device, held, sum(pool.free_bytes() for pool in counted))

    def release(self) -> Iterator[str]:
        plans = loaded("cupy.fft._cache")
        for _ in each_device(self._library):
            if plans is not None:
                plans.clear_plan_cache()
            for pool in self._pools:
                pool.free_all_blocks()
        self._library.get_default_pinned_memory_pool().free_all_blocks()
        if self._is_foreign:
            yield "CuPy allocates through a function of the program's own, which cannot be emptied"


class Numba(Framework):
    """Only contexts that it has made already: its list of GPUs would wake the driver."""

    name = "Numba"

    def __init__(self, contexts: dict[int, Any]) -> None:
        self._contexts = contexts

    @classmethod
    def find(cls) -> Iterator[Numba]:
        known = getattr(getattr(loaded("numba.cuda.cudadrv.driver"), "driver", None), "devices", None) or {}
        contexts = {int(number): getattr(device, "primary_context", None) for number, device in known.items()}
        made = {number: context for number, context in contexts.items() if context is not None}
        if made:
            yield cls(made)

    def _pending(self) -> Iterator[tuple[int, Any]]:
        """Memory waits with the memory manager; modules, streams and events wait with the context."""
        for number, context in self._contexts.items():
            for owner in (getattr(context, "memory_manager", None), context):
                pending = getattr(owner, "deallocations", None)
                if pending is not None:
                    yield number, pending

    def measure(self) -> Iterator[Line]:
        for number, pending in self._pending():
            size = getattr(pending, "_size", None)
            yield self.line(DEVICE, number, size, size)

    def release(self) -> Iterator[str]:
        for number, pending in self._pending():
            with driver.inside(number) as entered:
                if entered:
                    pending.clear()
        yield from ()


_POOL_TYPES = ("DeviceMemoryPool", "PageLockedMemoryPool")
_OTHER_THREAD = (
    "PyCUDA can free memory only in the thread of its context: its pools were not released, and no"
    " garbage was collected. Call vram.flush() in that thread"
)


class PyCuda(Framework):
    """Pools are found among the live objects.

    Asked to free in another thread than its context's, PyCUDA warns, frees nothing and forgets what it was
    to free, so that the memory is lost until the process ends (seen with 2026.1). That holds for pools and
    for arrays whose last reference goes.
    """

    name = "PyCUDA"
    module = "pycuda._driver"

    def __init__(self, module: Any) -> None:
        found = alive(
            (module.Context, *(getattr(module, kind) for kind in _POOL_TYPES if hasattr(module, kind)))
        )
        self._pools = [each for each in found if not isinstance(each, module.Context)]
        self._is_other_thread = _is_other_thread(module.Context, found)

    def may_collect(self) -> bool:
        return not self._is_other_thread

    def measure(self) -> Iterator[Line]:
        for pool in self._pools:
            held, used = getattr(pool, "managed_bytes", None), getattr(pool, "active_bytes", None)
            memory = PINNED if "PageLocked" in type(pool).__name__ else DEVICE
            yield self.line(memory, None, held, None if held is None or used is None else held - used)

    def release(self) -> Iterator[str]:
        if self._is_other_thread:
            yield _OTHER_THREAD
            return
        for pool in self._pools:
            pool.free_held()
        tools = loaded("pycuda.tools")
        if tools is not None:
            tools.clear_context_caches()
        yield from ()


def _is_other_thread(kind: Any, found: list[Any]) -> bool:
    """Whether some of *found* may belong to a context that this thread is not in."""
    current = kind.get_current()
    if current is None:
        return bool(found)
    return any(each.handle != current.handle for each in found if isinstance(each, kind))


# ---- pools of the driver: those behind cuda.core's and RMM's resources, and its own ----


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
    module = "rmm.mr"

    def _all(self) -> Iterator[tuple[int, Any]]:
        for device in driver.devices():
            resource = self._library.get_per_device_resource(device)
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


# Driver pools come last: what frameworks release may have gone into them.
FRAMEWORKS = (PyTorch, CuPy, Jax, TensorFlow, Numba, PyCuda, CudaCore, Rmm, Pools)
