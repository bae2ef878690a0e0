"""Every kind of context on real hardware, and contexts that an error broke: what is said of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.prestart import run_with
from tests.needs import needs, skip_without
from tests.search_path import search_path
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

# Raw calls alone, in a process that no framework has given a primary context.
PREAMBLE = """\
import ctypes, json, os, sys, threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
import vram
from vram.guard.memory import device_memory
from vram.units import GIB, MIB

cuda = ctypes.CDLL("libcuda.so.1")

def tell(value):
    print(json.dumps(value), flush=True)

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)

def own_context():
    context = c_void_p()
    call("cuCtxCreate_v2", byref(context), c_uint(0), c_int(0))
    return context

def alloc(nbytes):
    pointer = c_uint64()
    call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
    return pointer

def free_into_pool(nbytes):
    pool, pointer, everything = c_void_p(), c_uint64(), c_uint64(2**64 - 1)
    call("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
    call("cuMemPoolSetAttribute", pool, c_int(4), byref(everything))
    call("cuMemAllocAsync", byref(pointer), c_size_t(nbytes), None)
    call("cuMemFreeAsync", pointer, None)
    call("cuCtxSynchronize")

def primary_is_active():
    flags, active = c_uint(), c_int()
    call("cuDevicePrimaryCtxGetState", c_int(0), byref(flags), byref(active))
    return active.value

def told(report):
    return {
        "used": [each.used for each in report.after],
        "returned": report.returned,
        "unentered": list(report.unreachable),
        "broken": [[each.device, each.code] for each in report.broken],
        "refused": report.refused,
        "text": repr(report),
    }

def leave():
    # A broken context may abort the program when libraries are taken down.
    sys.stdout.flush()
    os._exit(0)
"""

# Writes to an address that is nobody's.
FAULT = """
PTX = b'''
.version 7.0
.target sm_80
.address_size 64
.visible .entry fault()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u32 %r1, 1;
    mov.u64 %rd1, 16;
    st.global.u32 [%rd1], %r1;
    ret;
}
'''

def fault():
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), PTX)
    call("cuModuleGetFunction", byref(function), module, b"fault")
    one, none = c_uint(1), c_uint(0)
    call("cuLaunchKernel", function, one, one, one, one, one, one, none, None, None, None)

def codes_afterwards():
    # Which calls a broken context refuses: the virtual GPU should answer alike.
    where, number, free = c_void_p(), c_int(), c_size_t()
    asked = {
        "cuCtxSynchronize": (),
        "cuMemGetInfo_v2": (byref(free), byref(c_size_t())),
        "cuStreamQuery": (None,),
        "cuMemAlloc_v2": (byref(c_uint64()), c_size_t(MIB)),
        "cuMemFree_v2": (c_uint64(0),),
        "cuCtxGetDevice": (byref(number),),
        "cuCtxGetCurrent": (byref(where),),
        "cuDeviceGetCount": (byref(number),),
        "cuDevicePrimaryCtxGetState": (c_int(0), byref(c_uint()), byref(number)),
        "cuThreadExchangeStreamCaptureMode": (byref(c_int(2)),),
        "cuStreamIsCapturing": (None, byref(number)),
        "cuCtxPushCurrent_v2": (where,),
        "cuCtxPopCurrent_v2": (byref(where),),
    }
    return {name: getattr(cuda, name)(*arguments) for name, arguments in asked.items()}
"""


def result(program: str, preamble: str = PREAMBLE) -> Any:
    code = preamble + dedent(program)
    if "import torch" in program:
        done = run_with("torch", code, {"COLUMNS": "80"}, timeout_s=110)
    else:
        environment = os.environ | {"PYTHONPATH": search_path(), "COLUMNS": "80"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=110
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_context_of_the_programs_own_is_seen_from_every_thread(record: Record) -> None:
    """Its pool is trimmed where it is current; elsewhere that is said. No primary context is made."""
    seen = result(
        """
        call("cuInit", 0)
        context = own_context()
        pointer = alloc(1536 * MIB)
        free_into_pool(256 * MIB)
        reports = []
        thread = threading.Thread(target=lambda: reports.append(vram.flush()))
        thread.start()
        thread.join()
        reports.append(vram.flush())
        primary = primary_is_active()
        call("cuCtxDestroy_v2", context)
        tell([*map(told, reports), primary, device_memory(0).used])
        """
    )
    elsewhere, here, primary, after = seen
    record(elsewhere=elsewhere, here=here, after=after)
    assert primary == 0
    assert elsewhere["unentered"] == [0]
    assert elsewhere["used"][0] >= 1792 * MIB
    assert "nothing could be freed from this thread" in elsewhere["text"]
    assert here["unentered"] == []
    assert here["returned"] >= 256 * MIB
    assert 1536 * MIB <= here["used"][0] < 1536 * MIB + GIB
    assert after < 1536 * MIB


def test_memory_in_a_green_context_is_seen(record: Record) -> None:
    seen = result(
        """
        call("cuInit", 0)
        if not hasattr(cuda, "cuGreenCtxCreate"):
            tell("this driver has no green contexts")
            leave()
        whole, part = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512)
        groups, description, green, context = c_uint(1), c_void_p(), c_void_p(), c_void_p()
        call("cuDeviceGetDevResource", c_int(0), whole, c_int(1))
        call("cuDevSmResourceSplitByCount", part, byref(groups), whole, None, c_uint(0), c_uint(16))
        call("cuDevResourceGenerateDesc", byref(description), part, c_uint(1))
        call("cuGreenCtxCreate", byref(green), description, c_int(0), c_uint(1))
        call("cuCtxFromGreenCtx", byref(context), green)
        call("cuCtxPushCurrent_v2", context)
        pointer = alloc(1536 * MIB)
        tell([told(vram.flush()), primary_is_active()])
        """
    )
    if isinstance(seen, str):
        skip_without("h200", seen)
    report, primary = seen
    record(report=report)
    assert primary == 1
    assert report["refused"] == ""
    assert report["used"][0] >= 1536 * MIB


def test_a_context_of_the_programs_own_that_an_illegal_address_broke(record: Record) -> None:
    """Nobody has waited for the kernel: the flush does, and finds it."""
    seen = result(
        """
        call("cuInit", 0)
        own_context()
        pointer = alloc(1536 * MIB)
        fault()
        report = told(vram.flush())
        codes = codes_afterwards()
        freed = cuda.cuMemFree_v2(pointer)
        tell([report, codes, freed, device_memory(0).used, told(vram.flush())])
        leave()
        """,
        PREAMBLE + FAULT,
    )
    report, codes, freed, used, again = seen
    record(report=report, codes=codes, freed=freed, used=used)
    assert report["broken"] == again["broken"] == [[0, 700]]
    assert "end the process to get its" in report["refused"]
    assert report["used"][0] >= 1536 * MIB
    assert (codes["cuCtxSynchronize"], codes["cuMemGetInfo_v2"], freed) == (700, 700, 700)
    assert used >= 1536 * MIB


@needs("torch")
def test_what_pytorch_holds_after_a_failed_assert_on_the_device(record: Record) -> None:
    """An index out of range in an embedding: nothing is retried, nothing comes back before the end."""
    seen = result(
        """
        import torch
        held = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
        table = torch.nn.Embedding(10, 4).cuda()
        outside = torch.tensor([10_000], device="cuda")
        tried = []

        @vram.retry_on_oom
        def step():
            tried.append(1)
            with vram.scope("step", leak="report"):
                table(outside)
                torch.cuda.synchronize()

        try:
            step()
        except RuntimeError as error:
            raised, notes = f"{type(error).__module__}.{type(error).__name__}: {error}", error.__notes__
        report = told(vram.flush())
        del held
        try:
            torch.cuda.empty_cache()
            emptied = "empty_cache() raised nothing"
        except RuntimeError as error:
            emptied = type(error).__name__
        tell([raised.splitlines()[0], notes, len(tried), report, emptied, device_memory(0).used,
              codes_afterwards()])
        leave()
        """,
        PREAMBLE + FAULT,
    )
    raised, notes, tried, report, emptied, used, codes = seen
    record(raised=raised, notes=notes, report=report, emptied=emptied, used=used, codes=codes)
    assert "device-side assert triggered" in raised
    assert tried == 1
    assert len(notes) == 1
    assert "CUDA_ERROR_ASSERT, 710" in notes[0]
    assert [code for _, code in report["broken"]] == [710]
    assert "end the process to get its" in report["refused"]
    assert report["used"][0] >= GIB
    assert used >= GIB
