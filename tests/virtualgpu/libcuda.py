"""The driver API by plain ctypes, for programs that the driver's tests run under a virtual GPU.

Those programs are processes of their own and know nothing of vram: they import this file,
act, and print one JSON value. Hundreds of them start in a run of the tests, so what only some
need (json, socket) is imported where it is used: together as long as Python's own start.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any

MIB = 1024**2
GIB = 1024**3
lib = ctypes.CDLL("libcuda.so.1")


class Prop(ctypes.Structure):
    """What cuMemCreate is asked for: pinned memory of a device, exportable as a descriptor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("max_nbytes", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


class Opaque64(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class DriverError(Exception):
    """A call that was to succeed did not."""


def code(name: str, *arguments: Any) -> int:
    """Call a function; plain ints go as 64 bit, which the ABI widens for every integer."""
    wide = [ctypes.c_uint64(word) if isinstance(word, int) else word for word in arguments]
    return int(getattr(lib, name)(*wide))


def call(name: str, *arguments: Any) -> None:
    if answer := code(name, *arguments):
        raise DriverError(f"{name} answered {answer}")


def out(kind: Any, name: str, *arguments: Any) -> Any:
    """Call a function whose first argument is where it writes."""
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value.value if hasattr(value, "value") else value


def start(device: int = 0) -> int:
    """Initialise and make the primary context current."""
    call("cuInit", 0)
    context = out(ctypes.c_uint64, "cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", context)
    return int(context)


def alloc(nbytes: int) -> int:
    return int(out(ctypes.c_uint64, "cuMemAlloc_v2", nbytes))


def used() -> int:
    """Bytes in use on the current context's device, as cuMemGetInfo tells."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def write(address: int, data: bytes) -> None:
    call("cuMemcpyHtoD_v2", address, data, len(data))


def read(address: int, nbytes: int) -> bytes:
    buffer = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoH_v2", buffer, address, nbytes)
    return buffer.raw


def create(nbytes: int, device: int = 0, handle_types: int = 1) -> int:
    prop = Prop(1, handle_types, 1, device)
    return int(out(ctypes.c_uint64, "cuMemCreate", nbytes, ctypes.byref(prop), 0))


def reserve(nbytes: int) -> int:
    return int(out(ctypes.c_uint64, "cuMemAddressReserve", nbytes, 0, 0, 0))


def allow(address: int, nbytes: int, device: int = 0) -> None:
    call("cuMemSetAccess", address, nbytes, (ctypes.c_int * 3)(1, device, 3), 1)


def map_whole(handle: int, nbytes: int, device: int = 0) -> int:
    address = reserve(nbytes)
    call("cuMemMap", address, nbytes, 0, handle, 0)
    allow(address, nbytes, device)
    return address


def export(handle: int) -> int:
    return int(out(ctypes.c_int, "cuMemExportToShareableHandle", handle, 1, 0))


def import_(descriptor: int) -> int:
    return int(out(ctypes.c_uint64, "cuMemImportFromShareableHandle", descriptor, 1))


def pool_number(pool: int, attribute: int) -> int:
    value = ctypes.c_uint64()
    call("cuMemPoolGetAttribute", pool, attribute, ctypes.byref(value))
    return value.value


def tell(value: Any) -> None:
    """Print *value* as JSON, for the test to read."""
    if type(value) is int:
        print(value, flush=True)
    elif type(value) is str and value.isidentifier():
        print(f'"{value}"', flush=True)
    else:
        import json

        print(json.dumps(value), flush=True)


def heard() -> str:
    """Wait for the test's next line."""
    return sys.stdin.readline().strip()


def pass_descriptor(channel: socket, descriptor: int) -> None:
    from socket import send_fds

    send_fds(channel, [b"."], [descriptor])


def received_descriptor(channel: socket) -> int:
    from socket import recv_fds

    return recv_fds(channel, 1, 1)[1][0]


def forked(function: Any) -> int:
    """Run *function* in a forked child and return what it returns, an exit status."""
    child = os.fork()
    if child == 0:
        os._exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
