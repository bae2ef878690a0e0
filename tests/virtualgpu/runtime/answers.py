"""What a CUDA runtime library answers, call by call: `python answers.py LIBCUDART [SECTION…] > answers.json`.

Run with NVIDIA's library on a GPU it records what is true; with the virtual GPU's it must print the same.
Standard library only. Each section is a process of its own, because a context, a last error or a crash of
one would change the answers of the next.

An answer is `[code, last]`: what the call returned, and what cudaGetLastError said after it. What the call
wrote follows where it is worth comparing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any

MIB = 1 << 20
SECTIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = {}

Answers = dict[str, Any]


def section(function: Callable[[Any, Answers], None]) -> Callable[[Any, Answers], None]:
    SECTIONS[function.__name__.replace("_", "-")] = function
    return function


class Runtime:
    """The library: any function by its name without "cuda", its integers passed as 64 bits."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.driver = ctypes.CDLL("libcuda.so.1")
        version = c_int()
        self.library.cudaRuntimeGetVersion(byref(version))
        self.major = version.value // 1000

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self.library, f"cuda{name}")

        def call(*arguments: Any) -> int:
            return int(function(*(c_void_p(a) if isinstance(a, int) else a for a in arguments)))

        return call

    def answer(self, name: str, *arguments: Any) -> list[Any]:
        code = getattr(self, name)(*arguments)
        return [code, self.GetLastError()]

    def malloc(self, nbytes: int) -> int:
        address = c_void_p()
        code = self.Malloc(byref(address), nbytes)
        if code:
            raise RuntimeError(f"cudaMalloc of {nbytes} returned {code}")
        return address.value or 0

    def primary_active(self) -> bool:
        self.driver.cuInit(0)
        flags, active = c_uint(), c_int()
        self.driver.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
        return bool(active.value)


# ---- which calls make a context ----


def _first_calls() -> dict[str, Callable[[Runtime], Any]]:
    word, number, buffer = c_void_p(), c_int(), ctypes.create_string_buffer(4096)
    return {
        "GetDeviceCount": lambda r: r.GetDeviceCount(byref(number)),
        "GetDevice": lambda r: r.GetDevice(byref(number)),
        "SetDevice": lambda r: r.SetDevice(0),
        "DeviceGetAttribute": lambda r: r.DeviceGetAttribute(byref(number), 13, 0),
        "DeviceGetPCIBusId": lambda r: r.DeviceGetPCIBusId(buffer, 64, 0),
        "DriverGetVersion": lambda r: r.DriverGetVersion(byref(number)),
        "RuntimeGetVersion": lambda r: r.RuntimeGetVersion(byref(number)),
        "GetLastError": lambda r: r.GetLastError(),
        "Free-null": lambda r: r.Free(0),
        "FreeHost-null": lambda r: r.FreeHost(0),
        "FreeAsync-null": lambda r: r.FreeAsync(0, 0),
        "Malloc": lambda r: r.Malloc(byref(word), MIB),
        "Malloc-zero": lambda r: r.Malloc(byref(word), 0),
        "Malloc-bad": lambda r: r.Malloc(0, MIB),
        "MallocManaged": lambda r: r.MallocManaged(byref(word), MIB, 1),
        "MallocHost": lambda r: r.MallocHost(byref(word), MIB),
        "MallocAsync": lambda r: r.MallocAsync(byref(word), MIB, 0),
        "HostRegister": lambda r: r.HostRegister(buffer, 4096, 0),
        "MemGetInfo": lambda r: r.MemGetInfo(byref(word), byref(c_size_t())),
        "Memcpy-host": lambda r: r.Memcpy(buffer, buffer, 16, 0),
        "Memcpy-none": lambda r: r.Memcpy(buffer, buffer, 0, 1),
        "Memset-none": lambda r: r.Memset(0, 0, 0),
        "DeviceSynchronize": lambda r: r.DeviceSynchronize(),
        "DeviceReset": lambda r: r.DeviceReset(),
        "StreamCreate": lambda r: r.StreamCreate(byref(word)),
        "StreamSynchronize": lambda r: r.StreamSynchronize(0),
        "StreamQuery": lambda r: r.StreamQuery(0),
        "EventCreate": lambda r: r.EventCreate(byref(word)),
        "DeviceGetLimit": lambda r: r.DeviceGetLimit(byref(word), 0),
        "DeviceSetLimit": lambda r: r.DeviceSetLimit(0, 1024),
        "DeviceGetDefaultMemPool": lambda r: r.DeviceGetDefaultMemPool(byref(word), 0),
        "DeviceGetStreamPriorityRange": lambda r: r.DeviceGetStreamPriorityRange(
            byref(number), byref(c_int())
        ),
        "DeviceCanAccessPeer": lambda r: r.DeviceCanAccessPeer(byref(number), 0, 0),
        "SetDeviceFlags": lambda r: r.SetDeviceFlags(0),
        "GetDeviceFlags": lambda r: r.GetDeviceFlags(byref(number)),
        "InitDevice": lambda r: r.InitDevice(0, 0, 0),
        "PointerGetAttributes": lambda r: r.PointerGetAttributes(buffer, buffer),
        "ThreadExchangeStreamCaptureMode": lambda r: r.ThreadExchangeStreamCaptureMode(byref(number)),
        "ProfilerStart": lambda r: r.ProfilerStart(),
        "StreamIsCapturing": lambda r: r.StreamIsCapturing(0, byref(number)),
        "GetErrorString": lambda r: (r.GetErrorString(2), 0)[1],
    }


def _first_call(name: str) -> Callable[[Any, Answers], None]:
    def run(runtime: Runtime, answers: Answers) -> None:
        before = runtime.GetLastError()
        code = _first_calls()[name](runtime)
        answers[name] = [code, before, runtime.GetLastError(), runtime.primary_active()]

    return run


for _name in _first_calls():
    SECTIONS[f"first-{_name}"] = _first_call(_name)


# ---- allocation and free ----


@section
def malloc(r: Runtime, answers: Answers) -> None:
    p = c_void_p(0x1234)
    ask = answers.__setitem__
    ask("null", r.answer("Malloc", 0, MIB))
    ask("null zero", r.answer("Malloc", 0, 0))
    ask("zero", [*r.answer("Malloc", byref(p), 0), p.value])
    p.value = 0x1234
    ask("huge", [*r.answer("Malloc", byref(p), 1 << 60), p.value])
    ask("most", [*r.answer("Malloc", byref(p), (1 << 64) - 1), p.value])
    ask("one", r.answer("Malloc", byref(p), 1))
    ask("free", r.answer("Free", p.value))
    ask("free again", r.answer("Free", p.value))
    ask("free null", r.answer("Free", 0))
    ask("free sixteen", r.answer("Free", 16))
    q = r.malloc(8 * MIB)
    ask("free middle", r.answer("Free", q + MIB))
    ask("free end", r.answer("Free", q + 8 * MIB))
    ask("free it", r.answer("Free", q))
    host = ctypes.create_string_buffer(4096)
    ask("free host", r.answer("Free", ctypes.addressof(host)))
    ask("free host kind", r.answer("FreeHost", ctypes.addressof(host)))
    q = r.malloc(MIB)
    ask("freehost device", r.answer("FreeHost", q))
    ask("freeasync plain", r.answer("FreeAsync", q, 0))
    ask("sync", r.answer("DeviceSynchronize"))
    ask("free after freeasync", r.answer("Free", q))


@section
def malloc_managed(r: Runtime, answers: Answers) -> None:
    p = c_void_p(0x1234)
    ask = answers.__setitem__
    for flags in (0, 1, 2, 3, 4, 99):
        ask(f"flags {flags}", r.answer("MallocManaged", byref(p), MIB, flags))
    ask("zero", [*r.answer("MallocManaged", byref(p), 0, 1), p.value])
    ask("null", r.answer("MallocManaged", 0, MIB, 1))
    r.MallocManaged(byref(p), MIB, 1)
    ask("freehost", r.answer("FreeHost", p.value))
    ask("free", r.answer("Free", p.value))
    ask("free again", r.answer("Free", p.value))


@section
def pinned(r: Runtime, answers: Answers) -> None:
    p = c_void_p(0x1234)
    ask = answers.__setitem__
    ask("null", r.answer("MallocHost", 0, MIB))
    ask("zero", [*r.answer("MallocHost", byref(p), 0), p.value])
    ask("one", r.answer("MallocHost", byref(p), MIB))
    ask("free by cudaFree", r.answer("Free", p.value))
    ask("freehost", r.answer("FreeHost", p.value))
    ask("freehost again", r.answer("FreeHost", p.value))
    ask("freehost null", r.answer("FreeHost", 0))
    for flags in (0, 1, 2, 4, 8, 0xFF):
        ask(f"hostalloc {flags}", r.answer("HostAlloc", byref(p), MIB, flags))
    flags = c_uint(99)
    r.HostAlloc(byref(p), MIB, 0)  # with other flags the driver's answers vary from run to run
    ask("flags", [*r.answer("HostGetFlags", byref(flags), p.value), flags.value])
    d = c_void_p()
    ask("device pointer", [*r.answer("HostGetDevicePointer", byref(d), p.value, 0), d.value == p.value])
    ask("device pointer flags", r.answer("HostGetDevicePointer", byref(d), p.value, 1))
    host = ctypes.create_string_buffer(1 << 20)
    here = (ctypes.addressof(host) + 4095) & ~4095
    ask("flags of malloc", r.answer("HostGetFlags", byref(flags), here))
    ask("device pointer of malloc", r.answer("HostGetDevicePointer", byref(d), here, 0))
    ask("register null", r.answer("HostRegister", 0, 4096, 0))
    ask("register none", r.answer("HostRegister", here, 0, 0))
    ask("register flags", r.answer("HostRegister", here, 4096, 0xFF))
    ask("register", r.answer("HostRegister", here, 65536, 0))
    ask("register again", r.answer("HostRegister", here, 65536, 0))
    ask("register overlap", r.answer("HostRegister", here + 4096, 65536, 0))
    ask("unregister middle", r.answer("HostUnregister", here + 4096))
    ask("unregister", r.answer("HostUnregister", here))
    ask("unregister again", r.answer("HostUnregister", here))
    ask("unregister null", r.answer("HostUnregister", 0))


@section
def pitch(r: Runtime, answers: Answers) -> None:
    p, pitch_bytes = c_void_p(), c_size_t()
    ask = answers.__setitem__
    for width, height in ((1, 1), (100, 10), (512, 2), (513, 2), (0, 1), (1, 0), (0, 0), (1 << 40, 1 << 30)):
        p.value, pitch_bytes.value = 0x1234, 77
        code = r.answer("MallocPitch", byref(p), byref(pitch_bytes), width, height)
        ask(f"{width} by {height}", [*code, pitch_bytes.value, p.value in (None, 0x1234) and p.value])
    ask("null", r.answer("MallocPitch", 0, byref(pitch_bytes), 100, 100))
    ask("null pitch", r.answer("MallocPitch", byref(p), 0, 100, 100))


# ---- copies and fills ----


@section
def copies(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    host = ctypes.create_string_buffer(b"abcdefgh" * 1024, 8192)
    back = ctypes.create_string_buffer(8192)
    h, b = ctypes.addressof(host), ctypes.addressof(back)
    d, e = r.malloc(MIB), r.malloc(MIB)
    ask("to device", r.answer("Memcpy", d, h, 8192, 1))
    ask("on device", r.answer("Memcpy", e, d, 8192, 3))
    ask("to host", [*r.answer("Memcpy", b, e, 8192, 2), back.raw == host.raw])
    ask("default", r.answer("Memcpy", b, e, 8192, 4))
    for kind in (-1, 5, 99):
        ask(f"kind {kind}", r.answer("Memcpy", b, d, 16, c_int(kind)))
    ask("host to host", r.answer("Memcpy", b, h, 16, 0))
    ask("null both none", r.answer("Memcpy", 0, 0, 0, 1))
    ask("beyond the allocation", r.answer("Memcpy", e, d, 64 * MIB, 3))
    ask("async", r.answer("MemcpyAsync", d, h, 8192, 1, 0))
    ask("async kind", r.answer("MemcpyAsync", d, h, 8192, 77, 0))
    ask("sync", r.answer("DeviceSynchronize"))
    ask("memset", r.answer("Memset", d, 1, MIB))
    ask("memset null", r.answer("Memset", 0, 1, 16))
    ask("memset null none", r.answer("Memset", 0, 1, 0))
    ask("memset host", r.answer("Memset", h, 1, 16))
    ask("memset beyond", r.answer("Memset", d, 1, 64 * MIB))
    ask("memset async", r.answer("MemsetAsync", d, 1, MIB, 0))
    ask("2d", r.answer("Memcpy2D", d, 512, h, 64, 64, 16, 1))
    ask("2d narrow pitch", r.answer("Memcpy2D", d, 32, h, 64, 64, 16, 1))
    ask("2d none", r.answer("Memcpy2D", d, 512, h, 64, 0, 16, 1))
    ask("2d kind", r.answer("Memcpy2D", d, 512, h, 64, 64, 16, 9))
    ask("memset 2d", r.answer("Memset2D", d, 512, 7, 64, 16))
    ask("memset 2d narrow pitch", r.answer("Memset2D", d, 32, 7, 64, 16))
    r.Free(e)
    ask("free", r.answer("Free", d))
    ask("from a freed pointer", r.answer("Memcpy", b, d, 16, 2))
    ask("memset of a freed pointer", r.answer("Memset", d, 0, 16))
    ask("after", r.answer("DeviceSynchronize"))
    ask("peer wrong device", r.answer("MemcpyPeer", b, 0, h, 9, 16))


def _advice(r: Runtime, address: int | None, advice: int) -> tuple[Any, ...]:
    place = 0 if r.major == 12 else 1  # device 0, as each version says it
    return "MemAdvise", address, MIB, advice, place


@section
def prefetch(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    p = c_void_p()
    r.MallocManaged(byref(p), 4 * MIB, 1)
    d = r.malloc(MIB)
    if r.major == 12:
        ask("to device", r.answer("MemPrefetchAsync", p.value, MIB, 0, 0))
        ask("to host", r.answer("MemPrefetchAsync", p.value, MIB, c_int(-1), 0))
        ask("wrong device", r.answer("MemPrefetchAsync", p.value, MIB, 99, 0))
        ask("plain memory", r.answer("MemPrefetchAsync", d, MIB, 0, 0))
        ask("none", r.answer("MemPrefetchAsync", p.value, 0, 0, 0))
        ask("null", r.answer("MemPrefetchAsync", 0, MIB, 0, 0))
        for advice in (0, 1, 2, 3, 4, 5, 6, 7, 99):
            ask(f"advice {advice}", r.answer("MemAdvise", p.value, MIB, advice, 0))
        ask("advice for plain memory", r.answer("MemAdvise", d, MIB, 1, 0))
    else:
        place = {"device": 1 | 0 << 32, "host": 2, "none": 0, "wrong": 1 | 99 << 32, "type": 77}
        for name, value in place.items():
            ask(name, r.answer("MemPrefetchAsync", p.value, MIB, value, 0, 0))
        ask("plain memory", r.answer("MemPrefetchAsync", d, MIB, 1, 0, 0))
        ask("flags", r.answer("MemPrefetchAsync", p.value, MIB, 1, 1, 0))
        for advice in (0, 1, 2, 3, 4, 5, 6, 7, 99):
            ask(f"advice {advice}", r.answer("MemAdvise", p.value, MIB, advice, 1))
        ask("advice for plain memory", r.answer("MemAdvise", d, MIB, 1, 1))
    value = c_int(55)
    for attribute in (0, 1, 2, 3, 4, 99):
        value.value = 55
        code = r.answer("MemRangeGetAttribute", byref(value), 4, attribute, p.value, MIB)
        ask(f"range attribute {attribute}", [*code, value.value])
    ask("accessed by", r.answer(*_advice(r, p.value, 5)))
    ask(
        "range attribute 3 then",
        [*r.answer("MemRangeGetAttribute", byref(value), 4, 3, p.value, MIB), value.value],
    )
    ask("range attribute of plain memory", r.answer("MemRangeGetAttribute", byref(value), 4, 1, d, MIB))


class PointerAttributes(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("device", c_int),
        ("devicePointer", c_void_p),
        ("hostPointer", c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


@section
def pointers(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__

    def attributes(name: str, address: int) -> None:
        found = PointerAttributes(77, 77, 0x77, 0x77)
        code = r.answer("PointerGetAttributes", byref(found), address)
        names = {address: "same", None: "null", 0: "null", 0x77: "untouched"}
        ask(
            name,
            [
                *code,
                found.type,
                found.device,
                names.get(found.devicePointer, "other"),
                names.get(found.hostPointer, "other"),
            ],
        )

    host = ctypes.create_string_buffer(1 << 20)
    here = (ctypes.addressof(host) + 4095) & ~4095
    attributes("malloc before a context", here)
    p = c_void_p()
    d = r.malloc(MIB)
    attributes("malloc", here)
    attributes("null", 0)
    attributes("device", d)
    attributes("device middle", d + 100)
    attributes("sixteen", 16)
    r.MallocHost(byref(p), MIB)
    attributes("pinned", p.value or 0)
    r.HostAlloc(byref(p), MIB, 1)
    attributes("portable", p.value or 0)
    r.MallocManaged(byref(p), MIB, 1)
    attributes("managed", p.value or 0)
    r.MallocAsync(byref(p), MIB, 0)
    attributes("pooled", p.value or 0)
    r.HostRegister(here, 4096, 0)
    attributes("registered", here)
    r.HostUnregister(here)
    r.Free(d)
    attributes("freed", d)
    ask("null result", r.answer("PointerGetAttributes", 0, here))


# ---- devices ----


@section
def devices(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    n = c_int(77)
    ask("count null", r.answer("GetDeviceCount", 0))
    ask("device null", r.answer("GetDevice", 0))
    for device in (-1, 99):
        ask(f"set {device}", r.answer("SetDevice", c_int(device)))
        ask(f"attribute of {device}", r.answer("DeviceGetAttribute", byref(n), 13, c_int(device)))
    ask("device after", [*r.answer("GetDevice", byref(n)), n.value])
    ask("attribute null", r.answer("DeviceGetAttribute", 0, 13, 0))
    for attribute in (0, -1, 9999, 1000):
        ask(f"attribute {attribute}", r.answer("DeviceGetAttribute", byref(n), c_int(attribute), 0))
    name = "GetDeviceProperties_v2" if r.major == 12 else "GetDeviceProperties"
    buffer = ctypes.create_string_buffer(4096)
    ask("properties null", r.answer(name, 0, 0))
    ask("properties wrong device", r.answer(name, buffer, 99))
    ask("bus id null", r.answer("DeviceGetPCIBusId", 0, 64, 0))
    ask("bus id short", r.answer("DeviceGetPCIBusId", buffer, 5, 0))
    ask("bus id", r.answer("DeviceGetPCIBusId", buffer, 64, 0))
    ask("by bus id", [*r.answer("DeviceGetByPCIBusId", byref(n), buffer), n.value])
    ask("by wrong bus id", r.answer("DeviceGetByPCIBusId", byref(n), c_char_p(b"ffff:ff:ff.0")))
    ask("by nonsense", r.answer("DeviceGetByPCIBusId", byref(n), c_char_p(b"nonsense")))
    ask("peer self", [*r.answer("DeviceCanAccessPeer", byref(n), 0, 0), n.value])
    ask("peer wrong", r.answer("DeviceCanAccessPeer", byref(n), 0, 99))
    ask("enable peer self", r.answer("DeviceEnablePeerAccess", 0, 0))
    ask("enable peer wrong", r.answer("DeviceEnablePeerAccess", 99, 0))
    ask("disable peer wrong", r.answer("DeviceDisablePeerAccess", 99))
    ask("disable peer self", r.answer("DeviceDisablePeerAccess", 0))
    value = c_size_t(0)
    for limit in (0, 1, 2, 3, 4, 5, 6, 7, 99):
        ask(f"limit {limit}", [*r.answer("DeviceGetLimit", byref(value), limit), value.value])
    ask("set limit", r.answer("DeviceSetLimit", 0, 2048))
    ask("set limit wrong", r.answer("DeviceSetLimit", 99, 2048))
    ask("limit null", r.answer("DeviceGetLimit", 0, 0))
    flags = c_uint(77)
    ask("flags", [*r.answer("GetDeviceFlags", byref(flags)), flags.value])
    ask("set flags", r.answer("SetDeviceFlags", 4))
    ask("flags after", [*r.answer("GetDeviceFlags", byref(flags)), flags.value])
    ask("set wrong flags", r.answer("SetDeviceFlags", 0xFFFF))
    low, high = c_int(), c_int()
    ask(
        "priorities",
        [*r.answer("DeviceGetStreamPriorityRange", byref(low), byref(high)), low.value, high.value],
    )
    ask("memory info null", r.answer("MemGetInfo", 0, 0))
    ask("cache", [*r.answer("DeviceGetCacheConfig", byref(n)), n.value])
    ask("set cache", r.answer("DeviceSetCacheConfig", 1))
    ask("set wrong cache", r.answer("DeviceSetCacheConfig", 77))
    ask("init flags", r.answer("InitDevice", 0, 0xFFFF, 0))
    ask("init device", r.answer("InitDevice", 99, 0, 0))
    ask("valid devices", r.answer("SetValidDevices", (c_int * 1)(0), 1))
    ask("valid devices none", r.answer("SetValidDevices", 0, 0))
    ask("valid devices wrong", r.answer("SetValidDevices", (c_int * 1)(9), 1))
    ask("p2p attribute self", r.answer("DeviceGetP2PAttribute", byref(n), 1, 0, 0))
    ask("choose null", r.answer("ChooseDevice", 0, 0))
    ask("driver version null", r.answer("DriverGetVersion", 0))
    ask("runtime version null", r.answer("RuntimeGetVersion", 0))


@section
def properties(r: Runtime, answers: Answers) -> None:
    name = "GetDeviceProperties_v2" if r.major == 12 else "GetDeviceProperties"
    buffer = ctypes.create_string_buffer(b"\xa5" * 2048, 2048)
    answers["code"] = r.answer(name, buffer, 0)
    answers["touched"] = len(buffer.raw.rstrip(b"\xa5"))
    answers["words"] = [int.from_bytes(buffer.raw[i : i + 4], "little") for i in range(0, 1100, 4)]
    found = {}
    n = c_int()
    for attribute in range(1, 170):
        n.value = -77
        code = r.DeviceGetAttribute(byref(n), attribute, 0)
        found[attribute] = n.value if code == 0 else f"error {code}"
    answers["attributes"] = found


# ---- streams, events, pools ----


@section
def streams(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    s, n, f = c_void_p(), c_int(), c_uint()
    ask("null", r.answer("StreamCreate", 0))
    for flags in (0, 1, 2, 77):
        ask(f"flags {flags}", r.answer("StreamCreateWithFlags", byref(s), flags))
    ask("priority", r.answer("StreamCreateWithPriority", byref(s), 1, c_int(-99)))
    ask("its priority", [*r.answer("StreamGetPriority", s, byref(n)), n.value])
    ask("its flags", [*r.answer("StreamGetFlags", s, byref(f)), f.value])
    ask("query", r.answer("StreamQuery", s))
    ask("query default", r.answer("StreamQuery", 0))
    ask("query legacy", r.answer("StreamQuery", 1))
    ask("query per thread", r.answer("StreamQuery", 2))
    ask("capturing", [*r.answer("StreamIsCapturing", s, byref(n)), n.value])
    ask("wait null", r.answer("StreamWaitEvent", s, 0, 0))
    ask("device", [*r.answer("StreamGetDevice", s, byref(n)), n.value] if r.major > 12 else None)
    ask("destroy", r.answer("StreamDestroy", s))
    ask("destroy null", r.answer("StreamDestroy", 0))
    ask("destroy legacy", r.answer("StreamDestroy", 1))


@section
def events(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    a, b, f = c_void_p(), c_void_p(), c_float(77)
    ask("null", r.answer("EventCreate", 0))
    for flags in (0, 1, 2, 4, 6, 8, 99):
        ask(f"flags {flags}", r.answer("EventCreateWithFlags", byref(a), flags))
    r.EventCreate(byref(a))
    r.EventCreate(byref(b))
    ask("elapsed before", r.answer("EventElapsedTime", byref(f), a, b))
    ask("query before", r.answer("EventQuery", a))
    ask("synchronize before", r.answer("EventSynchronize", a))
    ask("record", r.answer("EventRecord", a, 0))
    ask("elapsed half", r.answer("EventElapsedTime", byref(f), a, b))
    ask("record other", r.answer("EventRecord", b, 0))
    ask("synchronize", r.answer("EventSynchronize", b))
    ask("elapsed", [*r.answer("EventElapsedTime", byref(f), a, b), f.value >= 0])
    ask("elapsed null", r.answer("EventElapsedTime", 0, a, b))
    ask("record null", r.answer("EventRecord", 0, 0))
    ask("query null", r.answer("EventQuery", 0))
    ask("synchronize null", r.answer("EventSynchronize", 0))
    ask("record flags", r.answer("EventRecordWithFlags", a, 0, 77))
    ask("destroy", r.answer("EventDestroy", a))
    ask("destroy null", r.answer("EventDestroy", 0))
    r.EventCreateWithFlags(byref(a), 2)
    r.EventRecord(a, 0)
    ask("elapsed without timing", r.answer("EventElapsedTime", byref(f), a, b))


@section
def pools(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    pool, other, p = c_void_p(), c_void_p(), c_void_p(0x1234)
    value = ctypes.c_uint64(77)
    ask("default", r.answer("DeviceGetDefaultMemPool", byref(pool), 0))
    ask("default null", r.answer("DeviceGetDefaultMemPool", 0, 0))
    ask("default wrong", r.answer("DeviceGetDefaultMemPool", byref(other), 99))
    r.DeviceGetMemPool(byref(other), 0)
    ask("current is default", other.value == pool.value)
    for attribute in (0, 1, 2, 3, 4, 5, 6, 7, 8, 99):
        value.value = 77
        ask(
            f"attribute {attribute}",
            [*r.answer("MemPoolGetAttribute", pool, attribute, byref(value)), value.value],
        )
    ask("set threshold", r.answer("MemPoolSetAttribute", pool, 4, byref(ctypes.c_uint64(0))))
    ask("set reserved", r.answer("MemPoolSetAttribute", pool, 5, byref(ctypes.c_uint64(0))))
    ask("trim", r.answer("MemPoolTrimTo", pool, 0))
    ask("destroy default", r.answer("MemPoolDestroy", pool))
    ask("destroy null", r.answer("MemPoolDestroy", 0))
    ask("malloc null", r.answer("MallocAsync", 0, MIB, 0))
    ask("malloc zero", [*r.answer("MallocAsync", byref(p), 0, 0), p.value])
    p.value = 0x1234
    ask("malloc huge", [*r.answer("MallocAsync", byref(p), 1 << 60, 0), p.value])
    ask("malloc", r.answer("MallocAsync", byref(p), MIB, 0))
    ask("free by cudaFree", r.answer("Free", p.value))
    ask("free again", r.answer("Free", p.value))
    ask("freeasync again", r.answer("FreeAsync", p.value, 0))
    r.MallocAsync(byref(p), MIB, 0)
    ask("freeasync", r.answer("FreeAsync", p.value, 0))
    ask("freeasync twice", r.answer("FreeAsync", p.value, 0))
    ask("freeasync null", r.answer("FreeAsync", 0, 0))
    ask("create null", r.answer("MemPoolCreate", 0, 0))
    props = (c_int * 22)(1, 0, 1, 0)
    ask("create", r.answer("MemPoolCreate", byref(other), byref(props)))
    ask("from pool", r.answer("MallocFromPoolAsync", byref(p), MIB, other, 0))
    ask("from null pool", r.answer("MallocFromPoolAsync", byref(p), MIB, 0, 0))
    ask("set as current", r.answer("DeviceSetMemPool", 0, other))
    ask("destroy", r.answer("MemPoolDestroy", other))
    for name, wrong in {
        "type": (7, 0, 1, 0),
        "place": (1, 0, 7, 0),
        "device": (1, 0, 1, 99),
        "none": (0, 0, 0, 0),
    }.items():
        ask(f"create wrong {name}", r.answer("MemPoolCreate", byref(other), byref((c_int * 22)(*wrong))))


@section
def sharing(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    handle = (c_char * 64)()
    p = c_void_p()
    d = r.malloc(4 * MIB)
    ask("null", r.answer("IpcGetMemHandle", byref(handle), 0))
    ask("get", r.answer("IpcGetMemHandle", byref(handle), d))
    r.MallocManaged(byref(p), MIB, 1)
    ask("managed", r.answer("IpcGetMemHandle", byref((c_char * 64)()), p.value))
    r.MallocHost(byref(p), MIB)
    ask("pinned", r.answer("IpcGetMemHandle", byref((c_char * 64)()), p.value))
    r.MallocAsync(byref(p), MIB, 0)
    ask("pooled", r.answer("IpcGetMemHandle", byref((c_char * 64)()), p.value))
    ask("close own", r.answer("IpcCloseMemHandle", d))
    ask("close null", r.answer("IpcCloseMemHandle", 0))
    open_handle = r.library.cudaIpcOpenMemHandle

    class Handle(ctypes.Structure):
        _fields_ = [("reserved", c_char * 64)]

    open_handle.argtypes = [c_void_p, Handle, c_uint]
    ask("open own", [open_handle(byref(p), Handle.from_buffer_copy(handle), 1), r.GetLastError()])
    ask("open nonsense", [open_handle(byref(p), Handle(b"nonsense"), 1), r.GetLastError()])
    ask("open flags", [open_handle(byref(p), Handle.from_buffer_copy(handle), 0), r.GetLastError()])


# ---- one call each, because NVIDIA's library ends the process at some of them ----


HOST = ctypes.create_string_buffer(b"abcdefgh" * 1024, 8192)
BACK = ctypes.create_string_buffer(8192)


def _lone_calls() -> dict[str, Callable[[Runtime], list[Any]]]:
    h, b = ctypes.addressof(HOST), ctypes.addressof(BACK)

    def freed(r: Runtime) -> int:
        address = r.malloc(MIB)
        r.Free(address)
        return address

    def destroyed(r: Runtime) -> c_void_p:
        stream = c_void_p()
        r.StreamCreate(byref(stream))
        r.StreamDestroy(stream)
        return stream

    return {
        "copy to the device from the device": lambda r: r.answer(
            "Memcpy", r.malloc(MIB), r.malloc(MIB), 16, 1
        ),
        "copy to the device, target on the host": lambda r: r.answer("Memcpy", b, h, 16, 1),
        "copy to the device from null": lambda r: r.answer("Memcpy", r.malloc(MIB), 0, 16, 1),
        "copy to the device at null": lambda r: r.answer("Memcpy", 0, h, 16, 1),
        "copy to the host from the host": lambda r: r.answer("Memcpy", b, h, 16, 2),
        "copy to the host from the device, at the device": lambda r: r.answer(
            "Memcpy", r.malloc(MIB), r.malloc(MIB), 16, 2
        ),
        "copy on the device, both on the host": lambda r: r.answer("Memcpy", b, h, 16, 3),
        "copy on the device, too much": lambda r: r.answer("Memcpy", r.malloc(MIB), h, 1 << 40, 3),
        "copy of hosts, both on the device": lambda r: r.answer(
            "Memcpy", r.malloc(MIB), r.malloc(MIB), 16, 0
        ),
        "copy by default from null": lambda r: r.answer("Memcpy", r.malloc(MIB), 0, 16, 4),
        "copy by default from a freed pointer": lambda r: r.answer("Memcpy", b, freed(r), 16, 4),
        "copy between devices, both on the host": lambda r: r.answer("MemcpyPeer", b, 0, h, 0, 16),
        "handle of memory to null": lambda r: r.answer("IpcGetMemHandle", 0, r.malloc(MIB)),
        "function without a name": lambda r: r.answer(
            "GetDriverEntryPointByVersion", 0, byref(c_void_p()), 12000, 0, byref(c_int())
        ),
        "wait for a destroyed stream": lambda r: r.answer("StreamSynchronize", destroyed(r)),
        "destroy a stream twice": lambda r: r.answer("StreamDestroy", destroyed(r)),
        "address of a variable to null": lambda r: r.answer("GetSymbolAddress", 0, h),
        "pitched memory to null": lambda r: r.answer("MallocPitch", 0, 0, 16, 16),
        "wait with a null result": lambda r: r.answer("EventElapsedTime", 0, 0, 0),
    }


def _lone_call(name: str) -> Callable[[Any, Answers], None]:
    def run(runtime: Runtime, answers: Answers) -> None:
        answers["answer"] = _lone_calls()[name](runtime)

    return run


for _name in _lone_calls():
    SECTIONS[_name] = _lone_call(_name)


# ---- errors ----


@section
def last_errors(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    p = c_void_p()
    ask("fails", r.Malloc(0, MIB))
    ask("last error", r.PeekAtLastError())
    ask("succeeds", r.Malloc(byref(p), MIB))
    ask("last error after a success", r.PeekAtLastError())
    other: list[int] = []
    thread = threading.Thread(target=lambda: other.append(r.PeekAtLastError()))
    thread.start()
    thread.join()
    ask("other thread", other)
    ask("get", r.GetLastError())
    ask("get again", r.GetLastError())
    r.StreamQuery(0)
    ask("not ready is no error", r.GetLastError())
    ask("success is told", r.SetDevice(0))


@section
def error_names(r: Runtime, answers: Answers) -> None:
    r.library.cudaGetErrorName.restype = r.library.cudaGetErrorString.restype = c_char_p
    for code in [*range(-1, 1100), 9999, 10000, 10001, 99999]:
        name, text = r.library.cudaGetErrorName(c_int(code)), r.library.cudaGetErrorString(c_int(code))
        if name is None or b"unrecognized" not in name:
            answers[str(code)] = [name and name.decode(), text and text.decode()]
    name, text = r.library.cudaGetErrorName(c_int(9999)), r.library.cudaGetErrorString(c_int(9999))
    answers["no such code"] = [name and name.decode(), text and text.decode()]


@section
def reset(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    d, s, e, p = r.malloc(64 * MIB), c_void_p(), c_void_p(), c_void_p()
    r.StreamCreate(byref(s))
    r.EventCreate(byref(e))
    r.Malloc(0, 1)
    ask("last error before", r.PeekAtLastError())
    ask("reset", r.DeviceReset())
    ask("last after", r.GetLastError())
    ask("active", r.primary_active())
    ask("free", r.answer("Free", d))
    ask("active after free", r.primary_active())
    ask("malloc", r.answer("Malloc", byref(p), MIB))
    ask("memset old", r.answer("Memset", d, 0, 16))
    ask("reset again", r.answer("DeviceReset"))
    ask("reset once more", r.answer("DeviceReset"))
    ask("active at the end", r.primary_active())


@section
def other_contexts(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    d = r.malloc(4 * MIB)
    context, address = c_void_p(), c_void_p()
    host = ctypes.create_string_buffer(64)
    h = ctypes.addressof(host)
    r.driver.cuCtxCreate_v2(byref(context), 0, 0)
    ask("malloc with another context current", r.answer("Malloc", byref(address), 4 * MIB))
    inner = address.value or 0
    ask("pointer of the primary: memset", r.answer("Memset", d, 0, 16))
    ask("pointer of the primary: memcpy", r.answer("Memcpy", h, d, 16, 2))
    found = PointerAttributes()
    ask(
        "pointer of the primary: attributes", [*r.answer("PointerGetAttributes", byref(found), d), found.type]
    )
    n = c_int(77)
    ask("device", [*r.answer("GetDevice", byref(n)), n.value])
    ask("reset with another context current", r.answer("DeviceReset"))
    ask("primary active", r.primary_active())
    current = c_void_p()
    r.driver.cuCtxGetCurrent(byref(current))
    ask("current is", {context.value: "the other", None: "none"}.get(current.value, "primary"))
    ask("free inner", r.answer("Free", inner))
    r.driver.cuCtxDestroy_v2(context)
    ask("after its end", r.answer("Malloc", byref(address), MIB))


@section
def pointer_of_another_context(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    r.Free(0)
    context, popped, address = c_void_p(), c_void_p(), c_void_p()
    host = ctypes.create_string_buffer(64)
    r.driver.cuCtxCreate_v2(byref(context), 0, 0)
    r.driver.cuMemAlloc_v2(byref(address), c_size_t(4 * MIB))
    r.driver.cuCtxPopCurrent_v2(byref(popped))
    inner = address.value or 0
    ask("memset", r.answer("Memset", inner, 0, 16))
    ask("memcpy", r.answer("Memcpy", ctypes.addressof(host), inner, 16, 2))
    ask("free", r.answer("Free", inner))
    ask("free again", r.answer("Free", inner))
    r.driver.cuCtxDestroy_v2(context)
    ask("after its end", r.answer("Memset", inner, 0, 16))


@section
def destroyed_current_context(r: Runtime, answers: Answers) -> None:
    context, address = c_void_p(), c_void_p()
    r.driver.cuInit(0)
    r.driver.cuCtxCreate_v2(byref(context), 0, 0)
    answers["malloc"] = r.answer("Malloc", byref(address), MIB)
    answers["primary active"] = r.primary_active()
    r.driver.cuCtxDestroy_v2(context)
    answers["malloc after"] = r.answer("Malloc", byref(address), MIB)
    answers["primary active after"] = r.primary_active()


@section
def forked_child(r: Runtime, answers: Answers) -> None:
    d = r.malloc(MIB)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        p, n = c_void_p(), c_int(77)
        found = {
            "malloc": r.answer("Malloc", byref(p), MIB),
            "free": r.answer("Free", d),
            "free null": r.answer("Free", 0),
            "device": [*r.answer("GetDevice", byref(n)), n.value],
            "count": [*r.answer("GetDeviceCount", byref(n)), n.value],
            "synchronize": r.answer("DeviceSynchronize"),
            "reset": r.answer("DeviceReset"),
            "memory": r.answer("MemGetInfo", byref(p), byref(c_size_t())),
        }
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    for name, value in json.loads(os.read(read, 65536)).items():
        answers[name] = value
    answers["parent"] = r.answer("Free", d)


@section
def no_devices(r: Runtime, answers: Answers) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    n, p = c_int(77), c_void_p()
    ask = answers.__setitem__
    ask("count", [*r.answer("GetDeviceCount", byref(n)), n.value])
    n.value = 77
    ask("device", [*r.answer("GetDevice", byref(n)), n.value])
    ask("set", r.answer("SetDevice", 0))
    ask("malloc", r.answer("Malloc", byref(p), MIB))
    ask("malloc null", r.answer("Malloc", 0, MIB))
    ask("free null", r.answer("Free", 0))
    ask("free", r.answer("Free", 16))
    ask("synchronize", r.answer("DeviceSynchronize"))
    ask("reset", r.answer("DeviceReset"))
    ask("mallochost", r.answer("MallocHost", byref(p), MIB))
    ask("driver version", [*r.answer("DriverGetVersion", byref(n)), n.value > 0])
    ask("attribute", r.answer("DeviceGetAttribute", byref(n), 13, 0))
    ask("pointer", r.answer("PointerGetAttributes", byref(PointerAttributes()), 16))
    ask("last error", r.PeekAtLastError())


@section
def unregistered_kernel(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    code = ctypes.cast(r.library.cudaMalloc, c_void_p).value
    launch = r.library.cudaLaunchKernel

    class Dim3(ctypes.Structure):
        _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]

    launch.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]
    one = Dim3(1, 1, 1)
    ask("launch", [launch(code, one, one, None, 0, None), r.GetLastError()])
    ask("launch null", [launch(None, one, one, None, 0, None), r.GetLastError()])
    ask("launch empty grid", [launch(code, Dim3(0, 1, 1), one, None, 0, None), r.GetLastError()])
    buffer = ctypes.create_string_buffer(512)
    ask("attributes", r.answer("FuncGetAttributes", buffer, code or 0))
    ask("attributes null", r.answer("FuncGetAttributes", buffer, 0))
    ask("set attribute", r.answer("FuncSetAttribute", code or 0, 8, 1024))
    ask("cache", r.answer("FuncSetCacheConfig", code or 0, 1))
    n, p = c_int(), c_void_p()
    ask("occupancy", r.answer("OccupancyMaxActiveBlocksPerMultiprocessor", byref(n), code or 0, 128, 0))
    ask("symbol", r.answer("GetSymbolAddress", byref(p), code or 0))
    ask("symbol size", r.answer("GetSymbolSize", byref(p), code or 0))
    ask("to symbol", r.answer("MemcpyToSymbol", code or 0, buffer, 4, 0, 1))


@section
def entry_points(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    p, found = c_void_p(), c_int(77)
    ask(
        "by version",
        [
            *r.answer(
                "GetDriverEntryPointByVersion", c_char_p(b"cuMemAlloc"), byref(p), 12000, 0, byref(found)
            ),
            found.value,
        ],
    )
    ask(
        "no such",
        [
            *r.answer(
                "GetDriverEntryPointByVersion", c_char_p(b"cuNonsense"), byref(p), 12000, 0, byref(found)
            ),
            found.value,
            p.value,
        ],
    )
    ask(
        "too new",
        [
            *r.answer(
                "GetDriverEntryPointByVersion", c_char_p(b"cuMemAllocAsync"), byref(p), 10000, 0, byref(found)
            ),
            found.value,
            p.value,
        ],
    )
    ask(
        "wrong flags",
        r.answer("GetDriverEntryPointByVersion", c_char_p(b"cuMemAlloc"), byref(p), 12000, 99, byref(found)),
    )
    ask(
        "plain",
        [*r.answer("GetDriverEntryPoint", c_char_p(b"cuMemAlloc"), byref(p), 0, byref(found)), found.value],
    )
    ask(
        "unknown to both, no status",
        [*r.answer("GetDriverEntryPoint", c_char_p(b"cuNonsense"), byref(p), 0, 0), p.value],
    )


@section
def capture(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    n = c_int(77)
    for mode in (0, 1, 2, 9):
        n.value = mode
        ask(f"exchange {mode}", [*r.answer("ThreadExchangeStreamCaptureMode", byref(n)), n.value])
    n.value = 0
    r.ThreadExchangeStreamCaptureMode(byref(n))
    identity = ctypes.c_uint64(77)
    s = c_void_p()
    r.StreamCreate(byref(s))
    name = "StreamGetCaptureInfo" if r.major > 12 else "StreamGetCaptureInfo_v2"
    ask("info", [*r.answer(name, s, byref(n), byref(identity), 0, 0, 0, 0), n.value])
    ask("info legacy", [*r.answer(name, 0, byref(n), byref(identity), 0, 0, 0, 0), n.value])


OTHER = "OTHER_LIBCUDART"
"""The variable with the path of a second runtime, of another version, for the sections that need two."""


@section
def two_runtimes(r: Runtime, answers: Answers) -> None:
    ask = answers.__setitem__
    other = Runtime(os.environ[OTHER])
    ask("versions differ", other.major != r.major)
    p, n = c_void_p(), c_int(77)
    d = r.malloc(4 * MIB)
    ask("freed by the other", other.answer("Free", d))
    ask("freed again", r.answer("Free", d))
    ask("fails here", r.Malloc(0, MIB))
    ask("last error there", other.PeekAtLastError())
    ask("last error here", r.GetLastError())
    ask("device there", [*other.answer("GetDevice", byref(n)), n.value])
    e = other.malloc(4 * MIB)
    ask("memset here", r.answer("Memset", e, 0, 16))
    s = c_void_p()
    ask("stream made there", other.answer("StreamCreate", byref(s)))
    ask("waited for here", r.answer("StreamSynchronize", s))
    ask("reset here", r.answer("DeviceReset"))
    ask("free there", other.answer("Free", e))
    ask("malloc there", other.answer("Malloc", byref(p), MIB))
    ask("malloc here", r.answer("Malloc", byref(p), MIB))
    ask("reset there", other.answer("DeviceReset"))
    ask("active", r.primary_active())
    ask("malloc here again", r.answer("Malloc", byref(p), MIB))


# ---- running ----


class Told(dict[str, Any]):
    """Answers that are written down as they are set, so that a crash loses none."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def __setitem__(self, name: str, value: Any) -> None:
        os.write(self._descriptor, json.dumps([name, value]).encode() + b"\n")


def run_section(name: str, path: str) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        answers = Told(write)
        try:
            SECTIONS[name](Runtime(path), answers)
        except Exception as error:
            answers["failed"] = f"{type(error).__name__}: {error}"
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = dict(json.loads(line) for line in pipe)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        found["then"] = signal.Signals(os.WTERMSIG(status)).name
    return found


def main() -> None:
    path, names = sys.argv[1], sys.argv[2:] or list(SECTIONS)
    # None looks at what others hold, and most of the time goes into making contexts.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = dict(zip(names, pool.map(lambda name: run_section(name, path), names), strict=True))
    lines = (f"{json.dumps(name)}: {json.dumps(answers)}" for name, answers in found.items())
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
