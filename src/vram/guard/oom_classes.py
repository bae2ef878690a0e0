"""The classes that frameworks raise when the GPU is out of memory or its context broke, watched from birth.

Only classes of loaded frameworks are touched; one that is imported later is met on its way in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import update_wrapper
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# module: its classes
CLASSES = {
    "torch": ("OutOfMemoryError", "AcceleratorError"),
    "torch.cuda": ("OutOfMemoryError",),
    "cupy.cuda.memory": ("OutOfMemoryError",),
    "cupy_backends.cuda.api.runtime": ("CUDARuntimeError",),
    "jaxlib.xla_extension": ("XlaRuntimeError",),
    "jaxlib._jax": ("JaxRuntimeError",),
    "numba.cuda.cudadrv.driver": ("CudaAPIError",),
    "cuda.core._utils.cuda_utils": ("CUDAError",),
    "pycuda._driver": ("MemoryError", "LaunchError", "LogicError"),
    "vram.errors": ("OutOfMemory",),
}


class Classes:
    """Every class of the table that is there or comes: *born* is called with each new instance."""

    def __init__(self, born: Callable[[BaseException], None]) -> None:
        self._born = born
        self._changed: dict[type, Any] = {}
        self._finder = _Awaiting(self._watch_classes)

    def attach(self) -> None:
        for name in CLASSES:
            self._watch_classes(name, sys.modules.get(name))
        sys.meta_path.insert(0, self._finder)

    def detach(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self._finder)
        for kind, original in self._changed.items():
            if original is None:
                del kind.__init__  # type: ignore[misc]
            else:
                kind.__init__ = original  # type: ignore[misc]
        self._changed.clear()

    def _watch_classes(self, name: str, module: ModuleType | None) -> None:
        """Under *name* may be anything: programs put None or a stand-in there to do without a framework."""
        for each in CLASSES[name]:
            self._watch_class(getattr(module, each, None))

    def _watch_class(self, kind: Any) -> None:
        if not isinstance(kind, type) or kind in self._changed:
            return
        original, born = kind.__init__, self._born  # type: ignore[misc]

        def announced(self: BaseException, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            born(self)

        # JAX's has no qualified name, which a Python function cannot go without.
        with suppress(TypeError, AttributeError):
            update_wrapper(announced, original)
        own = vars(kind).get("__init__")
        # A class that cannot be changed is recorded where it is uncaught, as all others are.
        with suppress(TypeError, AttributeError):
            kind.__init__ = announced  # type: ignore[misc]
            self._changed[kind] = own


class _Awaiting(MetaPathFinder):
    """Finds nothing itself: it looks at modules of the table once they have been run."""

    def __init__(self, arrived: Callable[[str, ModuleType], None]) -> None:
        self._arrived = arrived
        # While one thread asks the other finders, imports of its own kind must pass.
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in CLASSES or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            from importlib.util import find_spec

            spec = find_spec(fullname)
        finally:
            self._asking.now = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def run_and_look(module: ModuleType) -> None:
            run(module)
            # A loader may be one for many modules, as that of a zip file is.
            if module.__name__ == fullname:
                self._arrived(fullname, module)

        with suppress(AttributeError):
            loader.exec_module = run_and_look
            return spec
        return None
