"""Lends a buffer's memory to another library through DLPack, and hears when it comes back.

A lease keeps the buffer alive and is itself kept by the structure that the consumer holds. The
two C functions behind it (native/buffer) let go of the lease, whatever the consumer's thread is
doing at that moment.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.errors import VramError
from vram.guard import dlpack
from vram.guard.owning import LIBRARY

if TYPE_CHECKING:
    from vram.guard.holding import Holding
    from vram.guard.layout import Layout

# In the order of the table in native/buffer/lend.c.
_TABLE = (
    "Py_IsInitialized",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "Py_DecRef",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyCapsule_IsValid",
    "PyCapsule_GetPointer",
)


class _Native(NamedTuple):
    """Addresses: what a consumer calls when done, and what an unused capsule calls."""

    returned: int
    unused: int


class Lease:
    """One consumer's hold on a buffer, from the export to the consumer's last use."""

    def __init__(self, owner: object, memory: Holding) -> None:
        self.owner = owner
        self.parts: list[Any] = []
        self._leases = memory.leases = set() if memory.leases is None else memory.leases
        self._leases.add(id(self))

    def __del__(self) -> None:
        self._leases.discard(id(self))


def lend(
    owner: object,
    memory: Holding,
    pointer: int,
    device: tuple[int, int],
    layout: Layout,
    *,
    versioned: bool,
) -> object:
    """A capsule of the memory at *pointer*. Called with the memory's lock held."""
    dlpack.check_can_say(layout)
    native = _natives()[versioned]
    lease = Lease(owner, memory)
    structure: Any = dlpack.ManagedVersioned() if versioned else dlpack.Managed()
    if versioned:
        structure.major, structure.minor = dlpack.VERSION
        structure.flags = dlpack.READ_ONLY if memory.is_read_only else 0
    lease.parts = [structure, *dlpack.fill(structure.tensor, pointer, device, layout)]
    structure.deleter = native.returned
    # Before there is a capsule: one that an interrupt drops at once gives this reference back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lease))
    structure.owner = id(lease)
    return dlpack.capsule(structure, native.unused)


@cache
def _natives() -> tuple[_Native, _Native]:
    try:
        library = ctypes.PyDLL(LIBRARY)
    except OSError as error:
        hint = "install vram as a wheel, or run `python native/build.py` in a checkout"
        raise VramError(
            f"DLPack needs libvrambuffer.so, which cannot be loaded: {error}", hint=hint
        ) from error
    table = (ctypes.c_void_p * len(_TABLE))(*(_address(ctypes.pythonapi, name) for name in _TABLE))
    library.vram_lend_prepare(table)
    return (
        _Native(_address(library, "vram_lend_return"), _address(library, "vram_lend_unused")),
        _Native(
            _address(library, "vram_lend_return_versioned"), _address(library, "vram_lend_unused_versioned")
        ),
    )


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
