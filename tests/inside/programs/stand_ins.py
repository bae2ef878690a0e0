"""Stand-ins for frameworks that no test machine can run, with the shapes that are looked at.

For any Python from 3.9 on, standard library only. Nothing here is on a GPU: sizes and addresses
are made up, each different.
"""

import ctypes
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
#
# What native code holds lies in structures, as in the real one; the places in them are others on purpose.


def words(*names):
    return type("Words", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_uint64) for name in names]})


NativeStorage = words("table", "references", "lock", "pointer", "context", "nbytes")
NativeMeta = words("table", "name", "hooks", "gradient")
NativeTensor = words("table", "references", "meta", "storage", "version", "strides", "object")
UNDEFINED = NativeTensor()


class Device:
    def __init__(self, index):
        self.type, self.index = "cuda", index


class StorageBase:
    def __init__(self, size, index):
        address = next(_addresses)
        self._device = Device(index)
        self._native = NativeStorage(pointer=address, context=address, nbytes=size)

    def nbytes(self):
        return self._native.nbytes

    def data_ptr(self):
        return self._native.pointer

    device = property(lambda self: self._device)
    _cdata = property(lambda self: ctypes.addressof(self._native))


class UntypedStorage(StorageBase):
    pass


class Nothing:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class TensorBase:
    __slots__ = ("__dict__", "__weakref__", "_device", "_meta", "_native", "_shape", "_storage")

    def __init__(self, *shape, device=0, requires_grad=False, of=None):
        count = 1
        for each in shape:
            count *= each
        self._shape, self._device = shape, device
        self._storage = UntypedStorage(4 * count, device) if of is None else of._storage
        self._meta = NativeMeta(gradient=ctypes.addressof(UNDEFINED)) if requires_grad else None
        meta = 0 if self._meta is None else ctypes.addressof(self._meta)
        self._native = NativeTensor(meta=meta, storage=self._storage._cdata, object=id(self))

    def __del__(self):
        if HIDDEN(id(self)) is not None:
            HIDDEN.drop(id(self))

    _cdata = property(lambda self: ctypes.addressof(self._native))
    is_cuda = property(lambda self: self._device != "cpu")
    requires_grad = property(lambda self: self._meta is not None)
    is_leaf = property(lambda self: True)
    dtype = property(lambda self: "torch.float32")
    shape = property(lambda self: self._shape)
    _base = property(lambda self: None)
    layout = "torch.strided"
    is_nested = False

    @property
    def grad(self):
        raise SystemError("the real one may answer with a tensor that is being freed")

    @grad.setter
    def grad(self, gradient):
        HIDDEN.keep(id(self), gradient)
        self._meta.gradient = gradient._cdata

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
        self._pointers = {}

    def __call__(self, key):
        address = self._pointers.get(key)
        return None if address is None else ctypes.cast(address, ctypes.py_object).value

    def keep(self, key, obj):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
        self._pointers[key] = id(obj)

    def drop(self, key):
        obj = self(key)
        del self._pointers[key]
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(obj))


HIDDEN = Hidden()


def backward(parameter):
    """Give it a gradient, which native code alone refers to."""
    parameter.grad = TensorBase(*parameter.shape, device=parameter._device)


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
        TensorBase=TensorBase,
        StorageBase=StorageBase,
        DisableTorchFunction=Nothing,
        _DisableTorchDispatch=Nothing,
    )
    cuda = module("torch.cuda", is_initialized=lambda: True)
    module("torch.optim.optimizer", Optimizer=Optimizer)
    return module(
        "torch",
        _C=native,
        cuda=cuda,
        UntypedStorage=UntypedStorage,
        __version__="2.11.0",
        float32="torch.float32",
        inference_mode=Nothing,
        empty=lambda *shape, dtype, device, requires_grad=False: TensorBase(
            *shape, device=device, requires_grad=requires_grad
        ),
    )
