"""CUPTI's callbacks by plain ctypes, for programs that run under a virtual GPU or on a real one.

Those programs know nothing of vram: they import this file, act, and print JSON.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

DRIVER, RESOURCE = 1, 3
ENTER, EXIT = 0, 1

cuda = ctypes.CDLL("libcuda.so.1")


class Data(ctypes.Structure):
    """CUpti_CallbackData."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("return_value", ctypes.POINTER(ctypes.c_int)),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_uid", ctypes.c_uint32),
        ("correlation_data", ctypes.POINTER(ctypes.c_uint64)),
        ("correlation_id", ctypes.c_uint32),
    )


class ResourceData(ctypes.Structure):
    """CUpti_ResourceData."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("descriptor", ctypes.c_void_p),
    )


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
Hook = Callable[[str, Data], None]


class Subscriber:
    """A subscriber that writes down what it is told, as lists that JSON can hold."""

    def __init__(self, library: str = "libcupti.so.13") -> None:
        self.cupti = ctypes.CDLL(library)
        self.events: list[list[Any]] = []
        self.on_enter: Hook | None = None
        self.on_exit: Hook | None = None
        self.on_resource: Callable[[int, ctypes.c_void_p], None] | None = None
        self.handle = ctypes.c_void_p()
        self.parameters: tuple[Any, ...] | None = None  # types to read the next calls' parameters by
        self._contexts: dict[int, str] = {}
        self._callback = CALLBACK(self._told)  # ctypes frees what nobody keeps

    def subscribe(self, *domains: int) -> int:
        code = self.cupti.cuptiSubscribe(ctypes.byref(self.handle), self._callback, None)
        for domain in domains:
            self.enable_domain(domain)
        return int(code)

    def unsubscribe(self) -> int:
        return int(self.cupti.cuptiUnsubscribe(self.handle))

    def enable_domain(self, domain: int, on: int = 1) -> int:
        return int(self.cupti.cuptiEnableDomain(on, self.handle, domain))

    def enable(self, cbid: int, on: int = 1, domain: int = DRIVER) -> int:
        return int(self.cupti.cuptiEnableCallback(on, self.handle, domain, ctypes.c_uint32(cbid)))

    def take(self) -> list[list[Any]]:
        """What was told since the last time."""
        told = self.events[:]
        self.events.clear()
        return told

    def watch(self, name: str, *arguments: Any) -> tuple[int, list[list[Any]]]:
        """Call a function of the driver with ctypes values; what it returned, and what was told of it.

        Each event ends with whether the parameters were those of the call, byte for byte.
        """
        self.parameters = arguments
        self.take()
        code = int(getattr(cuda, name)(*arguments))
        self.parameters = None
        return code, self.take()

    def _told(self, _: object, domain: int, cbid: int, data: int | None) -> None:
        if domain == DRIVER:
            self._call_told(cbid, ctypes.cast(data or 0, ctypes.POINTER(Data)).contents)
        elif domain == RESOURCE and data:
            resource = ctypes.cast(data, ctypes.POINTER(ResourceData)).contents
            self.events.append(["resource", cbid, self._name(resource.context), bool(resource.stream)])
            if self.on_resource:
                self.on_resource(cbid, ctypes.c_void_p(resource.context))
        else:
            self.events.append(["domain", domain, cbid])

    def _call_told(self, cbid: int, data: Data) -> None:
        function = (data.function or b"").decode()
        result = data.return_value[0] if data.site == EXIT else None
        event = ["exit" if data.site == EXIT else "enter", function, cbid, result]
        event += [self._name(data.context), data.context_uid, data.correlation_id, data.correlation_data[0]]
        if self.parameters is not None:
            event.append(_same(data.parameters, self.parameters))
        self.events.append(event)
        hook = self.on_exit if data.site == EXIT else self.on_enter
        if hook:
            hook(function, data)

    def _name(self, context: int | None) -> str | None:
        """A letter for each context, in the order of their appearance."""
        if not context:
            return None
        return self._contexts.setdefault(context, chr(ord("a") + len(self._contexts)))


def _same(place: int | None, arguments: tuple[Any, ...]) -> bool:
    """Whether the structure at *place* holds just these arguments, one field each."""
    kinds = [type(word) if isinstance(word, ctypes.Structure) else _plain(word) for word in arguments]
    structure = type(
        "Parameters", (ctypes.Structure,), {"_fields_": [(f"a{i}", k) for i, k in enumerate(kinds)]}
    )
    if not arguments:
        return True
    if not place:
        return False
    found = ctypes.cast(place, ctypes.POINTER(structure)).contents
    return all(_value(getattr(found, f"a{i}")) == _value(word) for i, word in enumerate(arguments))


def _plain(word: Any) -> Any:
    # byref(), a string or an array: what the function gets is an address.
    return type(word) if isinstance(word, ctypes._SimpleCData) else ctypes.c_void_p


def _value(word: Any) -> Any:
    if isinstance(word, ctypes.Structure):
        return bytes(word)
    if isinstance(word, ctypes._SimpleCData):
        return word.value
    if isinstance(word, (int, type(None))):
        return word
    return ctypes.cast(word, ctypes.c_void_p).value


def start(device: int = 0) -> ctypes.c_void_p:
    """Initialise and make the primary context current."""
    context = ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    return context


def allocate(nbytes: int = 1 << 20) -> tuple[int, int]:
    """The result of cuMemAlloc, and the address."""
    address = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
    return int(code), address.value
