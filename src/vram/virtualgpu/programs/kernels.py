"""Kernels for the lab's worker, as PTX: some that work, and some that fail on purpose.

A fault ends the work of the process that caused it, and under MPS of the other clients too: its caller sees
to it that there are none. On the virtual GPU no kernel runs: there a line of VRAM_VIRTUAL_FAULTS, in the
worker's own environment, breaks the context at the first synchronisation instead.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import c_size_t, c_uint, c_uint64, c_void_p

import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_SUPPORTED = 801

LOCAL_NBYTES = 3072
"""Local memory of one thread of the kernel ``deep``. The driver sets so much aside for every thread
that could run at once: 540 MiB more than at first on 132 processors with 2048 threads each."""

HEADER = """
.version 6.0
.target sm_52
.address_size 64
"""

EMPTY_AND_DEEP = f"""
.visible .entry empty()
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

# Reads and writes one word of every page of 4 KiB.
TOUCH = """
.visible .entry touch(.param .u64 touch_at, .param .u64 touch_pages)
{
    .reg .b64 %rd<6>;
    .reg .b32 %r<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [touch_at];
    ld.param.u64 %rd2, [touch_pages];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd3, %r4;
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 ret;
    shl.b64 %rd4, %rd3, 12;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.u32 %r5, [%rd5];
    add.s32 %r5, %r5, 1;
    st.global.u32 [%rd5], %r5;
    ret;
}
"""

# What malloc() and free() in a kernel are: functions of the driver, with a heap of the context.
MALLOC = """
.extern .func (.param .b64 pointer) malloc (.param .b64 nbytes);
.extern .func free (.param .b64 pointer);

.visible .entry take(.param .u64 take_out, .param .u64 take_nbytes)
{
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [take_out];
    ld.param.u64 %rd2, [take_nbytes];
    cvta.to.global.u64 %rd3, %rd1;
    {
        .param .b64 p0;
        st.param.b64 [p0], %rd2;
        .param .b64 r0;
        call.uni (r0), malloc, (p0);
        ld.param.b64 %rd4, [r0];
    }
    st.global.u64 [%rd3], %rd4;
    ret;
}

.visible .entry release(.param .u64 release_pointer)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [release_pointer];
    {
        .param .b64 p0;
        st.param.b64 [p0], %rd1;
        call.uni free, (p0);
    }
    ret;
}
"""
LIMIT_MALLOC_HEAP_SIZE = 2

kernels: dict[str, c_void_p] = {}


def load_kernels() -> None:
    _load(EMPTY_AND_DEEP + TOUCH, "empty", "deep", "touch")


def load_malloc(heap_nbytes: int) -> None:
    """Load the kernels that allocate and free; the size of their heap is set before."""
    driver.call("cuCtxSetLimit", LIMIT_MALLOC_HEAP_SIZE, c_size_t(heap_nbytes))
    _load(MALLOC, "take", "release")


def _load(code: str, *names: str) -> None:
    module = driver.result(c_void_p, "cuModuleLoadData", (HEADER + code).encode())
    for name in names:
        kernels[name] = driver.result(c_void_p, "cuModuleGetFunction", module, name.encode())


def launch_empty(times: int) -> None:
    """Launch an empty kernel again and again, and wait for the last."""
    for _ in range(times):
        _launch(kernels["empty"])
    driver.call("cuCtxSynchronize")


def launch_deep(out: int, times: int = 1) -> None:
    """Launch one thread that needs much local memory, again and again, and wait for the last."""
    for _ in range(times):
        _launch(kernels["deep"], c_uint64(out), c_uint(1))
    driver.call("cuCtxSynchronize")


def kernel_malloc(out: int, nbytes: int) -> int:
    """Have a kernel call malloc; return what it was given, 0 where it was refused. *out* has room for it."""
    _launch(kernels["take"], c_uint64(out), c_uint64(nbytes))
    driver.call("cuCtxSynchronize")
    return int.from_bytes(driver.read(out, 8), "little")


def kernel_free(pointer: int) -> None:
    """Have a kernel free what another one was given."""
    _launch(kernels["release"], c_uint64(pointer))
    driver.call("cuCtxSynchronize")


def touch_s(pointer: int, nbytes: int) -> float:
    """Have a kernel read and write in every page; return the seconds until it was done."""
    pages = nbytes // 4096
    began = time.monotonic()
    _launch(kernels["touch"], c_uint64(pointer), c_uint64(pages), blocks=-(-pages // 256), threads=256)
    driver.call("cuCtxSynchronize")
    return time.monotonic() - began


def _launch(kernel: c_void_p, *parameters: Any, blocks: int = 1, threads: int = 1) -> None:
    addresses = (c_void_p * max(1, len(parameters)))(*(ctypes.addressof(value) for value in parameters))
    one = c_uint(1)
    shape = (c_uint(blocks), one, one, c_uint(threads), one, one)
    driver.call("cuLaunchKernel", kernel, *shape, c_uint(0), None, addresses, None)


# ---- kernels that fail ----

# To address 16, which no allocation has: CUDA_ERROR_ILLEGAL_ADDRESS (700).
ILLEGAL_ADDRESS = """
.visible .entry fault()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

# What a failed assert() in a kernel does: CUDA_ERROR_ASSERT (710).
ASSERT = """
.extern .func __assertfail
(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 width);
.global .align 1 .b8 text[4] = {108, 97, 98, 0};

.visible .entry fault()
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    mov.u64 %rd3, 1;
    {
        .param .b64 p0;
        st.param.b64 [p0], %rd2;
        .param .b64 p1;
        st.param.b64 [p1], %rd2;
        .param .b32 p2;
        st.param.b32 [p2], %r1;
        .param .b64 p3;
        st.param.b64 [p3], %rd2;
        .param .b64 p4;
        st.param.b64 [p4], %rd3;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }
    ret;
}
"""

# CUDA_ERROR_LAUNCH_FAILED (719).
TRAP = """
.visible .entry fault()
{
    trap;
    ret;
}
"""

FAULTS = {"illegal address": ILLEGAL_ADDRESS, "assert": ASSERT, "launch failed": TRAP}


def launch_fault(kind: str) -> bool:
    """Launch the kernel that fails by *kind*, and do not wait for it; False where kernels do not run."""
    try:
        module = driver.result(c_void_p, "cuModuleLoadData", (HEADER + FAULTS[kind]).encode())
    except driver.CudaError as error:
        if error.code == NOT_SUPPORTED:
            return False
        raise
    _launch(driver.result(c_void_p, "cuModuleGetFunction", module, b"fault"))
    return True


def break_context(kind: str) -> int:
    """Launch it and wait; return what the wait answers."""
    launch_fault(kind)
    return driver.code("cuCtxSynchronize")
