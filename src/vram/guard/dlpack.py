"""DLPack's structures, and capsules of them, by ctypes."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from vram.errors import UsageError
from vram.guard.layout import ElementType, Layout, told

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
ON_GPU = (CUDA, CUDA_HOST, CUDA_MANAGED)
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
VERSION = (1, 0)
READ_ONLY, IS_COPIED, IS_PADDED = 1, 2, 4  # a versioned tensor's flags
LEGACY_STREAM = 1  # how a consumer names the legacy default stream to a CUDA producer
MOST_BITS = 255  # of one element: there is a byte for the number

# A capsule knows no more than the address of its name, and may outlive this module.
for _name in (*USED, *USED.values()):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))

_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (c_void_p, c_char_p, c_void_p), ctypes.py_object
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, c_char_p), c_void_p
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, c_char_p)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("dimensions", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("owner", c_void_p), ("deleter", c_void_p))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("owner", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


def check_can_say(layout: Layout) -> None:
    """BufferError where DLPack has no words for *layout*."""
    if layout.element.bits > MOST_BITS:
        raise BufferError(f"DLPack has no elements of {layout.element.nbytes} bytes")
    if any(stride % layout.element.nbytes for stride in layout.byte_strides):
        raise BufferError(f"DLPack counts strides in elements, and these are {layout.byte_strides} bytes")


def fill(tensor: Tensor, pointer: int, device: tuple[int, int], layout: Layout) -> list[Any]:
    """Describe *layout* in *tensor*; what is returned must live as long as it."""
    count, nbytes = len(layout.shape), layout.element.nbytes
    shape = (c_int64 * max(count, 1))(*layout.shape)
    strides = (c_int64 * max(count, 1))(*(stride // nbytes for stride in layout.byte_strides))
    tensor.data, (tensor.device_type, tensor.device_id) = pointer, device
    tensor.dimensions, (tensor.code, tensor.bits, tensor.lanes) = count, layout.element
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(c_int64))
    tensor.byte_offset = 0
    return [shape, strides]


def capsule(structure: Managed | ManagedVersioned, destructor: int) -> object:
    name = VERSIONED if isinstance(structure, ManagedVersioned) else PLAIN
    made: object = _new(ctypes.addressof(structure), name, destructor)
    return made


class Taken:
    """A capsule in a consumer's hands, with the tensor in it. Its name tells others that it is used.

    At the end it gets its first name back: who drops a capsule of that name, drops the loan.
    """

    def __init__(self, capsule: object) -> None:
        name = next((each for each in USED if _is_valid(capsule, each)), None)
        if name is None:
            raise UsageError(
                "this is not a fresh DLPack capsule", hint="a capsule can be used once: ask for a new one"
            )
        self.tensor, self.flags = _opened(_pointer(capsule, name), name)
        _rename(capsule, USED[name])
        self._capsule, self._name = capsule, name

    def __del__(self, rename: Any = _rename) -> None:
        if hasattr(self, "_capsule"):
            rename(self._capsule, self._name)


def _opened(address: int, name: bytes) -> tuple[Tensor, int]:
    if name == PLAIN:
        return Managed.from_address(address).tensor, 0
    versioned = ManagedVersioned.from_address(address)
    if versioned.major != VERSION[0]:  # then nothing behind the version is where it was
        raise UsageError(f"a DLPack capsule of version {versioned.major}.{versioned.minor}: 1 is understood")
    return versioned.tensor, versioned.flags


def layout_of(tensor: Tensor, flags: int) -> Layout:
    element, count = ElementType(tensor.code, tensor.bits, tensor.lanes), tensor.dimensions
    if element.bits * element.lanes % 8 or (element.bits % 8 and flags & IS_PADDED):
        raise UsageError(f"elements of {element.bits} bits, which share bytes or fill them up")
    if count < 0 or (count and not tensor.shape):
        raise UsageError(f"a DLPack tensor of {count} dimensions that does not tell its shape")
    shape = tuple(tensor.shape[:count])
    if not tensor.strides:
        return told(shape, None, element)
    return told(shape, tuple(stride * element.nbytes for stride in tensor.strides[:count]), element)
