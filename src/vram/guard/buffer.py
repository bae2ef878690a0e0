"""``vram.Buffer``: GPU memory with an owner that frees it.

    with vram.Buffer("8MiB", zero_on_free=True) as buffer:
        tensor = torch.from_dlpack(buffer)

Other libraries use it in place, through DLPack or the CUDA array interface, and it can use theirs. It is
freed at the end of the block, by ``close()``, with the last reference to it, or at the end of the
interpreter, whichever comes first, in any thread.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex

from vram.errors import UsageError, VramError
from vram.guard import borrowed, dlpack, memory_kinds
from vram.guard.allocation import BufferMemory, current_pid
from vram.guard.dlpack import ArrayLayout
from vram.guard.memory_kinds import stream_of
from vram.python_310 import add_note
from vram.units import parse_size, size

Size = int | str

# DLPack's device type of each kind; a zero-copy buffer is exported as device memory.
_DLPACK_DEVICES = {"pinned": dlpack.CUDA_HOST, "managed": dlpack.CUDA_MANAGED}


class Buffer:
    """*nbytes* of device memory, as a number or as "8MiB".

    On the current context's device, or on GPU *device*. With a *stream* of any framework it is allocated
    from the driver's pool and freed in that stream's order. *zero_on_free* erases it before it is freed,
    and waits for that. Its methods may be called from any thread.
    """

    _memory: BufferMemory
    _shape: ArrayLayout | None = None

    def __init__(
        self, nbytes: Size, *, device: int | None = None, stream: object = None, zero_on_free: bool = False
    ) -> None:
        count = nbytes if type(nbytes) is int and nbytes > 0 else _nbytes(nbytes)
        if stream is None:
            self._memory = memory_kinds.DeviceAllocation(count, device, zero_on_free)
        else:
            self._memory = memory_kinds.StreamOrderedAllocation(
                count, stream_of(stream), device, zero_on_free
            )

    # ---- other kinds of memory ----

    @classmethod
    def pitched(
        cls,
        width: Size,
        height: int,
        *,
        element_nbytes: int = 4,
        device: int | None = None,
        zero_on_free: bool = False,
    ) -> Buffer:
        """*height* rows of *width* bytes, each aligned as the device reads best: see ``pitch``."""
        if element_nbytes not in (4, 8, 16):
            raise UsageError(
                f"elements of {element_nbytes} bytes", hint="the driver aligns rows for 4, 8 or 16"
            )
        row, rows = _nbytes(width), _nbytes(height)
        memory = memory_kinds.PitchedAllocation(row, rows, element_nbytes, device, zero_on_free)
        return cls._of(memory, ArrayLayout((rows, row), (memory.pitch, 1)))

    @classmethod
    def managed(cls, nbytes: Size, *, device: int | None = None, zero_on_free: bool = False) -> Buffer:
        """Memory that host and device share and that moves between them; never more than is free."""
        return cls._of(memory_kinds.ManagedAllocation(_nbytes(nbytes), device, zero_on_free))

    @classmethod
    def pinned(cls, nbytes: Size, *, device: int | None = None, zero_on_free: bool = False) -> Buffer:
        """Host memory that stays in place, for fast copies."""
        return cls._of(memory_kinds.PinnedAllocation(_nbytes(nbytes), device, zero_on_free))

    @classmethod
    def zero_copy(cls, nbytes: Size, *, device: int | None = None, zero_on_free: bool = False) -> Buffer:
        """Host memory that the device reads and writes in place, over the bus."""
        return cls._of(memory_kinds.ZeroCopyAllocation(_nbytes(nbytes), device, zero_on_free))

    @classmethod
    def from_dlpack(cls, thing: Any) -> Buffer:
        """The memory of another library's array, in place. The array is held until the close."""
        return cls._borrow(borrowed.by_dlpack(borrowed.without_gradient(thing)))

    @classmethod
    def from_cuda_array_interface(cls, thing: Any) -> Buffer:
        """The same for what has a ``__cuda_array_interface__``."""
        return cls._borrow(borrowed.by_interface(borrowed.without_gradient(thing)))

    @classmethod
    def _borrow(cls, view: borrowed.ArrayView) -> Buffer:
        return cls._of(borrowed.Borrowed(view), view.layout)

    @classmethod
    def _of(cls, memory: BufferMemory, layout: ArrayLayout | None = None) -> Buffer:
        made = cls.__new__(cls)
        made._memory, made._shape = memory, layout
        return made

    # ---- what it is ----

    @property
    def _layout(self) -> ArrayLayout:
        """One run of bytes, unless the buffer has a layout."""
        return ArrayLayout((self._memory.nbytes,)) if self._shape is None else self._shape

    @property
    def nbytes(self) -> int:
        """How much memory it is, the padding of a pitched one included."""
        return self._memory.nbytes

    @property
    def kind(self) -> str:
        """device, stream-ordered, pitched, managed, pinned, zero-copy or borrowed."""
        return self._memory.kind

    @property
    def closed(self) -> bool:
        return self._memory.is_closed

    @property
    def zero_on_free(self) -> bool:
        return self._memory.zero_on_free

    @property
    def pointer(self) -> int:
        """The address, for a kernel or a driver call. It is invalid after the close."""
        self._memory.check()
        return self._memory.device_pointer()

    @property
    def device(self) -> int:
        """The GPU's number."""
        self._memory.check()
        return self._memory.device

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._memory.nbytes,) if self._shape is None else self._shape.shape

    @property
    def pitch(self) -> int:
        """Bytes from one row of a pitched buffer to the next."""
        return self._layout.byte_strides[0] if len(self.shape) > 1 else self.nbytes

    @property
    def host(self) -> memoryview:
        """Managed, pinned or zero-copy memory as a memoryview; waits for work that still runs.

        Read-only if the memory was exported so. The view ends with the buffer. A slice or a NumPy array
        made of it must be gone before, or the close is refused.
        """
        memory = self._memory
        if not memory.is_host_visible:
            raise UsageError(
                f"{memory.kind} memory cannot be read by the host", hint="use read() and write()"
            )
        self._check_is_one_run()
        memory.check_process()
        with memory.lock:
            memory.check()
            with memory.inside():
                memory.wait()
            array = memory.host_array()
            if array is None:
                array = (ctypes.c_ubyte * memory.nbytes).from_address(memory.pointer)
                array.owner = self  # type: ignore[attr-defined]
            view = memoryview(array).cast("B")  # type: ignore[arg-type]
            if memory.is_read_only:
                view = view.toreadonly()
            memory.add_host_view(array, view)
            return view

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._memory.pointer:#x}"
        zeroed = ", zeroed on free" if self.zero_on_free else ""
        read_only = ", read-only" if self._memory.is_read_only else ""
        return f"<vram.Buffer of {size(self.nbytes)}, {self.kind}, {state}{zeroed}{read_only}>"

    # ---- bytes in and out ----

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Copy *nbytes* from *offset* on to the host; left out, all up to the end."""
        offset = _whole(offset, "an offset")
        count = self.nbytes - offset if nbytes is None else _whole(nbytes, "a number of bytes")
        self._check_range(offset, count)
        into = ctypes.create_string_buffer(count)
        self._copy("cuMemcpyDtoH_v2", lambda at: (into, at + offset, count))
        return into.raw

    def write(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy *data* into the buffer: bytes, or any object that supports memoryview."""
        octets, offset = _bytes_of(data), _whole(offset, "an offset")
        self._check_range(offset, len(octets))
        self._memory.check_writable()
        self._copy("cuMemcpyHtoD_v2", lambda at: (at + offset, octets, len(octets)))

    def fill(self, byte: int = 0) -> None:
        """Set every byte to *byte*, and wait for that."""
        byte = _whole(byte, "a byte")
        if not 0 <= byte <= 255:
            raise UsageError(f"{byte} is not a byte", hint="0 to 255")
        self._memory.check_writable()
        self._copy("cuMemsetD8_v2", lambda at: (at, byte, self.nbytes))

    def erase(self) -> None:
        """Wait for all work on it, set every byte to zero, padding too, and wait for that."""
        self._memory.check_writable()
        self._erase()

    def _erase(self) -> None:
        """Also if the owner exported it as read-only: ``vram.scrub`` erases that, too."""
        memory = self._memory
        memory.check_process()
        with memory.lock:
            memory.zero()

    def _copy(self, call: str, arguments: Any) -> None:
        memory = self._memory
        self._check_is_one_run()
        memory.check_process()
        with memory.lock:
            memory.check()
            with memory.inside():
                memory.cuda.must(call, *arguments(memory.device_pointer()))
                memory.wait()

    def _check_range(self, offset: int, count: int) -> None:
        if not 0 <= offset <= offset + count <= self.nbytes:
            raise UsageError(f"bytes {offset} to {offset + count} of a buffer of {self.nbytes}")

    def _check_is_one_run(self) -> None:
        if self.kind == "borrowed" and not self._layout.is_dense:
            raise UsageError("a borrowed array with strides is not contiguous")

    # ---- freeing it ----

    def close(self) -> None:
        """Free the memory now, erased first with ``zero_on_free``.

        Raises BufferClosed the second time; BufferLent, and frees nothing, while a DLPack consumer or an
        array on ``host`` exists; BufferLost if a context reset freed the memory or it belongs to the
        parent process. Arrays made through the CUDA array interface are not known here: they must not be
        used after this.
        """
        memory = self._memory
        if memory.pid != current_pid[0]:
            memory.check_process()
        with memory.lock:
            if memory.exports or memory.host_views:
                memory.end_views()
            memory.release()

    def __enter__(self) -> Buffer:
        self._memory.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.closed:  # already, or in a forked child, which has nothing to free
            return
        try:
            self.close()
        except VramError as trouble:
            if error is None:
                raise
            # The block's own error stays the error; exported memory is freed with its last user.
            add_note(error, f"vram: {trouble}")

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        memory = getattr(self, "_memory", None)
        # While the interpreter shuts down nothing works reliably; the exit handler ran before.
        if memory is not None and not memory.is_released and not is_finalizing():
            memory.drop()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a buffer cannot be copied or pickled", hint="its memory belongs to one process; copy the bytes"
        )

    # ---- other libraries ----

    def __dlpack_device__(self) -> tuple[int, int]:
        memory = self._memory
        memory.check()
        if isinstance(memory, borrowed.Borrowed):
            return memory.device_kind, memory.device
        kind = _DLPACK_DEVICES.get(memory.kind, dlpack.CUDA)
        return kind, 0 if kind == dlpack.CUDA_HOST else memory.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of the memory itself. The buffer stays alive and open while a consumer has it."""
        memory, device = self._memory, self.__dlpack_device__()
        if copy:
            raise BufferError("vram.Buffer exports its own memory and never a copy")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"this buffer is on DLPack device {device}, not {tuple(dl_device)}")
        versioned = max_version is not None and tuple(max_version) >= dlpack.VERSION
        if memory.is_read_only and not versioned:
            raise BufferError("this buffer's memory is read-only, which DLPack before 1.0 cannot express")
        with memory.lock:
            memory.check()
            if stream != -1:  # -1: the consumer synchronizes itself
                with memory.inside():
                    memory.synchronize()
            pointer = memory.device_pointer()
            return dlpack.export(self, memory, pointer, device, self._layout, versioned=versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        memory, type_string = self._memory, self._layout.element.type_string
        if memory.kind == "pinned" or type_string is None:
            raise AttributeError(f"{memory.kind} memory of this type has no __cuda_array_interface__")
        memory.check()
        return {
            "version": 3,
            "shape": self._layout.shape,
            "strides": None if self._layout.is_dense else self._layout.byte_strides,
            "typestr": type_string,
            "data": (memory.device_pointer(), memory.is_read_only),
            "stream": memory.interface_stream,
        }


def _nbytes(value: SupportsIndex | str) -> int:
    """A size of at least one byte: a number of bytes, as of a bytearray, or text with a unit."""
    if isinstance(value, str):
        count = parse_size(value)
    else:
        count = _whole(value, "a size", hint="give bytes as a number, or write it like 8MiB")
    if count <= 0:
        raise UsageError(f"a buffer of {count} bytes", hint="the smallest has one byte")
    return count


def _whole(value: Any, what: str, hint: str = "give a whole number") -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{value!r} is not {what}", hint=hint)
    return operator.index(value)


def _bytes_of(data: Any) -> bytes:
    """The bytes of *data*. Not ``bytes(data)``: of the number 5 that makes five zero bytes."""
    try:
        return data if type(data) is bytes else memoryview(data).tobytes()
    except (TypeError, ValueError, BufferError) as error:
        kind = type(data).__qualname__
        raise UsageError(
            f"an object of type {kind} has no bytes to write: {error}", hint="give bytes, or an array"
        ) from error
