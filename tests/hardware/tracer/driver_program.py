"""The driver itself, through ctypes: what is kept, what is freed, and what is forgotten."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from pace import Pace

MIB = 1 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def alloc(nbytes: int) -> c_uint64:
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
    return address


def step() -> None:
    """Honest: freed on return."""
    address = alloc(5 * MIB)
    call("cuMemFree_v2", address)


def forget() -> None:
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(3 * MIB))  # planted leak: 12


def begin() -> None:
    call("cuInit", 0)
    device, context = c_int(), c_void_p()
    call("cuDeviceGet", byref(device), 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)


def main() -> None:
    pace = Pace()
    begin()
    model = [alloc(8 * MIB) for _ in range(6)]
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            forget()
    assert len(model) == 6
    if "wait" in sys.argv:  # for whoever kills it
        print("ready", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
