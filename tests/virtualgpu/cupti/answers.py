"""What CUPTI tells a subscriber, and what it answers: NVIDIA's library on a GPU, and the virtual one.

    python answers.py LIBCUPTI          every part, each in a process of its own; prints one JSON object
    python answers.py LIBCUPTI PART     one of them

`h200-13.json` is what CUPTI 13.0 answered on an H200 with driver 580.159.04.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from subscriber import DRIVER, RESOURCE, Data, Subscriber, allocate, cuda, start

MEMORY = ctypes.c_size_t(1 << 20)


def order(library: str) -> Any:
    """Which calls are told, in which order with contexts and streams."""
    told: dict[str, Any] = {}
    one = Subscriber(library)
    one.subscribe(DRIVER, RESOURCE)
    address, context, other, stream = (
        ctypes.c_uint64(),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
    )
    found, status, number, text = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    nothing = ctypes.c_void_p()
    calls: list[tuple[str, str, tuple[Any, ...]]] = [
        ("before cuInit", "cuMemAlloc_v2", (ctypes.byref(address), MEMORY)),
        ("cuInit", "cuInit", (0,)),
        ("cuInit again", "cuInit", (0,)),
        ("retain", "cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
        ("retain again", "cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
        ("set current", "cuCtxSetCurrent", (context,)),
        ("allocate", "cuMemAlloc_v2", (ctypes.byref(address), MEMORY)),
        ("free", "cuMemFree_v2", (address,)),
        ("free what is not there", "cuMemFree_v2", (ctypes.c_uint64(12345),)),
        ("too much", "cuMemAlloc_v2", (ctypes.byref(address), ctypes.c_size_t(1 << 50))),
        ("create", "cuCtxCreate_v2", (ctypes.byref(other), 0, 0)),
        ("stream", "cuStreamCreate", (ctypes.byref(stream), 0)),
        ("end of the stream", "cuStreamDestroy_v2", (stream,)),
        ("per thread", "cuMemAllocAsync_ptsz", (ctypes.byref(address), MEMORY, nothing)),
        ("free per thread", "cuMemFreeAsync_ptsz", (address, nothing)),
        ("destroy", "cuCtxDestroy_v2", (other,)),
        ("release", "cuDevicePrimaryCtxRelease_v2", (0,)),
        ("last release", "cuDevicePrimaryCtxRelease_v2", (0,)),
        ("retain after the end", "cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
        ("reset", "cuDevicePrimaryCtxReset_v2", (0,)),
        (
            "look up",
            "cuGetProcAddress_v2",
            (b"cuMemAlloc", ctypes.byref(found), 12000, 0, ctypes.byref(status)),
        ),
        ("version", "cuDriverGetVersion", (ctypes.byref(number),)),
        ("error name", "cuGetErrorName", (2, ctypes.byref(text))),
    ]
    for title, name, arguments in calls:
        code = getattr(cuda, name)(*arguments)
        told[title] = [code, one.take()]
    return told


def nested(library: str) -> Any:
    """Calls that a callback makes."""
    one = Subscriber(library)
    one.subscribe(DRIVER, RESOURCE)
    start()
    one.take()
    codes = []

    def enter(name: str, data: Data) -> None:
        one.on_enter = None
        current, device = ctypes.c_void_p(), ctypes.c_int(-1)
        codes.append(cuda.cuCtxGetCurrent(ctypes.byref(current)))
        codes.append(cuda.cuCtxGetDevice(ctypes.byref(device)))
        codes.append(current.value == data.context)
        codes.append(device.value)
        codes.append(allocate()[0])

    one.on_enter = enter
    allocate()
    inside = one.take()
    allocate()
    return {"codes": codes, "inside": inside, "after": [event[1] for event in one.take()]}


def writes(library: str) -> Any:
    """What becomes of a result and of parameters that a callback writes to."""

    class Parameters(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))

    one = Subscriber(library)
    one.subscribe(DRIVER)
    start()

    def parameters(data: Data) -> Parameters:
        found: Parameters = ctypes.cast(data.parameters or 0, ctypes.POINTER(Parameters)).contents
        return found

    def result(name: str, data: Data) -> None:
        data.return_value[0] = 2

    def size(name: str, data: Data) -> None:
        parameters(data).nbytes = 1 << 50

    def place(name: str, data: Data) -> None:
        parameters(data).address = None

    answers = {}
    one.on_exit = result
    code, address = allocate()
    answers["result at the exit"] = [code, address != 0]
    one.on_exit, one.on_enter = None, size
    answers["size at the entry"] = list(allocate())
    one.on_enter = place
    answers["no place at the entry"] = list(allocate())
    return answers


def switches(library: str) -> Any:
    """Turning callbacks on and off, subscribing and unsubscribing, also inside a callback."""
    one = Subscriber(library)
    told: dict[str, Any] = {"subscribe": one.subscribe(DRIVER)}
    start()
    one.take()

    def brief() -> Any:
        allocate()
        return [event[:4] for event in one.take()]

    def off(name: str, data: Data) -> None:
        one.enable(243, 0)

    def end(name: str, data: Data) -> None:
        one.on_enter = None
        told["unsubscribe inside"] = one.unsubscribe()

    def note(name: str, data: Data) -> None:
        data.correlation_data[0] = 4711

    one.on_enter = off
    told["off inside the entry"] = brief()
    one.on_enter = None
    told["then"] = brief()
    told["on"] = [one.enable(243), brief()]
    told["domain off"] = [one.enable_domain(DRIVER, 0), brief()]
    one.enable(243)
    one.on_enter = note
    allocate()
    told["correlation data"] = [event[-1] for event in one.take()]
    one.on_enter = None
    second = Subscriber(library)
    told["second subscriber"] = [second.subscribe(), second.handle.value]
    told["unsubscribe"] = [one.unsubscribe(), brief()]
    told["again"] = [one.unsubscribe(), one.enable(243)]
    told["second now"] = [second.subscribe(DRIVER), second.unsubscribe()]
    told["first again"] = [one.subscribe(DRIVER), brief()]
    one.on_enter = end
    told["end inside the entry"] = brief()
    told["after it"] = [one.subscribe(DRIVER), brief()]
    told["finalize"] = [int(one.cupti.cuptiFinalize()), brief()]
    told["after finalize"] = [one.subscribe(DRIVER), brief()]
    return told


def errors(library: str) -> Any:
    """Arguments that are wrong, names and numbers."""
    one = Subscriber(library)
    cupti, told = one.cupti, {}
    state, text, number = ctypes.c_uint32(7), ctypes.c_char_p(), ctypes.c_uint32()
    told["no place for the handle"] = cupti.cuptiSubscribe(None, one._callback, None)
    told["no callback"] = cupti.cuptiSubscribe(ctypes.byref(one.handle), None, None)
    told["subscribed by it"] = Subscriber(library).subscribe()
    told["unsubscribe"] = [one.unsubscribe(), cupti.cuptiUnsubscribe(None)]
    told["subscribe"] = one.subscribe()
    told["domains"] = [one.enable_domain(domain) for domain in (0, 1, 2, 3, 4, 5, 6, 7, 99)]
    cbids = (0, 1, 243, 700, 806, 807, 5000, 0xFFFFFFFF)
    told["driver ids"] = [one.enable(cbid) for cbid in cbids]
    told["resource ids"] = [one.enable(cbid, domain=RESOURCE) for cbid in (0, 1, 5, 23, 24, 99)]
    told["state"] = [cupti.cuptiGetCallbackState(ctypes.byref(state), one.handle, 1, 243), state.value]
    told["off"] = one.enable(243, 0)
    told["state off"] = [cupti.cuptiGetCallbackState(ctypes.byref(state), one.handle, 1, 243), state.value]
    told["no place for the state"] = cupti.cuptiGetCallbackState(None, one.handle, 1, 243)
    told["no subscriber"] = cupti.cuptiEnableCallback(1, None, 1, 243)
    told["all domains"] = cupti.cuptiEnableAllDomains(1, one.handle)
    names = {}
    for domain, cbid in ((1, 0), (1, 1), (1, 243), (1, 307), (1, 599), (1, 5000), (0, 0), (3, 1), (7, 1)):
        names[f"{domain}.{cbid}"] = [
            cupti.cuptiGetCallbackName(domain, cbid, ctypes.byref(text)),
            _text(text),
        ]
    told["callback names"] = names
    for code in (0, 1, 8, 39, 999, 5000):
        told[f"result {code}"] = [cupti.cuptiGetResultString(code, ctypes.byref(text)), _text(text)]
    told["no place"] = [cupti.cuptiGetCallbackName(1, 243, None), cupti.cuptiGetResultString(0, None)]
    told["version"] = [cupti.cuptiGetVersion(ctypes.byref(number)), number.value, cupti.cuptiGetVersion(None)]
    context = start()
    told["context id"] = [cupti.cuptiGetContextId(context, ctypes.byref(number)), number.value]
    told["device id"] = [cupti.cuptiGetDeviceId(context, ctypes.byref(number)), number.value]
    return told


def named(library: str) -> Any:
    """Subscribers with names, which CUDA 13 brought."""

    class Names(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_size_t),
            ("name", ctypes.c_char_p),
            ("old_name", ctypes.c_void_p),
            ("old_name_size", ctypes.c_size_t),
        )

    one, told = Subscriber(library), {}
    if not hasattr(one.cupti, "cuptiSubscribe_v2"):
        return None
    subscribe, second = one.cupti.cuptiSubscribe_v2, ctypes.c_void_p()
    old = ctypes.create_string_buffer(b"untouched", 64)
    first = Names(ctypes.sizeof(Names), b"vram", None, 0)
    other = Names(ctypes.sizeof(Names), b"other", ctypes.addressof(old), 64)
    told["first"] = subscribe(ctypes.byref(one.handle), one._callback, None, ctypes.byref(first))
    code = subscribe(ctypes.byref(second), one._callback, None, ctypes.byref(other))
    told["second"] = [code, old.value.decode()]
    told["second without names"] = subscribe(ctypes.byref(second), one._callback, None, None)
    told["unsubscribe"] = one.unsubscribe()
    plain = Subscriber(library)
    told["plain"] = plain.subscribe()
    code = subscribe(ctypes.byref(second), one._callback, None, ctypes.byref(other))
    told["after a plain one"] = [code, old.value.decode()]
    plain.unsubscribe()
    told["alone without names"] = subscribe(ctypes.byref(second), one._callback, None, None)
    return told


def fork(library: str) -> Any:
    """A child of a process that is subscribed."""
    one = Subscriber(library)
    one.subscribe(DRIVER)
    start()
    one.take()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        code = allocate()[0]
        told = [code, one.take(), one.unsubscribe(), one.subscribe()]
        os.write(writable, json.dumps(told).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(os.read(readable, 1 << 16))


def injected(library: str) -> Any:
    """A library that the driver loads in cuInit, and that subscribes there (injected.c)."""
    log = os.environ["INJECTED_LOG"]
    start()
    allocate()
    with open(log) as lines:
        return lines.read().splitlines()


def _text(text: ctypes.c_char_p) -> str | None:
    return text.value.decode() if text.value is not None else None


PARTS = {part.__name__: part for part in (order, nested, writes, switches, errors, named, fork, injected)}


def main(library: str, *parts: str) -> None:
    if parts:
        print(json.dumps(PARTS[parts[0]](library)), flush=True)
        os._exit(0)  # without the end of the driver, which is no part of the question
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"injected": injection(library, Path(folder))}
        for name in PARTS:
            changes = environment.get(name, {})
            done = subprocess.run(
                [sys.executable, __file__, library, name],
                env={**os.environ, **changes},
                stdout=subprocess.PIPE,
                timeout=60,
                check=True,
            )
            answers[name] = json.loads(done.stdout)
    print(json.dumps(answers, indent=1))


def injection(library: str, folder: Path) -> dict[str, str]:
    """Compile the library for the driver to load, and say so in a program's environment."""
    built = folder / "injected.so"
    source = Path(__file__).with_name("injected.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    log = str(folder / "log")
    return {"CUDA_INJECTION64_PATH": str(built), "INJECTED_CUPTI": library, "INJECTED_LOG": log}


if __name__ == "__main__":
    main(*sys.argv[1:])
