"""libcuda as this process has loaded it, or nothing: asking never loads it and makes no context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from ..libcuda import loaded, read_uuid

RESERVED_CURRENT, USED_CURRENT = 5, 7
GRAPH_USED, GRAPH_RESERVED = 0, 2
RELAXED_CAPTURE = 2
NOT_FOUND = 500


# ---- errors that break CUDA for a process: every later call fails, frees too, in all its contexts ----
#
# A reset of the device still returns memory, and revives nothing: no context can be made until the process
# has ended (measured on an H200, driver 580.159.04, for 700, 710, 716 and 719). These are the codes of which
# NVIDIA's documentation of CUresult and cudaError_t (CUDA 13) says that "the process must be terminated and
# relaunched" or, of 710, that the context "cannot be used anymore". Driver and runtime number them alike.

# code: the driver's name, the runtime's name, what happened
STICKY = {
    226: ("CUDA_ERROR_CONTAINED", "cudaErrorContained", "an error that the GPU contained"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access"),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "a kernel that ran too long"),
    710: ("CUDA_ERROR_ASSERT", "cudaErrorAssert", "a device-side assert"),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError", "a hardware stack error"),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction", "an illegal instruction"),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", "a misaligned address"),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace", "a wrong address space"),
    718: ("CUDA_ERROR_INVALID_PC", "cudaErrorInvalidPc", "an invalid program counter"),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "a kernel that failed"),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", "cudaErrorTensorMemoryLeak", "tensor memory that was not freed"),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated", "the end of its MPS server"),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", "cudaErrorExternalDevice", "an error of an external device"),
}


def sentence(code: int, device: int | None, held: str = "its memory") -> str:
    """What is so and what follows, for a person who did not know that there are such errors."""
    name, _, what = STICKY[code]
    where = "the CUDA context" if device is None else f"the CUDA context on GPU {device}"
    return (
        f"{where} is broken by {what} ({name}, {code}): every call in it fails from now on, "
        f"frees too; end the process to get {held} back"
    )


# ---- the library ----


class LoadedDriver:
    """The few calls that measure and trim what the driver itself keeps."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._counted = (0, 0)
        self.seen_broken: dict[int, int] = {}
        """Devices whose last reading of free memory was answered with a sticky error, and that error."""

    def library(self) -> Any:
        """libcuda, or None as long as this process has not loaded it."""
        if self._cuda is None:  # an agent may be older than the program's first use of CUDA
            self._cuda = loaded()
        return self._cuda

    def code(self, name: str, *arguments: object) -> int:
        """The driver's answer; NOT_FOUND where it has no such call."""
        function = getattr(self.library(), name, None)
        return NOT_FOUND if function is None else int(function(*arguments))

    def call(self, name: str, *arguments: object) -> bool:
        """Whether the call exists and succeeded."""
        return self.code(name, *arguments) == 0

    def count(self) -> int:
        """How many devices this process sees; none before it has started CUDA."""
        pid, known = self._counted
        if pid == os.getpid():  # it does not change, but a forked child may not use CUDA
            return known
        count = c_int()
        if not self.call("cuDeviceGetCount", byref(count)):
            return 0
        self._counted = os.getpid(), count.value
        return count.value

    # ---- contexts ----
    #
    # No call lists a process's contexts. Primary ones can be asked for; one that the program made itself
    # (cuCtxCreate, PyCUDA) is known where it is current. Handles that are found elsewhere may be dead.

    def primaries(self) -> list[int]:
        """Devices whose primary context is active. A green context keeps it so."""
        return [ordinal for ordinal in range(self.count()) if self._is_active(ordinal)]

    def current(self) -> int | None:
        """The device of this thread's context, whichever kind that is."""
        ordinal = c_int()
        return ordinal.value if self.call("cuCtxGetDevice", byref(ordinal)) else None

    def is_in_own_context(self) -> bool:
        """Whether this thread is in a context that the program made itself, beside the primary one."""
        ordinal = self.current()
        if ordinal is None:
            return False
        current, primary = c_void_p(), c_void_p()
        if not self._is_active(ordinal):
            return True
        if not self.call("cuDevicePrimaryCtxRetain", byref(primary), c_int(ordinal)):
            return False
        self.call("cuDevicePrimaryCtxRelease_v2", c_int(ordinal))
        return self.call("cuCtxGetCurrent", byref(current)) and current.value != primary.value

    def devices(self) -> list[int]:
        """Devices on which this thread can work without making a context."""
        current = self.current()
        return sorted({*self.primaries(), *([] if current is None else [current])})

    def _is_active(self, ordinal: int) -> bool:
        flags, active = c_uint(), c_int()
        asked = self.call("cuDevicePrimaryCtxGetState", c_int(ordinal), byref(flags), byref(active))
        return asked and bool(active.value)

    @contextmanager
    def inside(self, ordinal: int) -> Iterator[bool]:
        """This thread in a context of the device: its primary one, else the current one; False without."""
        if not self._is_active(ordinal):
            yield self.current() == ordinal
            return
        with self._in_primary(ordinal) as code:
            yield code == 0

    @contextmanager
    def _in_primary(self, ordinal: int) -> Iterator[int]:
        """Yields the driver's code: a broken context may refuse already here."""
        context, previous = c_void_p(), c_void_p()
        code = self.code("cuDevicePrimaryCtxRetain", byref(context), c_int(ordinal))
        if code:
            yield code
            return
        code = self.code("cuCtxPushCurrent_v2", context)
        try:
            yield code
        finally:
            if code == 0:
                self.call("cuCtxPopCurrent_v2", byref(previous))
            self.call("cuDevicePrimaryCtxRelease_v2", c_int(ordinal))

    def everywhere(
        self, question: Callable[[], int], only: int | None = None
    ) -> Iterator[tuple[int | None, int]]:
        """Ask in every context that this thread can enter; yield the device and the driver's code.

        The current one is asked where it is; where that is a primary one it is asked twice. *only* names
        the one device to ask on.
        """
        ordinal = c_int()
        code = self.code("cuCtxGetDevice", byref(ordinal))
        if code == 0 and only in (None, ordinal.value):
            yield ordinal.value, question()
        elif code in STICKY:
            yield None, code
        for primary in self.primaries() if only is None else [only] if self._is_active(only) else []:
            with self._in_primary(primary) as refused:
                code = refused or question()
            yield primary, code

    def broken(self, *, wait: bool = False, only: int | None = None) -> dict[int | None, int]:
        """Sticky errors of this process's contexts, by device. With *wait*, after all work is done there."""

        def question() -> int:
            if wait:
                return self.code("cuCtxSynchronize")
            return self.code("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t()))

        return {device: code for device, code in self.everywhere(question, only) if code in STICKY}

    def free_and_total(self, ordinal: int) -> tuple[int, int] | None:
        """What the whole device has free, and in all; None where no context of it can be entered."""
        self.seen_broken.pop(ordinal, None)
        if self.current() == ordinal:
            return self._memory(ordinal)
        with self.inside(ordinal) as entered:
            return self._memory(ordinal) if entered else None

    def _memory(self, ordinal: int) -> tuple[int, int] | None:
        free, total = c_size_t(), c_size_t()
        code = self.code("cuMemGetInfo_v2", byref(free), byref(total))
        if code in STICKY:
            self.seen_broken[ordinal] = code
        return None if code else (free.value, total.value)

    # ---- what it keeps ----

    def uuid(self, ordinal: int) -> str | None:
        return read_uuid(self.library(), ordinal)

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
        known = self.call(name, owner, c_int(reserved), byref(held))
        return (
            (held.value, busy.value) if known and self.call(name, owner, c_int(used), byref(busy)) else None
        )

    def trim_pool(self, ordinal: int, pool: int) -> None:
        with self.inside(ordinal) as entered:
            if entered:
                self.call("cuMemPoolTrimTo", c_void_p(pool), c_size_t(0))

    def trim_graphs(self, ordinal: int) -> None:
        with self.inside(ordinal) as entered:
            if entered:
                self.call("cuDeviceGraphMemTrim", c_int(ordinal))


driver = LoadedDriver()
