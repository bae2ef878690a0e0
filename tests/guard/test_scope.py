"""Scopes: what a piece of work gained and kept is told, whoever allocated it; and nothing else is."""

from __future__ import annotations

import pytest

from tests.guard.scoping import NUMBA, PREAMBLE, result
from tests.needs import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_a_raw_allocation_that_nobody_frees_is_a_leak(virtual_gpu: VirtualGpu) -> None:
    """No framework knows of it: only the driver's charge does."""
    program = """
        try:
            with vram.scope("raw", leak="raise"):
                raw.alloc(64 * MIB)
        except vram.LeakDetected as error:
            tell([str(error), error.hint, error.leak.nbytes, [gain.where for gain in error.leak.gains]])
    """
    text, hint, nbytes, places = result(virtual_gpu, program)
    assert nbytes == 64 * MIB
    assert places == ["outside every framework"]
    assert "scope 'raw' kept 64.0 MiB" in text
    assert "keep" in hint


def test_what_is_freed_is_no_leak(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("clean", leak="raise") as s:
            pointer = raw.alloc(64 * MIB)
            inside = s.gained()
            raw.call("cuMemFree_v2", pointer)
        tell([inside, s.gained(), s.leak])
    """
    assert result(virtual_gpu, program) == [64 * MIB, 0, None]


def test_what_other_processes_take_meanwhile_does_not_count(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("mine", leak="raise") as s:
            other = held(1)
            taken = raw.used()
        other.communicate(b"\\n")
        tell([s.leak, taken > GIB])
    """
    assert result(virtual_gpu, program) == [None, True]


def test_what_others_take_on_a_gpu_that_we_do_not_use_does_not_count(two_virtual_gpus: VirtualGpu) -> None:
    program = """
        with vram.scope("mine", leak="report", limit="1GiB") as s:
            raw.alloc(64 * MIB)
            other = held(2, device=1)
            inside = s.gained()
        other.communicate(b"\\n")
        tell([inside, s.leak.nbytes, s.notes])
    """
    assert result(two_virtual_gpus, program) == [64 * MIB, 64 * MIB, []]


def test_a_pool_that_only_caches_is_no_leak_and_one_that_is_in_use_is(virtual_gpu: VirtualGpu) -> None:
    program = """
        import ctypes
        stream_alloc = lambda n: raw.out(ctypes.c_uint64, "cuMemAllocAsync", n, 0)
        pool = raw.out(ctypes.c_uint64, "cuDeviceGetDefaultMemPool", 0)
        raw.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(GIB)))
        with vram.scope("caches", leak="report") as first:
            raw.call("cuMemFreeAsync", stream_alloc(64 * MIB), 0)
            raw.call("cuCtxSynchronize")
        with vram.scope("uses", leak="report") as second:
            stream_alloc(32 * MIB)
        tell([first.leak, [(gain.where, gain.nbytes) for gain in second.leak.gains]])
    """
    assert result(virtual_gpu, program) == [None, [["driver pools", 32 * MIB]]]


@needs("numba")
def test_a_kept_array_is_named_with_who_keeps_it(virtual_gpu: VirtualGpu) -> None:
    program = """
        there_before = array(16 * MIB)
        history = []
        try:
            with vram.scope("epoch", leak="raise", track=True):
                history.append(array(64 * MIB))
        except vram.LeakDetected as error:
            tell([[each.what, each.nbytes, each.holder] for each in error.leak.arrays])
    """
    ((what, nbytes, holder),) = result(virtual_gpu, program, NUMBA)
    assert what == "Numba uint8 (67108864,) on GPU 0"
    assert nbytes == 64 * MIB
    assert "history[0]" in holder


@needs("numba")
def test_garbage_in_a_cycle_is_no_leak(virtual_gpu: VirtualGpu) -> None:
    program = """
        gc.disable()
        with vram.scope("cycle", leak="raise") as s:
            loop = [array(64 * MIB)]
            alive = weakref.ref(loop[0])
            loop.append(loop)
            del loop
        tell([s.leak, alive() is None])
    """
    assert result(virtual_gpu, program, NUMBA) == [None, True]


@needs("numba")
def test_what_is_meant_to_stay_can_be_said(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("load", leak="report") as s:
            model = s.keep({"layers": [array(64 * MIB), array(32 * MIB)]})
            forgotten = array(16 * MIB)
        tell(s.leak.nbytes)
    """
    assert result(virtual_gpu, program, NUMBA) == 16 * MIB


def test_a_context_made_inside_is_no_leak_and_that_is_said(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("first", leak="raise") as s:
            raw.start()
        tell([s.leak, s.notes])
    """
    leak, notes = result(virtual_gpu, program, PREAMBLE)
    assert leak is None
    assert "the context was created inside the scope" in notes[0]


def test_a_tolerance_lets_small_leaks_pass(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("small", leak="report", tolerance="16MiB") as small:
            raw.alloc(16 * MIB)
        with vram.scope("large", leak="report", tolerance="16MiB") as large:
            raw.alloc(18 * MIB)
        tell([small.leak, large.leak.nbytes])
    """
    assert result(virtual_gpu, program) == [None, 18 * MIB]


def test_a_warning_names_the_line_of_the_scope(virtual_gpu: VirtualGpu) -> None:
    program = """
        import asyncio

        def leak(): raw.alloc(8 * MIB)

        def plain():
            with vram.scope("plain"): leak()

        async def awaited():
            async with vram.scope("awaited"): leak()

        def decorated():
            vram.scoped("decorated")(leak)()

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            plain()
            asyncio.run(awaited())
            decorated()
        lines = [function.__code__.co_firstlineno + 1 for function in (plain, awaited, decorated)]
        tell([[each.category.__name__, each.filename, each.lineno - line] for each, line in zip(seen, lines)])
    """
    assert result(virtual_gpu, program) == [["LeakWarning", "<string>", 0]] * 3


POOL = """
        import ctypes
        pool = raw.out(ctypes.c_uint64, "cuDeviceGetDefaultMemPool", 0)
        raw.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(GIB)))

        def taken():
            return raw.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", 8 * MIB, pool, 0)

        def secrets_seen(**options):
            with vram.scope("secret", leak="report", **options) as s:
                pointer = taken()
                raw.call("cuMemsetD8_v2", pointer, 0x5A, 8 * MIB)
                raw.call("cuMemFreeAsync", pointer, 0)
                raw.call("cuCtxSynchronize")
            again = taken()
            seen = raw.read(again, 8 * MIB).count(0x5A)
            raw.call("cuMemFreeAsync", again, 0)
            raw.call("cuCtxSynchronize")
            return seen
"""


def test_what_lies_in_a_pool_is_erased_at_the_end(virtual_gpu: VirtualGpu) -> None:
    """The control first: without it, the pool hands every old byte to the next owner."""
    program = f"""{POOL}
        tell([secrets_seen(), secrets_seen(zero_on_exit=True)])
    """
    assert result(virtual_gpu, program) == [8 * MIB, 0]


@pytest.mark.parametrize(
    ("call", "error", "note"),
    [
        ("cuMemsetD8Async", 700, "the driver's pools could not all be erased: cuMemsetD8Async returned"),
        ("cuStreamIsCapturing", 906, "a CUDA graph is being captured: nothing was erased"),
    ],
)
def test_where_nothing_can_be_erased_the_bodys_own_error_stays(
    virtual_gpu: VirtualGpu, call: str, error: int, note: str
) -> None:
    """A device that fails is often what that error is about; and erasing would spoil a capture."""
    virtual_gpu.fail(call, error=error)
    program = f"""{POOL}
        raw.call("cuMemFreeAsync", taken(), 0)
        raw.call("cuCtxSynchronize")
        try:
            with vram.scope("secret", zero_on_exit=True) as s:
                raise ValueError("its own")
        except Exception as error:
            tell([repr(error), s.notes, raw.pool_number(pool, 7)])
    """
    error_told, (told,), used = result(virtual_gpu, program)
    assert error_told == "ValueError('its own')"
    assert told.startswith(note)
    assert used == 0


def test_the_default_pool_is_erased_also_where_another_is_in_use(virtual_gpu: VirtualGpu) -> None:
    program = f"""{POOL}
        own = raw.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(raw.PoolProps(1, 0, 1, 0)))
        raw.call("cuDeviceSetMemPool", 0, own)
        tell([secrets_seen(), secrets_seen(zero_on_exit=True)])
    """
    assert result(virtual_gpu, program) == [8 * MIB, 0]
