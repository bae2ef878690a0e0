"""libcuda as this process has loaded it, or nothing: looking never loads it and makes no context."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

RESERVED_CURRENT, USED_CURRENT = 5, 7
GRAPH_USED, GRAPH_RESERVED = 0, 2
RELAXED_CAPTURE = 2


class Driver:
    """The few calls that measure and trim what the driver itself keeps."""

    def __init__(self) -> None:
        self._cuda: Any = None

    def call(self, name: str, *arguments: object) -> bool:
        """Whether the call exists and succeeded."""
        return self.code(name, *arguments) == 0

    def code(self, name: str, *arguments: object) -> int | None:
        """What the call returns; None where there is no such call."""
        function = getattr(self._library(), name, None)
        return None if function is None else int(function(*arguments))

    def _library(self) -> Any:
        if self._cuda is None:  # an agent may be older than the program's first use of CUDA
            with suppress(OSError):
                self._cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return self._cuda

    def devices(self) -> list[int]:
        """Ordinals of the devices that have a live primary context already."""
        count = c_int()
        if not self.call("cuDeviceGetCount", byref(count)):
            return []
        return [ordinal for ordinal in range(count.value) if self._is_awake(ordinal)]

    def _is_awake(self, ordinal: int) -> bool:
        flags, active = c_uint(), c_int()
        asked = self.call("cuDevicePrimaryCtxGetState", c_int(ordinal), byref(flags), byref(active))
        return asked and bool(active.value)

    def uuid(self, ordinal: int) -> str | None:
        """What the whole machine calls the device: each process may number its GPUs differently."""
        raw = (ctypes.c_char * 16)()
        if not self.call("cuDeviceGetUuid_v2", byref(raw), c_int(ordinal)):
            return None
        digits = bytes(raw).hex()
        return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    @contextmanager
    def inside(self, ordinal: int) -> Iterator[bool]:
        """This thread in the primary context of a device that is awake; False where it cannot be."""
        context, previous = c_void_p(), c_void_p()
        awake = self._is_awake(ordinal)
        if not (awake and self.call("cuDevicePrimaryCtxRetain", byref(context), c_int(ordinal))):
            yield False
            return
        pushed = self.call("cuCtxPushCurrent_v2", context)
        try:
            yield pushed
        finally:
            if pushed:
                self.call("cuCtxPopCurrent_v2", byref(previous))
            self.call("cuDevicePrimaryCtxRelease_v2", c_int(ordinal))

    def is_capturing(self, stream: int) -> bool:
        status = c_int()
        return self.call("cuStreamIsCapturing", c_void_p(stream), byref(status)) and status.value != 0

    @contextmanager
    def harmless_to_captures(self) -> Iterator[None]:
        """Let calls of this thread not invalidate a graph that another thread is capturing."""
        mode = c_int(RELAXED_CAPTURE)
        changed = self.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            if changed:
                self.call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def pools(self, ordinal: int) -> set[int]:
        """The device's default pool and the one in use instead of it."""
        found = set()
        for name in ("cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool"):
            pool = c_void_p()
            if self.call(name, byref(pool), c_int(ordinal)) and pool.value:
                found.add(pool.value)
        return found

    def pool_bytes(self, pool: int) -> tuple[int, int] | None:
        """Reserved and used bytes of a pool."""
        return self._pair("cuMemPoolGetAttribute", c_void_p(pool), RESERVED_CURRENT, USED_CURRENT)

    def graph_bytes(self, ordinal: int) -> tuple[int, int] | None:
        """Reserved and used bytes of the memory that CUDA graphs allocate."""
        return self._pair("cuDeviceGetGraphMemAttribute", c_int(ordinal), GRAPH_RESERVED, GRAPH_USED)

    def _pair(self, name: str, owner: object, reserved: int, used: int) -> tuple[int, int] | None:
        held, busy = c_uint64(), c_uint64()
        told = self.call(name, owner, c_int(reserved), byref(held))
        return (held.value, busy.value) if told and self.call(name, owner, c_int(used), byref(busy)) else None

    def trim_pool(self, ordinal: int, pool: int) -> None:
        with self.inside(ordinal) as entered:
            if entered:
                self.call("cuMemPoolTrimTo", c_void_p(pool), c_size_t(0))

    def trim_graphs(self, ordinal: int) -> None:
        with self.inside(ordinal) as entered:
            if entered:
                self.call("cuDeviceGraphMemTrim", c_int(ordinal))


driver = Driver()
