"""Buffers, scrubbing and remanence on real hardware, with PyTorch, CuPy, JAX and Numba.

python -m pytest --real-gpu -s tests/hardware/test_owner.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.guard.owner import PREAMBLE
from tests.hardware.conftest import Record
from tests.hardware.prestart import run_with
from tests.needs import needs
from tests.search_path import search_path
from vram.units import MIB

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

# The pool keeps a piece of 32 MiB or so of what was freed into it.
POOL_KEEPS = 64 * MIB
# Mapping memory can cost a page or two of the device for the tables, which the context keeps.
PAGE_TABLES = 4 * MIB


@pytest.fixture(scope="module", autouse=True)
def _native(real_gpu: bool) -> None:
    """The library behind DLPack is there and current; without a compiler, the one that came along."""
    if real_gpu:
        subprocess.run([sys.executable, ROOT / "native" / "build.py"], check=False, stdout=subprocess.DEVNULL)


def told(program: str) -> Any:
    """Run *program* in a process of its own; the last value that it told."""
    code = PREAMBLE + dedent(program)
    if "import torch" in program:
        done = run_with("torch", code, {}, timeout_s=120)
    else:
        environment = os.environ | {"PYTHONPATH": search_path(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        argv = [sys.executable, "-X", "faulthandler", "-c", code]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kind_frees_what_it_took(record: Record) -> None:
    figures = told(
        """
        makers = {"device": Buffer, "managed": Buffer.managed, "pinned": Buffer.pinned,
                  "zero-copy": Buffer.zero_copy, "pitched": lambda n: Buffer.pitched(4096, n // 4096),
                  "stream-ordered": lambda n: Buffer(n, stream=0)}
        for make in makers.values():  # the driver takes a little for itself at each first time
            with make(MIB) as buffer:
                buffer.write(b"warm")
                buffer.read(4)
        rows = {}
        for kind, make in makers.items():
            before = used()
            with make(256 * MIB) as buffer:
                buffer.write(b"old bytes", 4096)
                held, text = used() - before, buffer.read(9, 4096).decode()
            rows[kind] = [held, text, used() - before, error_of(buffer.close)]
        tell(rows)
        """
    )
    record(kinds={kind: {"held": row[0], "left": row[2]} for kind, row in figures.items()})
    for kind, (_held, text, left, again) in figures.items():
        assert (text, again) == ("old bytes", "BufferClosed"), kind
        assert left <= (POOL_KEEPS if kind == "stream-ordered" else PAGE_TABLES), kind
    for kind in ("device", "pitched"):
        assert 256 * MIB <= figures[kind][0] <= 256 * MIB + PAGE_TABLES, kind
    for kind in ("pinned", "zero-copy"):
        assert figures[kind][0] <= PAGE_TABLES, kind


def test_finalizers_threads_fork_and_reset(record: Record) -> None:
    answer = told(
        """
        before = used()
        dropped = [Buffer(64 * MIB, zero_on_free=True), Buffer(64 * MIB, stream=0)]
        in_thread(dropped.clear)
        thread_left = used() - before
        kept = Buffer(64 * MIB)
        kept.write(b"parent's")
        def child():
            return 0 if error_of(kept.close) == "BufferLost" and error_of(Buffer, 1) == "DeviceError" else 1
        forked = in_child(child)
        after_fork = kept.read(8).decode()
        pinned = Buffer.pinned(MIB)
        pooled = Buffer(MIB, stream=0)
        address = kept.pointer
        reset()
        lost = [error_of(each.read) for each in (kept, pinned)]
        pool_after = error_of(pooled.read)
        new = Buffer(64 * MIB)
        new.fill(7)
        came_back = new.pointer == address
        del kept, pinned, pooled
        gc.collect()
        tell(thread_left, forked, after_fork, lost, pool_after, came_back, new.read(2).hex())
        """
    )
    record(pool_after_reset=answer[4], address_came_back=answer[5])
    assert answer[0] <= POOL_KEEPS + PAGE_TABLES
    assert answer[1:4] == [0, "parent's", ["BufferLost"] * 2]
    assert answer[6] == "0707"


@needs("torch")
def test_pytorch_works_on_a_buffer_in_place(record: Record) -> None:
    answer = told(
        """
        import torch
        buffer = Buffer(MIB, zero_on_free=True)
        tensor = torch.from_dlpack(buffer)
        tensor.fill_(5)
        torch.cuda.synchronize()
        seen = buffer.read(3).hex(), tensor.data_ptr() == buffer.pointer, tensor.is_cuda
        refused = error_of(buffer.close)
        def fail():
            local = torch.from_dlpack(buffer)
            raise KeyError("on its way")
        caught = error_of(fail)
        del tensor
        closed = error_of(buffer.close)
        mapped = Buffer.zero_copy(64)
        torch.from_dlpack(mapped).fill_(9)
        torch.cuda.synchronize()
        theirs = torch.arange(12, device="cuda", dtype=torch.bfloat16).reshape(3, 4)
        ours = Buffer.from_dlpack(theirs)
        again = torch.from_dlpack(ours)
        same = again.data_ptr() == theirs.data_ptr(), str(again.dtype), list(again.shape)
        kept = Buffer.from_cuda_array_interface(torch.full((4,), 2.0, device="cuda", requires_grad=True))
        torch.empty(4, device="cuda").fill_(1)
        stream = torch.cuda.Stream()
        ordered = Buffer(MIB, stream=stream)
        ordered.close()
        tell(seen, refused, caught, closed, bytes(mapped.host[:2]).hex(), same, kept.read(4).hex())
        """
    )
    record(answer=answer)
    assert answer == [
        ["050505", True, True],
        "BufferLent",
        "KeyError",
        None,
        "0909",
        [True, "torch.bfloat16", [3, 4]],
        "00000040",
    ]


@needs("torch")
def test_erasing_waits_for_work_of_other_streams(record: Record) -> None:
    """A write that is still queued on another stream must not come after the zeros."""
    answer = told(
        """
        import torch
        buffer = Buffer(64 * MIB)
        tensor = torch.from_dlpack(buffer)
        tensor.fill_(7)  # the first one loads its kernel, which would wait for everything
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)
            tensor.fill_(9)
        queued = not stream.query()
        erased = vram.scrub(buffer)
        tell(queued, erased, buffer.read().count(0))
        """
    )
    record(queued=answer[0], erased=answer[1])
    assert answer == [True, 64 * MIB, 64 * MIB]


@needs("torch")
def test_scrubbing_pytorch_tensors(record: Record) -> None:
    answer = told(
        """
        import torch
        whole = torch.ones(6, 5, device="cuda", dtype=torch.bfloat16)
        erased = vram.scrub(whole[1:5:2, 1:4])
        weights = torch.nn.Linear(8, 8, device="cuda").weight
        vram.scrub(weights)
        stale = torch.full((1024, 1024), 3.0, device="cuda")
        address = stale.data_ptr()
        vram.scrub(stale)
        del stale
        fresh = torch.empty(1024, 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        captured = None
        with torch.cuda.graph(graph):
            captured = error_of(vram.scrub, whole)
            static = whole + 1
        graph.replay()
        tell(erased, int(whole.float().sum()), float(weights.abs().sum()), fresh.data_ptr() == address,
             float(fresh.abs().sum()), captured, float(static[0, 0]))
        """
    )
    record(answer=answer)
    assert answer == [12, 24, 0.0, True, 0.0, "Refused", 2.0]


@needs("torch")
def test_a_finalizer_does_not_spoil_a_graph_that_is_captured(record: Record) -> None:
    answer = told(
        """
        import torch
        data = torch.ones(8, device="cuda")
        buffers = [Buffer(MIB)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = data * 2
            buffers.clear()
            result = result + 1
        graph.replay()
        torch.cuda.synchronize()
        from vram.guard.allocation import living
        Buffer(1).close()  # what waited for the end of the capture goes back with the next one
        tell(result.tolist()[:2], len(living))
        """
    )
    record(answer=answer)
    assert answer == [[3.0, 3.0], 0]


@needs("cupy")
def test_cupy_works_on_a_buffer_in_place_and_is_scrubbed(record: Record) -> None:
    answer = told(
        """
        import cupy
        buffer = Buffer(4096)
        lent, shared = cupy.from_dlpack(buffer), cupy.asarray(buffer)
        lent[:2], shared[2:4] = 4, 6
        cupy.cuda.Device().synchronize()
        seen = buffer.read(4).hex(), lent.data.ptr == shared.data.ptr == buffer.pointer
        refused = error_of(buffer.close)
        del lent, shared
        closed = error_of(buffer.close)
        array = cupy.ones((6, 5), dtype=cupy.complex64)
        ours = Buffer.from_dlpack(array)
        erased = vram.scrub(array[::-2, 1:3])
        tell(seen, refused, closed, ours.nbytes, erased, float(array.real.sum()))
        """
    )
    record(answer=answer)
    assert answer == [["04040606", True], "BufferLent", None, 240, 48, 24.0]


@needs("jax")
def test_jax_arrays_are_borrowed_and_scrubbed(record: Record) -> None:
    answer = told(
        """
        import jax, jax.numpy as jnp
        array = jnp.full((256,), 3.0, dtype=jnp.float32)
        array.block_until_ready()
        ours = Buffer.from_dlpack(array)
        before = ours.read(4).hex()
        erased = vram.scrub(array)
        buffer = Buffer(4096)
        buffer.fill(5)
        lent = jax.dlpack.from_dlpack(buffer)
        same = int(lent[0]), lent.shape, error_of(buffer.close)
        tell(before, erased, float(abs(array).sum()), same)
        """
    )
    record(answer=answer)
    assert answer == ["00004040", 1024, 0.0, [5, [4096], "BufferLent"]]


@needs("numba")
def test_numba_works_on_a_buffer_in_place(record: Record) -> None:
    answer = told(
        """
        import numpy
        from numba import cuda
        buffer = Buffer(4096)
        array = cuda.as_cuda_array(buffer)
        array.copy_to_device(numpy.arange(4096, dtype=numpy.uint8))
        theirs = cuda.to_device(numpy.ones(8, dtype=numpy.float32))
        ours = Buffer.from_cuda_array_interface(theirs)
        vram.scrub(theirs)
        tell(buffer.read(3).hex(), ours.shape, float(theirs.copy_to_host().sum()))
        """
    )
    record(answer=answer)
    assert answer == ["000102", [8], 0.0]


@needs("torch")
def test_what_this_gpu_leaves_behind(record: Record) -> None:
    """As measured before: large plain memory shows nothing; small pieces, pools and PyTorch's cache
    show everything."""
    rows, text = told(
        """
        import torch
        torch.ones(1, device="cuda")
        report = vram.remanence_test()
        rows = {t.source: [t.sampled, t.control, t.found, t.nonzero, t.skipped] for t in report.trials}
        tell(rows, str(report))
        """
    )
    print(text)
    record(trials=rows, text=text)
    whole, beside = 256 * MIB, "beside a living one"
    assert rows == {
        "plain allocations": [whole, whole, 0, 0, None],
        f"plain allocations of up to 1 MiB, {beside}": [MIB, MIB, MIB, MIB, None],
        f"plain allocations of up to 1 MiB, {beside}, erased before the free": [MIB, MIB, 0, 0, None],
        "stream-ordered pool": [whole, whole, whole, whole, None],
        "stream-ordered pool, erased before the free": [whole, whole, 0, 0, None],
        "PyTorch's cache": [whole, whole, whole, whole, None],
        "PyTorch's cache, erased before the free": [whole, whole, 0, 0, None],
        "plain allocations, after a killed process": [whole, whole, 0, 0, None],
    }


def test_a_buffer_costs_little_beside_the_raw_pair(record: Record) -> None:
    """Within a tenth of cuMemAlloc and cuMemFree called by hand, 4 MiB, by the same ctypes."""
    raw_s, ours_s = told(
        f"""
        sys.path.insert(0, {str(ROOT)!r})
        from bench.pair import pair_s
        tell(pair_s(4 * MIB, turns=500, pairs=10))
        """
    )
    record(raw_us=raw_s * 1e6, buffer_us=ours_s * 1e6, ratio=ours_s / raw_s)
    assert ours_s <= 1.1 * raw_s
