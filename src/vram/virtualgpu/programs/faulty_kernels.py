"""Kernels that fail on purpose, each with the error that it leaves in its context.

A fault ends the work of the context that it happened in. It reaches no other process.

On the virtual GPU no kernel runs: there a line of VRAM_VIRTUAL_FAULTS, in the worker's own environment, breaks
the context at the first synchronisation instead.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_void_p

import driver

NOT_SUPPORTED = 801

_HEADER = """
.version 6.0
.target sm_52
.address_size 64
"""

# To address 16, which belongs to nobody: CUDA_ERROR_ILLEGAL_ADDRESS (700).
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
    .param .b64 p0;
    .param .b64 p1;
    .param .b32 p2;
    .param .b64 p3;
    .param .b64 p4;
    st.param.b64 [p0], %rd2;
    st.param.b64 [p1], %rd2;
    st.param.b32 [p2], %r1;
    st.param.b64 [p3], %rd2;
    st.param.b64 [p4], %rd3;
    call.uni __assertfail, (p0, p1, p2, p3, p4);
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

KERNELS = {"illegal address": ILLEGAL_ADDRESS, "assert": ASSERT, "launch failed": TRAP}


def launch_fault(kind: str) -> bool:
    """Launch the kernel that fails by *kind*, and do not wait for it; False where kernels do not run."""
    module, kernel, one = c_void_p(), c_void_p(), c_uint(1)
    answer = driver.code("cuModuleLoadData", byref(module), (_HEADER + KERNELS[kind]).encode())
    if answer == NOT_SUPPORTED:
        return False
    if answer:
        raise driver.CudaError("cuModuleLoadData", answer)
    driver.call("cuModuleGetFunction", byref(kernel), module, b"fault")
    none = (c_void_p * 1)()
    driver.call("cuLaunchKernel", kernel, *(one,) * 6, c_uint(0), None, ctypes.byref(none), None)
    return True


def break_context(kind: str) -> int:
    """Launch it and wait; return what the wait answers."""
    launch_fault(kind)
    return driver.code("cuCtxSynchronize")
