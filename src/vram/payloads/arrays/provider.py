"""What each framework's provider says about its arrays, and the helpers that all providers use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64
from typing import Any

from ..trim.driver import driver
from ..trim.framework import loaded
from .record import Struct

_ORDINAL, _INVALID_VALUE = 9, 1
A_VIEW = "a view of"


class Description(Struct, frozen=True, gc=False):
    """An array on a GPU. ``nbytes`` is the memory that cannot be freed while it lives: for a view that
    is the whole storage. ``pointer`` is where that memory begins; arrays that share it have the same."""

    nbytes: int
    device: int | None
    pointer: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    note: str = ""

    @property
    def is_view(self) -> bool:
        return self.note.startswith(A_VIEW)


class HiddenArray(Struct, frozen=True, gc=False):
    """An array that is known from its framework's own structures alone, as a gradient is. ``key``: the ``id``
    of its Python object, which is not touched; where it has none, a number that no ``id`` has."""

    key: int
    description: Description


def key_of(array: Any) -> int:
    """What an array is known by, for code that must not hold it."""
    key: int = array.key if type(array) is HiddenArray else id(array)
    return key


class ArrayProvider:
    """The arrays of one framework. It imports no framework and runs no code of a user's subclass.

    ``blocks`` are allocations below the arrays (storages, pool memory). A block is reported only if no
    array was reported for its memory.
    """

    NAME = ""
    # A module and the names of classes in it.
    ARRAYS: tuple[str, ...] = ("",)
    BLOCKS: tuple[str, ...] = ("",)

    def arrays(self) -> tuple[type, ...]:
        """The array classes; empty while the framework is not loaded or uses no GPU."""
        return classes_of(loaded(self.ARRAYS[0]), *self.ARRAYS[1:])

    def blocks(self) -> tuple[type, ...]:
        return classes_of(loaded(self.BLOCKS[0]), *self.BLOCKS[1:])

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        """One for each array found, in order; None for what is not on a GPU or already freed.

        The ``id`` of a block that is described with its array may be added to *covered*.
        """
        raise NotImplementedError

    def describe_blocks(self, found: Iterable[Any], addresses: set[int]) -> Iterator[Description | None]:
        """The same for blocks. Blocks at *addresses* are described already: None for them is enough."""
        return iter(())

    def gradients(self, found: Iterable[Any]) -> Iterator[tuple[Any, HiddenArray]]:
        """Each array on a GPU with its gradient, where the framework holds it outside Python."""
        return iter(())

    def bases(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each view with the array that it is a view of, where the framework holds it outside Python."""
        return iter(())

    def secondary_holders(self) -> tuple[type, ...]:
        """ExceptionHooks whose instances refer to arrays that belong to others, as optimizers do."""
        return ()


def classes_of(module: Any, *names: str) -> tuple[type, ...]:
    """Those classes that this version of a framework has."""
    found = (getattr(module, name, None) for name in names)
    return tuple(each for each in found if isinstance(each, type))


class DtypeNames(dict[object, str]):
    """The name of each dtype, formatted once: NumPy takes ten microseconds for it."""

    def __missing__(self, dtype: Any) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


def view_note(own: int, kept: int) -> str:
    """A small view that holds a large array in memory is a leak that sizes alone do not show."""
    return f"{A_VIEW} {own:,} of these bytes" if own * 2 <= kept else ""


# ---- what the driver knows about an address; libcuda is asked only where it is loaded ----


def device_of(address: int) -> int | None:
    """The device whose memory contains *address*; None where the driver does not know the address."""
    code, device = _ordinal(address)
    return device if code == 0 else None


def is_device_memory(address: int) -> bool:
    """False only if the driver says so: a thread without a context may get no answer."""
    return _ordinal(address)[0] != _INVALID_VALUE


def extent(address: int) -> tuple[int, int]:
    """Start and size of the allocation around *address*; zeros where the driver knows none."""
    base, size = c_uint64(), c_size_t()
    known = driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(address))
    return (base.value, size.value) if known else (0, 0)


def _ordinal(address: int) -> tuple[int | None, int]:
    device = c_int()
    code = driver.code("cuPointerGetAttribute", byref(device), c_int(_ORDINAL), c_uint64(address))
    return code, device.value
