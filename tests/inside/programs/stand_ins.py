"""Stand-ins for frameworks that no test machine can run, with the shapes that are looked at.

For any Python from 3.9 on, standard library only. Nothing here is on a GPU: sizes and addresses
are made up, each different.
"""

import itertools
import sys
import types

_addresses = itertools.count(0x7F0000000000, 1 << 32)


def module(name, **names):
    made = types.ModuleType(name)
    vars(made).update(names)
    sys.modules[name] = made
    return made


# ---- CuPy ----


class Memory:
    def __init__(self, size, device_id):
        self.size, self.device_id, self.ptr = size, device_id, next(_addresses)


class MemoryPointer:
    def __init__(self, mem):
        self.mem = mem


class _ndarray_base:
    def __init__(self, shape, dtype="float32", itemsize=4, device_id=0, of=None):
        count = 1
        for each in shape:
            count *= each
        self._shape, self._dtype, self._nbytes = tuple(shape), dtype, count * itemsize
        self._data = MemoryPointer(Memory(self._nbytes, device_id)) if of is None else of._data

    data = property(lambda self: self._data)
    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)
    nbytes = property(lambda self: self._nbytes)


def cupy():
    core = module("cupy._core.core", _ndarray_base=_ndarray_base)
    memory = module("cupy.cuda.memory", MemoryPointer=MemoryPointer)
    pool = types.SimpleNamespace(total_bytes=lambda: 0, used_bytes=lambda: 0, free_bytes=lambda: 0)
    return module(
        "cupy", ndarray=_ndarray_base, _core=core, cuda=types.SimpleNamespace(memory=memory, pool=pool)
    )


# ---- PyTorch ----


class Device:
    def __init__(self, index):
        self.type, self.index = "cuda", index


class StorageBase:
    def __init__(self, size, index):
        self._size, self._address, self._device = size, next(_addresses), Device(index)

    def nbytes(self):
        return self._size

    def data_ptr(self):
        return self._address

    device = property(lambda self: self._device)


class UntypedStorage(StorageBase):
    pass


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


# Where Python's collector does not see it, as in the real one: by the tensor's id.
_GRADIENTS, _BASES = {}, {}


class TensorBase:
    __slots__ = ("__dict__", "__weakref__", "_device", "_requires_grad", "_shape", "_storage")

    def __init__(self, *shape, device=0, requires_grad=False, of=None):
        count = 1
        for each in shape:
            count *= each
        self._shape, self._device, self._requires_grad = shape, device, requires_grad
        self._storage = UntypedStorage(4 * count, device) if of is None else of._storage

    is_cuda = property(lambda self: True)
    requires_grad = property(lambda self: self._requires_grad)
    is_leaf = property(lambda self: True)
    dtype = property(lambda self: "torch.float32")
    shape = property(lambda self: self._shape)
    _base = property(lambda self: None)
    layout = "torch.strided"
    is_nested = False

    @property
    def grad(self):
        return HIDDEN(id(self))

    def untyped_storage(self):
        return self._storage

    def get_device(self):
        return self._device

    def numel(self):
        count = 1
        for each in self._shape:
            count *= each
        return count

    def element_size(self):
        return 4


class Parameter(TensorBase):
    __slots__ = ()


class Hidden:
    """Calls a C function that holds what Python's collector does not follow: a dict of no tracked values."""

    def __init__(self):
        import ctypes

        self._pointers = {}
        self._ctypes = ctypes

    def __call__(self, key):
        address = self._pointers.get(key)
        return None if address is None else self._ctypes.cast(address, self._ctypes.py_object).value

    def keep(self, key, obj):
        self._ctypes.pythonapi.Py_IncRef(self._ctypes.py_object(obj))
        self._pointers[key] = id(obj)

    def drop(self, key):
        obj = self(key)
        del self._pointers[key]
        self._ctypes.pythonapi.Py_DecRef(self._ctypes.py_object(obj))


HIDDEN = Hidden()


def backward(parameter):
    """Give it a gradient, which native code alone refers to."""
    HIDDEN.keep(id(parameter), TensorBase(*parameter.shape, device=parameter._device))


class Module:
    """As PyTorch's: parts lie in dicts of which nobody thinks."""

    def __init__(self, **parts):
        self._modules = {k: v for k, v in parts.items() if isinstance(v, Module)}
        self._parameters = {k: v for k, v in parts.items() if not isinstance(v, Module)}


class Optimizer:
    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]


def torch():
    native = types.SimpleNamespace(
        TensorBase=TensorBase, StorageBase=StorageBase, DisableTorchFunction=Nothing
    )
    cuda = module("torch.cuda", is_initialized=lambda: True)
    module("torch.optim.optimizer", Optimizer=Optimizer)
    return module("torch", _C=native, cuda=cuda, UntypedStorage=UntypedStorage)
