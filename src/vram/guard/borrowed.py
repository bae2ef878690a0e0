"""DOC"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

from vram.errors import BufferLost, UsageError, VramError
from vram.guard import dlpack
from vram.guard.allocation import Holding, here
from vram.guard.dlpack import Layout, from_interface, runs
from vram.guard.driver import Driver, driver
from vram.guard.native import Piece

LARGEST_PITCH = 2**31 - 1


class ByteRows(NamedTuple):
    """*height* runs of *width* bytes, *pitch* bytes apart."""

    offset: int
    width: int
    height: int
    pitch: int


def erase(cuda: Driver, pointer: int, device: int, layout: Layout) -> None:
    """Done when it returns."""
    with cuda.within(pointer, device):
        # Work of other streams may still write: it ends first, or it would undo the erasing.
        cuda.must("cuCtxSynchronize")
        for piece in pieces(layout):
            cuda.must("cuMemsetD2D8_v2", pointer + piece.offset, piece.pitch, 0, piece.width, piece.height)
        cuda.must("cuCtxSynchronize")


def pieces(layout: Layout) -> Iterator[ByteRows]:
    """The bytes of *layout* in as few pieces as its strides allow."""
    offset, width, steps = runs(layout)
    height, pitch = 1, width
    if steps and width <= steps[0][1] <= LARGEST_PITCH:
        height, pitch = steps.pop(0)
    for index in itertools.product(*(range(extent) for extent, _ in steps)):
        moved = sum(number * stride for number, (_, stride) in zip(index, steps, strict=True))
        yield ByteRows(offset + moved, width, height, pitch)


HINT = "a tensor or array on a GPU: PyTorch, CuPy, JAX, Numba, cuda.core, vram.Buffer, …"


class View(NamedTuple):
    """``keeper`` is what must be held on to for as long as the memory is used.

    Work of its owner's that may still be under way is ordered before what comes next on ``stream``.
    """

    pointer: int
    device: tuple[int, int]
    layout: Layout
    keeper: object
    stream: int = 0
    is_read_only: bool = False


def view(thing: Any) -> View:
    """Look at *thing* through whichever of the two protocols it speaks."""
    thing = without_gradient(thing)
    interface = _interface_of(thing)
    if interface is not None:
        return by_interface(thing, interface)
    if hasattr(thing, "__dlpack__"):
        return by_dlpack(thing)
    raise UsageError(f"{_described(thing)} has no GPU memory that can be seen", hint=HINT)


def without_gradient(thing: Any) -> Any:
    """PyTorch shows the memory of a tensor that requires gradients only through a detached one."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return thing.detach() if tensor is not None and isinstance(thing, tensor) else thing


def _interface_of(thing: object) -> Any:
    """None also where it cannot be told: PyTorch raises KeyError for 8-bit floats, which DLPack can lend."""
    try:
        return getattr(thing, "__cuda_array_interface__", None)
    except VramError:
        raise
    except Exception:
        return None


def by_interface(thing: object, interface: Any = None) -> View:
    found = _interface_of(thing) if interface is None else interface
    if not isinstance(found, dict):
        raise UsageError(f"{_described(thing)} has no __cuda_array_interface__", hint=HINT)
    if found.get("mask") is not None:
        raise UsageError("masked arrays are not understood")
    try:
        (address, is_read_only), layout = found["data"], from_interface(found)
        pointer, stream = int(address or 0), int(found.get("stream") or 0)
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{_described(thing)} has a broken __cuda_array_interface__: {error!r}") from error
    # Which device is not part of the protocol: the driver knows.
    device = dlpack.CUDA, _ordinal(pointer, layout)
    return View(pointer, device, layout, thing, stream, bool(is_read_only))


def by_dlpack(thing: Any) -> View:
    if not hasattr(thing, "__dlpack__") or not hasattr(thing, "__dlpack_device__"):
        raise UsageError(f"{_described(thing)} does not speak DLPack", hint=HINT)
    with _lending(thing):
        kind, number = (int(word) for word in thing.__dlpack_device__())
    if kind not in dlpack.ON_GPU:
        raise UsageError(f"{_described(thing)} does not lie on a GPU (DLPack device type {kind})", hint=HINT)
    stream = None if kind == dlpack.CUDA_HOST else dlpack.LEGACY_STREAM
    taken = dlpack.Taken(_asked(thing, stream))
    if taken.flags & dlpack.IS_COPIED:
        raise UsageError(f"{_described(thing)} lends a copy, not its memory", hint=HINT)
    tensor, layout = taken.tensor, dlpack.layout_of(taken.tensor, taken.flags)
    pointer = (tensor.data or 0) + tensor.byte_offset
    _ordinal(pointer, layout)  # only the producer knows the number by which it means this memory
    return View(pointer, (kind, number), layout, taken, stream or 0, bool(taken.flags & dlpack.READ_ONLY))


def _asked(thing: Any, stream: int | None) -> object:
    with _lending(thing):
        try:
            return thing.__dlpack__(stream=stream, max_version=dlpack.VERSION)
        except TypeError:  # a producer from before version 1
            return thing.__dlpack__(stream=stream)


@contextmanager
def _lending(thing: object) -> Iterator[None]:
    """Whatever a library raises instead of lending: PyTorch a BufferError, a ValueError or a RuntimeError."""
    try:
        yield
    except VramError:
        raise
    except Exception as error:
        raise UsageError(f"{_described(thing)} does not lend its memory: {error}", hint=HINT) from error


def _ordinal(pointer: int, layout: Layout) -> int:
    """The GPU of memory that the driver knows, or DeviceError; 0 where there is no memory at all."""
    return driver().ordinal_of(pointer) if pointer and layout.nbytes else 0


def _described(thing: object) -> str:
    return f"an object of type {type(thing).__module__}.{type(thing).__qualname__}"


# Whether memory was ever borrowed; a list of who does would be as many objects more to go through.
has_borrowed = [False]


class Borrowed(Holding):
    """Memory of another library, kept alive by holding on to its owner, never freed by us."""

    kind = "borrowed"

    def __init__(self, seen: View) -> None:
        if not (seen.pointer and seen.layout.nbytes):
            raise UsageError("an array without elements has no memory to borrow")
        self.cuda, self.lock, self.pid = driver(), RLock(), here[0]
        self._where = seen.device[1]
        self.piece = Piece(seen.pointer)
        self.nbytes = seen.layout.nbytes
        self.is_host_visible = seen.device[0] in (dlpack.CUDA_HOST, dlpack.CUDA_MANAGED)
        self.is_read_only = seen.is_read_only
        self.device_kind = seen.device[0]
        self._layout = seen.layout
        self._keeper: object | None = seen.keeper
        self.piece.identity = self.cuda.identity(seen.pointer)
        if seen.stream == dlpack.LEGACY_STREAM:  # it is always there: who comes next can wait for it
            self.interface_stream = seen.stream
        elif seen.stream:
            with self.inside():
                self.cuda.must("cuStreamSynchronize", seen.stream)
        has_borrowed[0] = True

    def settle(self) -> None:
        if self.interface_stream is not None:
            self.cuda.must("cuStreamSynchronize", self.interface_stream)

    def lost(self) -> BufferLost:
        self._forget()
        hint = "its owner freed it, or it went with its CUDA context; borrow from an array that lives"
        return BufferLost("the memory that this buffer borrowed is gone", hint=hint)

    def _forget(self) -> None:
        self.is_released = True
        self._keeper = None

    def _zero(self) -> None:
        erase(self.cuda, self.pointer, self.device, self._layout)

    def release(self) -> None:
        """Let go of the owner."""
        self.check()
        self._forget()

    def drop(self) -> None:
        self._forget()
