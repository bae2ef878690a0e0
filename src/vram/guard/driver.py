"""libcuda for ``vram.Buffer`` and erasing: loaded by the first call; contexts are made on request only.

Calls return the driver's code; :func:`translate` turns it into an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

from vram.errors import DeviceError, DriverMissing, NoSuchDevice, OutOfMemory, VramError
from vram.guard.memory import LIBRARY
from vram.payloads.libcuda import Libcuda, load, untyped
from vram.payloads.trim.driver import STICKY, sentence
from vram.payloads.trim.driver import driver as loaded_driver
from vram.payloads.trim.framework import loaded

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 1, 2, 3, 4
NO_DEVICE, INVALID_CONTEXT, CONTEXT_IS_DESTROYED = 100, 201, 709
NO_LIVE_CONTEXT = (INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
# The legacy stream returns one of these while any ordinary stream of its context is captured. By the
# documentation that query does not end the capture.
CAPTURE_CODES = range(900, 910)

POINTER_CONTEXT, POINTER_ORDINAL = 1, 9
RELAXED_CAPTURE = 2


# ---- allocations ----
#
# The driver gives every allocation a number that it never uses again. Asked before a free, it says whether
# the memory at an address is still the allocation that was made. Asking costs a microsecond from Python and
# almost nothing from C (native/buffer/buffer.c); an installation without the native part does it in Python.

BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
LOST = -1  # the driver's own codes are never negative

# What C calls, in the order of the table in native/buffer/buffer.c.
CALLS = ("cuMemAlloc_v2", "cuPointerGetAttribute", "cuMemFree_v2")


class AllocationId(ctypes.Structure):
    """Address (first, so that a reference to this is one to it) and number; 0 where the driver gives none."""

    _fields_ = (("pointer", c_uint64), ("number", c_uint64))


class AllocationCalls(NamedTuple):
    """``allocate(c_size_t(nbytes), byref(id))`` and ``free(byref(id))`` return the driver's code.
    ``free`` returns LOST, and frees nothing, if the memory is no longer that allocation."""

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


# ---- the driver ----


class CudaDriver:
    """Every call that this driver has, by its name."""

    def __init__(self, library: Libcuda) -> None:
        self.pid = os.getpid()
        self._library = library
        self._primary: dict[int, int] = {}
        quick = untyped(library)
        self.allocate, self.free = allocation_calls(quick)
        self._get_attribute = quick.cuPointerGetAttribute

    def __getattr__(self, name: str) -> Any:
        """A call of the library, looked up once; DeviceError if the driver does not have it."""
        function = getattr(self._library, name, None)
        if function is None:
            hint = "the driver is too old for this call: update it"
            raise DeviceError(f"this driver has no {name}", hint=hint)
        setattr(self, name, function)
        return function

    # ---- devices ----

    def count(self) -> int:
        number = c_int()
        self.must("cuDeviceGetCount", byref(number))
        return number.value

    def check_device(self, device: object) -> int:
        """*device* as a number of a GPU that this process sees."""
        if isinstance(device, bool) or not isinstance(device, int):
            raise NoSuchDevice(f"{device!r} is not the number of a GPU", hint="give it as 0, 1, …")
        count = self.count()
        if not 0 <= device < count:
            seen = f"CUDA sees {count} GPU{'s' * (count != 1)}, from 0 on"
            raise NoSuchDevice(
                f"there is no GPU {device} here", hint=f"{seen}; CUDA_VISIBLE_DEVICES may hide others"
            )
        return device

    # ---- contexts ----

    def current_context(self) -> int:
        """The handle of this thread's context, 0 where it has none."""
        handle = c_void_p()
        self.cuCtxGetCurrent(byref(handle))
        return handle.value or 0

    def current_device(self) -> int | None:
        number = c_int()
        return None if self.cuCtxGetDevice(byref(number)) else number.value

    def in_context(self, device: int | None, operation: Callable[[], int]) -> int:
        """Run *operation*, which returns a code, in this thread's context if that is *device*'s.

        Otherwise in the device's primary context, which is made if there is none yet. A primary context
        that was reset is retained again. ``None`` means the current device, or 0.
        """
        if device is None or device == self.current_device():
            code = operation()
            if code not in NO_LIVE_CONTEXT:
                return code
        if device is None:  # that whose reset context is still current in this thread; else the first
            current = self.current_context()
            device = next((number for number, handle in self._primary.items() if handle == current), 0)
        flags, active = c_uint(), c_int()
        failed = self.cuDevicePrimaryCtxGetState(device, byref(flags), byref(active))
        if failed or not active.value:  # after a reset our handle is of a destroyed context
            self._primary.pop(device, None)
        if device not in self._primary:
            handle = c_void_p()
            self.must("cuDevicePrimaryCtxRetain", byref(handle), self.check_device(device))
            self._primary[device] = handle.value or 0
        code = int(self.cuCtxPushCurrent_v2(self._primary[device]))
        if code:
            return code
        try:
            return operation()
        finally:
            self.cuCtxPopCurrent_v2(byref(c_void_p()))

    @contextmanager
    def inside(self, context: int) -> Iterator[None]:
        """Make *context* current in this thread, whichever is current now."""
        self.must("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.cuCtxPopCurrent_v2(byref(c_void_p()))

    @contextmanager
    def on_device(self, device: int | None) -> Iterator[int]:
        """Enter a live context of *device* (``None``: the current one, else 0); yields its number."""
        handle = c_void_p()

        def note_context() -> int:
            # This call needs a live context; cuCtxGetCurrent would return a destroyed one.
            code: int = self.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t()))
            return code or int(self.cuCtxGetCurrent(byref(handle)))

        self.check(self.in_context(device, note_context), "cuMemGetInfo")
        with self.inside(handle.value or 0):
            number = self.current_device()
            assert number is not None
            yield number

    def within(self, pointer: int, device: int) -> AbstractContextManager[object]:
        """Enter a context where *pointer* can be used: its own, or one of *device* for a pool's memory."""
        context = self.context_of(pointer)
        if context is None:
            return self.on_device(device)
        return nullcontext() if context == self.current_context() else self.inside(context)

    # ---- pointers ----

    def allocation_number(self, pointer: int) -> int:
        """A number that the driver gives to one allocation and never again in this process."""
        return allocation_number(self._get_attribute, pointer)

    def context_of(self, pointer: int) -> int | None:
        """The context that an allocation belongs to; None for a pool's memory."""
        handle = c_void_p()
        code = self.cuPointerGetAttribute(byref(handle), POINTER_CONTEXT, pointer)
        return None if code else handle.value

    def ordinal_of(self, pointer: int) -> int:
        number = c_int()
        self.must("cuPointerGetAttribute", byref(number), POINTER_ORDINAL, pointer)
        return number.value

    def free_and_total(self) -> tuple[int, int]:
        """Bytes of the current context's device."""
        free, total = c_size_t(), c_size_t()
        self.must("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    # ---- errors ----

    def must(self, name: str, *arguments: object) -> None:
        """Call *name*; raise an error of our own unless it succeeds."""
        self.check(getattr(self, name)(*arguments), name)

    def check(self, code: int, name: str) -> None:
        if code:
            raise self.translate(code, name)

    def translate(self, code: int, name: str, nbytes: int | None = None) -> VramError:
        """The error for *code* as the result of *name*, which requested *nbytes*."""
        if code == NOT_INITIALIZED and self.pid != os.getpid():
            return after_fork()
        call = name.partition("_v")[0]
        message = f"{call} returned {self._text('cuGetErrorName', code) or 'an unknown error'} ({code})"
        if code == OUT_OF_MEMORY:
            return OutOfMemory(message, hint="`vram why` shows who holds the rest", nbytes=nbytes)
        if code in CAPTURE_CODES:
            return DeviceError(message, hint="a CUDA graph is being captured: do this before or after it")
        if code in STICKY:
            return DeviceError(message, hint=sentence(code, self.current_device()))
        description = self._text("cuGetErrorString", code)
        return DeviceError(message, hint=f"the driver's description: {description!r}" if description else "")

    def _text(self, call: str, code: int) -> str:
        """What the driver calls *code*, by one of its two calls for that; empty where it does not know."""
        text = c_char_p()
        failed = getattr(self, call)(code, byref(text))
        return "" if failed or not text.value else text.value.decode()


_driver: CudaDriver | None = None


def driver() -> CudaDriver:
    """The driver, loaded by the first call; DriverMissing if there is none."""
    global _driver
    if _driver is None:
        _driver = _load_driver()
    return _driver


def _load_driver() -> CudaDriver:
    try:
        found = CudaDriver(load())
    except OSError as error:
        hint = "install the NVIDIA driver, or try it on a virtual GPU: vram virtual -- python …"
        raise DriverMissing("no NVIDIA driver here: libcuda.so.1 cannot be loaded", hint=hint) from error
    code = found.cuInit(0)
    if code == NOT_INITIALIZED:
        raise after_fork()
    if code == NO_DEVICE:
        raise DriverMissing(
            "the NVIDIA driver finds no GPU", hint="see `vram check`, and CUDA_VISIBLE_DEVICES"
        )
    found.check(code, "cuInit")
    return found


def after_fork() -> DeviceError:
    hint = 'start processes with the "spawn" method where a parent uses CUDA'
    return DeviceError("CUDA does not work in a process forked from one that used it", hint=hint)


# ---- is a CUDA graph being captured? Asked without disturbing the capture ----

_LEGACY, _PER_THREAD = 0, 2


def is_capturing() -> bool:
    """Whether this thread, or an ordinary stream of any context that it can enter, captures a graph."""
    streams = (_LEGACY, _PER_THREAD, *_current_streams())

    def ask() -> int:
        return next((code for code in map(_capture_code, streams) if code in CAPTURE_CODES), 0)

    return any(code in CAPTURE_CODES for _, code in loaded_driver.everywhere(ask))


def is_capturing_here() -> bool:
    """The same, including PyTorch's capture in this thread, which uses a stream of its own."""
    torch = loaded("torch.cuda")
    by_torch = torch is not None and torch.is_initialized() and torch.is_current_stream_capturing()
    return by_torch or is_capturing()


def _capture_code(stream: int) -> int:
    """One of CAPTURE_CODES while *stream* is captured."""
    status = c_int()
    code = loaded_driver.code("cuStreamIsCapturing", c_void_p(stream), byref(status))
    return CAPTURE_CODES[0] if code == 0 and status.value != 0 else code


def _current_streams() -> Iterator[int]:
    """CuPy captures on streams of its own; PyTorch itself objects to a release during a capture."""
    stream = loaded("cupy.cuda.stream")
    if stream is not None:
        yield int(stream.get_current_stream().ptr)
