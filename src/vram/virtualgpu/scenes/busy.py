"""What keeps a device busy on a puppet's behalf: queued host work, kernels, graphs."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import driver

NON_BLOCKING = 1
RELAXED_CAPTURE = 2
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

LOCAL_NBYTES = 3072
"""Local memory of one thread of the deep kernel. The driver sets so much aside for every thread
that could run at once: 540 MiB more than at first on 132 processors with 2048 threads each."""

PTX = f"""
.version 6.0
.target sm_52
.address_size 64

.visible .entry nothing()
{{
    ret;
}}

.visible .entry deep(.param .u64 deep_out, .param .u32 deep_at)
{{
    .local .align 4 .b8 room[{LOCAL_NBYTES}];
    .reg .b64 %rd<6>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [deep_out];
    ld.param.u32 %r1, [deep_at];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, room;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4;
    st.local.u32 [%rd5], %r1;
    ld.local.u32 %r2, [%rd3+4];
    st.global.u32 [%rd2], %r2;
    ret;
}}
"""

functions: dict[str, c_void_p] = {}
graphs: dict[str, c_void_p] = {}


def new_stream() -> c_void_p:
    stream = c_void_p()
    driver.call("cuStreamCreate", byref(stream), c_uint(NON_BLOCKING))
    return stream


def free_behind_work(pointer: int, seconds: float) -> dict[str, float]:
    """Free while a stream still works; return when the free began and ended, and when the work did.

    The work is a host function that takes its time, so that no kernel is needed.
    """
    moments: dict[str, float] = {}

    def take_time(_: object) -> None:
        time.sleep(seconds)
        moments["worked"] = time.monotonic()

    work = HOST_FUNCTION(take_time)
    stream = new_stream()
    driver.call("cuLaunchHostFunc", stream, work, None)
    moments["began"] = time.monotonic()
    driver.free(pointer)
    moments["freed"] = time.monotonic()
    driver.call("cuStreamSynchronize", stream)
    return moments


# ---- kernels ----


def load_kernels() -> None:
    module = c_void_p()
    driver.call("cuModuleLoadData", byref(module), PTX.encode())
    for name in ("nothing", "deep"):
        functions[name] = c_void_p()
        driver.call("cuModuleGetFunction", byref(functions[name]), module, name.encode())


def launch_nothing(times: int) -> None:
    """Launch an empty kernel again and again, and wait for the last."""
    for _ in range(times):
        launch(functions["nothing"])
    driver.call("cuCtxSynchronize")


def launch_deep(out: int) -> None:
    """Launch one thread that needs much local memory, and wait for it."""
    launch(functions["deep"], c_uint64(out), c_uint(1))
    driver.call("cuCtxSynchronize")


def launch(function: c_void_p, *parameters: Any) -> None:
    places = (c_void_p * max(1, len(parameters)))(*(ctypes.addressof(value) for value in parameters))
    one = c_uint(1)
    driver.call("cuLaunchKernel", function, *(one,) * 6, c_uint(0), None, places, None)


# ---- graphs ----


def run_graph(nbytes: int) -> None:
    """Capture a graph that allocates and frees, and launch it once."""
    stream, graph, runnable, pointer = new_stream(), c_void_p(), c_void_p(), c_uint64()
    driver.call("cuStreamBeginCapture_v2", stream, c_int(RELAXED_CAPTURE))
    driver.call("cuMemAllocAsync", byref(pointer), c_size_t(nbytes), stream)
    driver.call("cuMemFreeAsync", pointer, stream)
    driver.call("cuStreamEndCapture", stream, byref(graph))
    driver.call("cuGraphInstantiateWithFlags", byref(runnable), graph, c_uint64(0))
    driver.call("cuGraphLaunch", runnable, stream)
    driver.call("cuStreamSynchronize", stream)
    graphs.update(graph=graph, runnable=runnable)


def destroy_graph() -> None:
    driver.call("cuGraphExecDestroy", graphs["runnable"])
    driver.call("cuGraphDestroy", graphs["graph"])


def trim_graph_memory() -> None:
    driver.call("cuDeviceGraphMemTrim", 0)


VERBS = (
    *(free_behind_work, load_kernels, launch_nothing, launch_deep),
    *(run_graph, destroy_graph, trim_graph_memory),
)
