"""Where memory comes from in a remanence test: plain allocations, a pool, PyTorch's cache."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from typing import Any

from vram.guard.driver import Driver

RELEASE_THRESHOLD = 4
PINNED_TYPE, ON_DEVICE = 1, 1
KEEP_ALL = 2**64 - 1


class _PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("security", c_void_p),
        ("max_nbytes", c_size_t),
        ("reserved", c_ubyte * 56),
    )


class _Raw:
    """An address in the words of the CUDA array interface."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (pointer, False),
        }


class Place:
    """Gives memory out and takes it back, one piece at a time."""

    name = ""

    def __init__(self, cuda: Driver, device: int) -> None:
        self._cuda, self._device = cuda, device
        self._pointer: int | None = None

    def refusal(self) -> str | None:
        """Why nothing can be measured here; None where it can."""
        return None

    def take(self, nbytes: int) -> int:
        raise NotImplementedError

    def give(self) -> None:
        raise NotImplementedError

    def array(self, nbytes: int) -> Any:
        """What is out now, as something that ``vram.scrub`` erases."""
        return _Raw(self._pointer or 0, nbytes)

    def close(self) -> None:
        if self._pointer is not None:
            self.give()


class Plain(Place):
    name = "plain allocations"

    def take(self, nbytes: int) -> int:
        pointer = c_uint64()
        self._cuda.must("cuMemAlloc_v2", byref(pointer), nbytes)
        self._pointer = pointer.value
        return pointer.value

    def give(self) -> None:
        pointer, self._pointer = self._pointer, None
        self._cuda.must("cuMemFree_v2", pointer)


class Pool(Place):
    """A pool of the test's own, so that the program's stays as it is."""

    name = "stream-ordered pool"

    def __init__(self, cuda: Driver, device: int) -> None:
        super().__init__(cuda, device)
        self._pool = c_void_p()

    def take(self, nbytes: int) -> int:
        if not self._pool:
            asked = _PoolProperties(type=PINNED_TYPE, location_type=ON_DEVICE, location=self._device)
            self._cuda.must("cuMemPoolCreate", byref(self._pool), byref(asked))
            self._cuda.must("cuMemPoolSetAttribute", self._pool, RELEASE_THRESHOLD, byref(c_uint64(KEEP_ALL)))
        pointer = c_uint64()
        self._cuda.must("cuMemAllocFromPoolAsync", byref(pointer), nbytes, self._pool, None)
        self._cuda.must("cuStreamSynchronize", None)
        self._pointer = pointer.value
        return pointer.value

    def give(self) -> None:
        pointer, self._pointer = self._pointer, None
        self._cuda.must("cuMemFreeAsync", pointer, None)
        self._cuda.must("cuStreamSynchronize", None)

    def close(self) -> None:
        super().close()
        if self._pool:
            self._cuda.must("cuMemPoolDestroy", self._pool)


class TorchCache(Place):
    name = "PyTorch's cache"

    def __init__(self, cuda: Driver, device: int) -> None:
        super().__init__(cuda, device)
        self._torch = sys.modules.get("torch")
        self._tensor: Any = None

    def refusal(self) -> str | None:
        cuda = getattr(self._torch, "cuda", None)
        if cuda is None:
            return "PyTorch is not loaded in this process"
        return None if cuda.is_initialized() else "PyTorch has not used a GPU in this process"

    def take(self, nbytes: int) -> int:
        torch: Any = self._torch
        self._tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self._device}")
        torch.cuda.synchronize(self._device)
        self._pointer = int(self._tensor.data_ptr())
        return self._pointer

    def give(self) -> None:
        self._tensor = self._pointer = None

    def array(self, nbytes: int) -> Any:
        return self._tensor
