"""Calls of the native part, native/buffer: allocate and free, count loaded libraries, DLPack deleters.

The driver gives every allocation a number that it never uses again. Asked before a free, it says whether
the memory at an address is still the allocation that was made. Asking costs a microsecond from Python and
almost nothing from C (native/buffer/buffer.c); an installation without the native part does it in Python.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

from vram.errors import VramError

LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvrambuffer.so")

# ---- allocations ----

BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
LOST = -1  # the driver's own codes are never negative

# What C calls, in the order of the table in native/buffer/buffer.c.
CALLS = ("cuMemAlloc_v2", "cuPointerGetAttribute", "cuMemFree_v2")


class AllocationId(ctypes.Structure):
    """Address and number of one allocation; the number is 0 where the driver gives none.

    The address comes first, so that a reference to this is a reference to the address.
    """

    _fields_ = (("pointer", c_uint64), ("number", c_uint64))


class AllocationCalls(NamedTuple):
    """``allocate(c_size_t(nbytes), byref(id))`` and ``free(byref(id))`` return the driver's code.

    ``free`` returns LOST, and frees nothing, if the memory is no longer that allocation.
    """

    allocate: Callable[[c_size_t, Any], int]
    free: Callable[[Any], int]


def allocation_calls(driver: ctypes.CDLL, path: str = LIBRARY) -> AllocationCalls:
    """The two calls, in C where the native part is installed."""
    try:
        native = ctypes.CDLL(path)
    except OSError:
        return _calls_in_python(driver)
    addresses = [ctypes.cast(getattr(driver, name), c_void_p) for name in CALLS]
    native.vram_allocation_prepare((c_void_p * len(CALLS))(*addresses))
    return AllocationCalls(native.vram_allocation_allocate, native.vram_allocation_free)


def allocation_number(get_attribute: Any, pointer: int) -> int:
    """The number of the allocation at *pointer*, by cuPointerGetAttribute; 0 where there is none."""
    number = c_uint64()
    return 0 if get_attribute(byref(number), BUFFER_ID, c_uint64(pointer)) else number.value


def _calls_in_python(driver: ctypes.CDLL) -> AllocationCalls:
    cu_alloc, get_attribute, cu_free = (getattr(driver, name) for name in CALLS)

    def allocate(nbytes: c_size_t, reference: Any) -> int:
        code: int = cu_alloc(reference, nbytes)
        if not code:
            found = reference._obj
            found.number = allocation_number(get_attribute, found.pointer)
        return code

    def free(reference: Any) -> int:
        mine = reference._obj
        same = allocation_number(get_attribute, mine.pointer) == mine.number
        return int(cu_free(c_uint64(mine.pointer))) if same else LOST

    return AllocationCalls(allocate, free)


# ---- loaded libraries ----


def library_counter(path: str = LIBRARY) -> Callable[[], int] | None:
    """A function that returns the loader's count of libraries; None if the native part is missing."""
    try:
        count = ctypes.CDLL(path).vram_library_loads
    except (OSError, AttributeError):
        return None
    count.restype = ctypes.c_ulonglong
    counter: Callable[[], int] = count
    return counter


# ---- DLPack deleters ----

# In the order of the table in native/buffer/buffer.c.
_PYTHON_FUNCTIONS = (
    "Py_IsInitialized",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "Py_DecRef",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyCapsule_IsValid",
    "PyCapsule_GetPointer",
)


class DlpackDeleters(NamedTuple):
    """Addresses of C functions: what a consumer calls when done, and what an unused capsule calls."""

    tensor: int
    capsule: int


@cache
def dlpack_deleters() -> tuple[DlpackDeleters, DlpackDeleters]:
    """Those of unversioned and of versioned tensors; VramError if the native part is missing."""
    try:
        library = ctypes.PyDLL(LIBRARY)
    except OSError as error:
        hint = "install vram as a wheel, or run `python native/build.py` in a checkout"
        raise VramError(
            f"DLPack needs libvrambuffer.so, which cannot be loaded: {error}", hint=hint
        ) from error
    functions = [_address(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS]
    library.vram_dlpack_prepare((c_void_p * len(functions))(*functions))
    return (
        DlpackDeleters(_address(library, "vram_dlpack_delete"), _address(library, "vram_dlpack_unused")),
        DlpackDeleters(
            _address(library, "vram_dlpack_delete_versioned"),
            _address(library, "vram_dlpack_unused_versioned"),
        ),
    )


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0
