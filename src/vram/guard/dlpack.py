"""DLPack: layouts of arrays, the structures and capsules by ctypes, and the export of a buffer.

An export holds the buffer and is itself held by the structure that the consumer has. The two C functions
behind it (native/buffer) release the export, in whatever state the consumer's thread is at that moment.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.errors import UsageError, VramError
from vram.guard.memory import LIBRARY
from vram.installation import how_to_get_native

if TYPE_CHECKING:
    from vram.guard.allocation import BufferMemory

# ---- layouts ----

# DLPack's code for a kind of element, and the letter in a NumPy type string.
INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 3, 4, 5, 6
_LETTERS = {INT: "i", UINT: "u", FLOAT: "f", COMPLEX: "c", BOOL: "b", OPAQUE: "V"}
_CODES = {letter: code for code, letter in _LETTERS.items()}


class ElementType(NamedTuple):
    """One element as in DLPack: its kind, its bits, and how many lanes a vector type has."""

    code: int
    bits: int
    lanes: int = 1

    @property
    def nbytes(self) -> int:
        return -(-self.bits * self.lanes // 8)

    @property
    def type_string(self) -> str | None:
        """The type string of NumPy; None if NumPy has no such type (bfloat16, vectors, 4 bits)."""
        letter = _LETTERS.get(self.code)
        if letter is None or self.lanes != 1 or self.bits % 8:
            return None
        return f"{'|' if self.bits == 8 else '<'}{letter}{self.bits // 8}"

    @classmethod
    def read(cls, type_string: str) -> ElementType:
        code = _CODES.get(type_string[1:2])
        if code is None or not type_string[2:].isdecimal() or type_string[0] == ">":
            raise UsageError(f"elements of type {type_string!r} are not understood")
        return cls(code, int(type_string[2:]) * 8)


BYTE = ElementType(UINT, 8)


class ArrayLayout(NamedTuple):
    """How the elements of an array lie in memory. Strides are in bytes; None means C order without gaps."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    element: ElementType = BYTE

    @property
    def byte_strides(self) -> tuple[int, ...]:
        return dense(self.shape, self.element.nbytes) if self.strides is None else self.strides

    @property
    def is_dense(self) -> bool:
        """In C order without gaps. The stride of an extent of 1 may be anything: PyTorch exports (1, 4) with
        strides (1, 1)."""
        wanted = dense(self.shape, self.element.nbytes)
        steps = zip(self.shape, self.byte_strides, wanted, strict=True)
        return all(extent == 1 or stride == want for extent, stride, want in steps)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, without gaps."""
        count = self.element.nbytes
        for extent in self.shape:
            count *= extent
        return count


def dense(shape: tuple[int, ...], nbytes: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(nbytes)
        nbytes *= extent
    return tuple(reversed(strides))


def contiguous_runs(layout: ArrayLayout) -> tuple[int, int, list[tuple[int, int]]]:
    """The same bytes as (first offset, contiguous bytes, [(extent, stride), …]), in the fewest runs."""
    offset, width = 0, layout.element.nbytes
    steps: list[tuple[int, int]] = []
    for extent, stride in zip(layout.shape, layout.byte_strides, strict=True):
        if stride < 0:
            offset += stride * (extent - 1)
        if extent > 1 and stride:
            steps.append((extent, abs(stride)))
    steps.sort(key=lambda step: step[1])
    while steps and steps[0][1] == width:
        width *= steps.pop(0)[0]
    joined: list[tuple[int, int]] = []
    for extent, stride in steps:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * extent, joined[-1][1])
        else:
            joined.append((extent, stride))
    return offset, width, joined


def _check_layout(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, element: ElementType
) -> ArrayLayout:
    """The layout that another library reports; UsageError if no array can have it."""
    is_paired = strides is None or len(strides) == len(shape)
    if not is_paired or min(shape, default=0) < 0 or element.nbytes <= 0:
        raise UsageError(f"no array has shape {shape}, strides {strides}, elements of {element.nbytes} bytes")
    return ArrayLayout(shape, strides, element)


def from_interface(interface: dict[str, Any]) -> ArrayLayout:
    """The layout in a ``__cuda_array_interface__``."""
    strides = interface.get("strides")
    return _check_layout(
        tuple(map(index, interface["shape"])),
        tuple(map(index, strides)) if strides else None,
        ElementType.read(interface["typestr"]),
    )


# ---- structures and capsules ----

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
ON_GPU = (CUDA, CUDA_HOST, CUDA_MANAGED)
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
VERSION = (1, 0)
READ_ONLY, IS_COPIED, IS_PADDED = 1, 2, 4  # a versioned tensor's flags
LEGACY_STREAM = 1  # how a consumer names the legacy default stream to a CUDA producer
MAX_BITS = 255  # of one element: the field is a byte

# A capsule holds only the address of its name, and may outlive this module.
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


class DLTensor(ctypes.Structure):
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


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("owner", c_void_p), ("deleter", c_void_p))


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("owner", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    )


def _fill_tensor(tensor: DLTensor, pointer: int, device: tuple[int, int], layout: ArrayLayout) -> list[Any]:
    """Write *layout* into *tensor*; what is returned must live as long as the tensor."""
    count, nbytes = len(layout.shape), layout.element.nbytes
    shape = (c_int64 * max(count, 1))(*layout.shape)
    strides = (c_int64 * max(count, 1))(*(stride // nbytes for stride in layout.byte_strides))
    tensor.data, (tensor.device_type, tensor.device_id) = pointer, device
    tensor.dimensions, (tensor.code, tensor.bits, tensor.lanes) = count, layout.element
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(c_int64))
    tensor.byte_offset = 0
    return [shape, strides]


class ImportedCapsule:
    """A capsule that this process consumes, and its tensor. Its name marks it as used meanwhile; dropping a
    capsule of its first name, which it gets again, releases the producer's memory."""

    def __init__(self, capsule: object) -> None:
        name = next((each for each in USED if _is_valid(capsule, each)), None)
        if name is None:
            raise UsageError(
                "this is not a fresh DLPack capsule", hint="a capsule can be used once: ask for a new one"
            )
        self.tensor, self.flags = _open_tensor(_pointer(capsule, name), name)
        _rename(capsule, USED[name])
        self._capsule, self._name = capsule, name

    def __del__(self, rename: Any = _rename) -> None:
        if hasattr(self, "_capsule"):
            rename(self._capsule, self._name)


def _open_tensor(address: int, name: bytes) -> tuple[DLTensor, int]:
    if name == PLAIN:
        return DLManagedTensor.from_address(address).tensor, 0
    versioned = DLManagedTensorVersioned.from_address(address)
    if versioned.major != VERSION[0]:  # then the fields after the version may be elsewhere
        raise UsageError(f"a DLPack capsule of version {versioned.major}.{versioned.minor}: 1 is understood")
    return versioned.tensor, versioned.flags


def layout_of(tensor: DLTensor, flags: int) -> ArrayLayout:
    element, count = ElementType(tensor.code, tensor.bits, tensor.lanes), tensor.dimensions
    if element.bits * element.lanes % 8 or (element.bits % 8 and flags & IS_PADDED):
        raise UsageError(f"elements of {element.bits} bits: several share a byte, or a byte has unused bits")
    if count < 0 or (count and not tensor.shape):
        raise UsageError(f"a DLPack tensor of {count} dimensions without a shape")
    shape = tuple(tensor.shape[:count])
    if not tensor.strides:
        return _check_layout(shape, None, element)
    return _check_layout(shape, tuple(stride * element.nbytes for stride in tensor.strides[:count]), element)


# ---- export ----

# In the order of the table in native/buffer/buffer.c.
_PYTHON_FUNCTIONS = (
    "Py_IsInitialized",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "Py_DecRef",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyCapsule_IsValid",
    "PyCapsule_GetPointer",
)


@cache
def _deleters(versioned: bool) -> tuple[int, int]:
    """Addresses of C functions: what a consumer calls when done, and what an unused capsule calls."""
    try:
        library = ctypes.PyDLL(LIBRARY)
    except OSError as error:
        raise VramError(
            f"DLPack needs libvrambuffer.so, which cannot be loaded: {error}", hint=how_to_get_native()
        ) from error
    functions = [_address(ctypes.pythonapi, name) for name in _PYTHON_FUNCTIONS]
    library.vram_dlpack_prepare((c_void_p * len(functions))(*functions))
    ending = "_versioned" if versioned else ""
    return (
        _address(library, f"vram_dlpack_delete{ending}"),
        _address(library, f"vram_dlpack_unused{ending}"),
    )


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0


class DlpackExport:
    """Holds a buffer for one consumer, from the export to the consumer's last use."""

    def __init__(self, owner: object, memory: BufferMemory) -> None:
        self.owner = owner
        self.parts: list[Any] = []
        self._exports = memory.exports = set() if memory.exports is None else memory.exports
        self._exports.add(id(self))

    def __del__(self) -> None:
        self._exports.discard(id(self))


def export(
    owner: object,
    memory: BufferMemory,
    pointer: int,
    device: tuple[int, int],
    layout: ArrayLayout,
    *,
    versioned: bool,
) -> object:
    """A capsule of *memory*, whose lock is held; BufferError if DLPack cannot express *layout*."""
    if layout.element.bits > MAX_BITS:
        raise BufferError(f"DLPack has no elements of {layout.element.nbytes} bytes")
    if any(stride % layout.element.nbytes for stride in layout.byte_strides):
        raise BufferError(f"DLPack counts strides in elements, and these are {layout.byte_strides} bytes")
    delete_tensor, delete_capsule = _deleters(versioned)
    held = DlpackExport(owner, memory)
    structure: Any = DLManagedTensorVersioned() if versioned else DLManagedTensor()
    if versioned:
        structure.major, structure.minor = VERSION
        structure.flags = READ_ONLY if memory.is_read_only else 0
    held.parts = [structure, *_fill_tensor(structure.tensor, pointer, device, layout)]
    structure.deleter = delete_tensor
    # Before the capsule exists: if an interrupt drops it at once, its destructor releases this reference.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    structure.owner = id(held)
    capsule: object = _new(ctypes.addressof(structure), VERSIONED if versioned else PLAIN, delete_capsule)
    return capsule
