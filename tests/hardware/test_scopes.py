"""Scopes, limits, retries and the recorder on real hardware: PyTorch, CuPy, JAX and Numba.

python -m pytest --real-gpu -s tests/hardware/test_scopes.py
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

from tests.hardware import prestart
from tests.hardware.conftest import Record
from tests.needs import needs
from tests.search_path import search_path
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu


PREAMBLE = """\
import gc, json, os, sys, threading, time, warnings, weakref
import vram
from vram.units import GIB, MIB
def tell(value): print(json.dumps(value), flush=True)
"""

FRAMEWORKS = {
    "torch": """
import torch
torch.ones(8, device="cuda").sum().item()
def array(nbytes): return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
""",
    "cupy": """
import cupy
cupy.ones(8).sum().item()
def array(nbytes): return cupy.zeros(nbytes, dtype=cupy.uint8)
""",
    "jax": """
import jax, jax.numpy as jnp
jnp.ones(8).sum().block_until_ready()
def array(nbytes): return jnp.zeros((nbytes // MIB, MIB), dtype=jnp.uint8).block_until_ready()
array(256 * MIB), array(512 * MIB)
""",
    "numba": """
import numpy
from numba import cuda
cuda.current_context()
def array(nbytes): return cuda.device_array(nbytes, numpy.uint8)
""",
}

BEHIND_ALL = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
def raw(nbytes):
    pointer = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
    return pointer
"""

every_framework = pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=needs(each)) for each in FRAMEWORKS],
)


JAX_TAKES_WHAT_IT_NEEDS = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
}


def result(program: str, name: str = "torch", **variables: str) -> Any:
    code = PREAMBLE + FRAMEWORKS[name] + BEHIND_ALL + dedent(program)
    variables = JAX_TAKES_WHAT_IT_NEEDS | variables
    if name in prestart.WAITING:
        done = prestart.run_with(name, code, variables, timeout_s=110)
    else:
        environment = os.environ | {"PYTHONPATH": search_path()} | variables
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=110
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.shares_gpu
@every_framework
def test_ways_to_leak_are_found_and_named(name: str, record: Record) -> None:
    """Globals, cycles, tracebacks, closures, threads, generators and raw memory, each in its own scope."""
    program = """
        history, closures, generators, errors, locals_of_threads = [], [], [], [], []

        def in_global(): history.append(array(256 * MIB))
        def in_cycle():
            loop = [array(256 * MIB)]
            loop.append(loop)
        def in_traceback():
            def fails():
                big = array(256 * MIB)
                raise ValueError
            try:
                fails()
            except ValueError as error:
                errors.append(error)
        def in_closure():
            big = array(256 * MIB)
            closures.append(lambda: big)
        def in_generator():
            def endless():
                big = array(256 * MIB)
                yield 1
                yield big
            steps = endless()
            next(steps)
            generators.append(steps)
        def in_thread():
            stop, ready = threading.Event(), threading.Event()
            def waits():
                big = array(256 * MIB)
                ready.set()
                stop.wait()
                del big
            thread = threading.Thread(target=waits, daemon=True)
            thread.start()
            ready.wait()
            locals_of_threads.append((stop, thread))
        def outside_all(): history.append(raw(512 * MIB))

        gc.disable()
        found = {}
        for way in (in_global, in_cycle, in_traceback, in_closure, in_generator, in_thread, outside_all):
            for turn in range(2):  # the first may load code
                with vram.scope(way.__name__, leak="report", track=True) as s:
                    way()
            leak = s.leak
            kept = leak.arrays[0].holder if leak and leak.arrays else None
            found[way.__name__] = [leak.nbytes if leak else 0, kept]
        # Python must not end while a thread is inside the framework: JAX aborts the process then.
        for stop, thread in locals_of_threads:
            stop.set()
            thread.join()
        tell(found)
    """
    found = result(program, name)
    record(framework=name, found=found)
    assert found.pop("in_cycle") == [0, None]
    assert found.pop("outside_all")[0] == 512 * MIB
    # Allocators round what they hand out, each in its own way.
    assert {way: nbytes // (8 * MIB) for way, (nbytes, _) in found.items()} == dict.fromkeys(found, 32)
    names = {
        "in_global": "history[1]",
        "in_traceback": "big",
        "in_closure": "big",
        "in_generator": "big",
        "in_thread": "big",
    }
    for way, word in names.items():
        assert word in found[way][1], (way, found[way])


@pytest.mark.shares_gpu
@every_framework
def test_work_and_threads_that_free_are_no_leaks(name: str, record: Record) -> None:
    """The first time a framework computes, it loads code into the context: that is no leak."""
    program = """
        gained = []
        for turn in range(3):
            with vram.scope("step", leak="raise") as s:
                a = array(512 * MIB)
                if "numba" not in sys.modules:
                    b = a.reshape(-1)[: 64 * MIB].reshape(8192, 8192)
                    b = b.float() if "torch" in sys.modules else b.astype("float32")
                    c = (b @ b).sum()
                    float(c)
                    del b, c
                del a
            gained.append([s.gained(), s.notes])

        kept = []
        threading.excepthook = lambda words: kept.append(words.exc_value)

        def fails():
            big = array(512 * MIB)
            raise ValueError

        for turn in range(2):
            thread = vram.Thread(target=fails, leak="report", name="fails")
            thread.start()
            thread.join()
        hoard = []
        hoarder = vram.Thread(target=lambda: hoard.append(array(512 * MIB)), leak="report")
        hoarder.start()
        hoarder.join()
        tell([gained, [thread.leak.nbytes if thread.leak else 0, hoarder.leak.nbytes]])
    """
    gained, left_by_threads = result(program, name)
    record(framework=name, gained=gained, left_by_threads=left_by_threads)
    assert [nbytes // (8 * MIB) for nbytes in left_by_threads] == [0, 64]


@needs("torch")
def test_a_limit_stops_pytorch_and_is_taken_off_again(record: Record) -> None:
    program = """
        before = torch.cuda.get_per_process_memory_fraction() if hasattr(
            torch.cuda, "get_per_process_memory_fraction") else 1.0
        kept = []
        try:
            with vram.scope("bounded", leak="report", limit="2GiB") as s:
                while True:
                    kept.append(array(256 * MIB))
        except torch.OutOfMemoryError as error:
            held = len(kept) * 256
        after = torch.cuda.get_per_process_memory_fraction() if hasattr(
            torch.cuda, "get_per_process_memory_fraction") else 1.0
        kept.append(array(8 * GIB))
        tell([held, before, after])
    """
    held, before, after = result(program)
    record(held_mib=held, before=before, after=after)
    assert 1024 <= held <= 2048
    assert before == after


@needs("cupy")
def test_a_limit_stops_cupy_and_is_taken_off_again(record: Record) -> None:
    program = """
        pool = cupy.get_default_memory_pool()
        kept, before = [], pool.get_limit()
        try:
            with vram.scope("bounded", leak="report", limit="2GiB"):
                while True:
                    kept.append(array(256 * MIB))
        except cupy.cuda.memory.OutOfMemoryError:
            tell([len(kept) * 256, before, pool.get_limit()])
    """
    held, before, after = result(program, "cupy")
    record(held_mib=held)
    assert 1024 <= held <= 2048
    assert before == after


@every_framework
def test_a_retry_shrinks_until_it_fits(name: str, record: Record) -> None:
    program = """
        tried = []

        @vram.retry_on_oom(shrink="gib")
        def work(gib):
            tried.append(gib)
            half = array(gib // 2 * GIB)
            return half, array(gib // 2 * GIB)

        begin = time.perf_counter()
        work(256)
        tell([tried, time.perf_counter() - begin])
    """
    tried, took_s = result(program, name)
    record(framework=name, tried=tried, took_s=took_s)
    assert tried == [256, 128]


@every_framework
def test_an_out_of_memory_is_explained(name: str, tmp_path: Path, record: Record) -> None:
    program = f"""
        recorder = vram.on_oom({str(tmp_path)!r})
        history = [array(60 * GIB)]
        try:
            array(120 * GIB)
        except Exception as error:
            tell([type(error).__name__, getattr(error, "__notes__", []), recorder.files])
    """
    kind, notes, files = result(program, name)
    record(framework=name, error=kind, note=notes)
    assert any("the GPU is out of memory" in note for note in notes)
    report = json.loads(Path(files[0]).read_text())
    assert report["largest"][0]["nbytes"] >= 60 * GIB
    assert "history[0]" in report["largest"][0]["holder"]
    (gpu,) = [each for each in report["ledger"]["gpus"] if each["entries"]]
    assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]


@pytest.mark.shares_gpu
@needs("torch")
def test_pytorchs_cache_is_erased_at_the_end(record: Record) -> None:
    program = """
        def seen(**options):
            with vram.scope("secret", leak="report", **options) as s:
                secret = torch.full((256 * MIB,), 0x5A, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                del secret
            found = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
            return int((found == 0x5A).sum()), s.notes
        tell([seen(), seen(zero_on_exit=True)])
    """
    (control, _), (erased, notes) = result(program)
    record(control=control, erased=erased, notes=notes)
    assert control == 256 * MIB
    assert erased == 0


@needs("numba")
def test_the_drivers_pool_is_erased_at_the_end(record: Record) -> None:
    program = """
        pool, most = ctypes.c_void_p(), ctypes.c_uint64(2**63)
        assert driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) == 0
        assert driver.cuMemPoolSetAttribute(pool, 4, ctypes.byref(most)) == 0  # it keeps what is freed
        def seen(**options):
            with vram.scope("secret", leak="report", **options) as s:
                with vram.Buffer(256 * MIB, stream=0) as secret:
                    secret.fill(0x5A)
            with vram.Buffer(256 * MIB, stream=0) as found:
                return found.read().count(0x5A), s.notes
        tell([seen(), seen(zero_on_exit=True)])
    """
    (control, _), (erased, notes) = result(program, "numba")
    record(control=control, erased=erased, notes=notes)
    assert control == 256 * MIB
    assert erased == 0


@pytest.mark.shares_gpu
@needs("torch")
def test_the_inside_of_a_willing_process_is_told(tmp_path: Path, record: Record) -> None:
    program = """
        import subprocess
        live = array(2 * GIB)
        cached = array(4 * GIB)
        del cached
        vram.agent()
        done = subprocess.run([sys.executable, "-m", "vram", "why", "--deep", "--json"], capture_output=True)
        gpus = json.loads(done.stdout)["gpus"]
        mine = {}
        for gpu in gpus:
            assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
            for entry in gpu["entries"]:
                if entry["holder"] and entry["holder"]["pid"] == os.getpid():
                    mine[entry["kind"]] = entry["nbytes"]
        tell(mine)
    """
    tmp_path.chmod(0o700)
    kinds = result(program, XDG_RUNTIME_DIR=str(tmp_path))
    record(kinds=kinds)
    assert 2 * GIB <= kinds["live"] < 2 * GIB + 64 * MIB
    assert kinds["cached"] >= 4 * GIB
    assert 400 * MIB < kinds["context"] < 2 * GIB


@needs("torch")
def test_what_a_scope_costs(record: Record) -> None:
    program = """
        def timed(count=500):
            begin = time.perf_counter()
            for _ in range(count):
                with vram.scope("nothing"):
                    pass
            return (time.perf_counter() - begin) / count
        timed(50)
        tell(min(timed() for _ in range(5)))
    """
    took_s = result(program)
    record(scope_with_pytorch_s=took_s)
    bare = (
        "import time, vram\n"
        "def timed(count=5000):\n"
        "    begin = time.perf_counter()\n"
        "    for _ in range(count):\n"
        "        with vram.scope('nothing'): pass\n"
        "    return (time.perf_counter() - begin) / count\n"
        "timed(); print(min(timed() for _ in range(5)))\n"
    )
    environment = os.environ | {"PYTHONPATH": search_path()}
    done = subprocess.run(
        [sys.executable, "-c", bare], env=environment, capture_output=True, text=True, timeout=60
    )
    record(scope_around_nothing_s=float(done.stdout))
    assert float(done.stdout) < 20e-6
