"""DLPack's structures, and capsules of them, by ctypes."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from vram.errors import UsageError
from vram.guard.layout import ElementType, Layout

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
ON_GPU = (CUDA, CUDA_HOST, CUDA_MANAGED)
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
VERSION = (1, 0)
READ_ONLY, IS_COPIED, IS_PADDED = 1, 2, 4  # a versioned tensor's flags
LEGACY_STREAM = 1  # how a consumer names the legacy default stream to a CUDA producer

_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (c_void_p, c_char_p, c_void_p), ctypes.py_object
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, c_char_p), c_void_p


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


def opened(found: object) -> tuple[Tensor, int]:
    """The tensor in a capsule that nobody has taken over yet, and its flags; as long as the capsule lives."""
    if _is_valid(found, PLAIN):
        return Managed.from_address(_pointer(found, PLAIN)).tensor, 0
    if _is_valid(found, VERSIONED):
        versioned = ManagedVersioned.from_address(_pointer(found, VERSIONED))
        return versioned.tensor, versioned.flags
    raise UsageError(
        "this is not a fresh DLPack capsule", hint="a capsule can be used once: ask for a new one"
    )


def layout_of(tensor: Tensor) -> Layout:
    element = ElementType(tensor.code, tensor.bits, tensor.lanes)
    shape = tuple(tensor.shape[: tensor.dimensions])
    if not tensor.strides:
        return Layout(shape, None, element)
    return Layout(
        shape, tuple(stride * element.nbytes for stride in tensor.strides[: tensor.dimensions]), element
    )
