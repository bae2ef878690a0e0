"""What the driver knows of an address, asked where libcuda is loaded and of nobody else."""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_uint64

from ..trim.driver import driver

_ORDINAL, _INVALID_VALUE = 9, 1


def device_of(address: int) -> int | None:
    """The device on which the driver knows memory at *address*."""
    code, device = _asked_where(address)
    return device if code == 0 else None


def is_device_memory(address: int) -> bool:
    """Whether the driver does not deny that; a thread without a context may not get an answer."""
    return _asked_where(address)[0] != _INVALID_VALUE


def extent(address: int) -> tuple[int, int]:
    """Where the allocation around *address* begins, and its size; zeros where the driver knows none."""
    base, size = c_uint64(), c_size_t()
    known = driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(address))
    return (base.value, size.value) if known else (0, 0)


def _asked_where(address: int) -> tuple[int | None, int]:
    device = c_int()
    code = driver.code("cuPointerGetAttribute", byref(device), c_int(_ORDINAL), c_uint64(address))
    return code, device.value
