"""Contexts that are no primary ones, and contexts that a sticky error broke: what flush and scopes say."""

from __future__ import annotations

import pytest

from tests.guard.scoping import PREAMBLE, result, run
from tests.needs import needs
from vram.guard.cuda_errors import (
    BrokenContext,
    add_broken_notes,
    broken_contexts,
    is_out_of_memory,
    sticky_code,
)
from vram.guard.flush import FlushReport
from vram.guard.memory import DeviceMemory
from vram.oom.dialects.sticky import STICKY_WORDS, sticky_code_in
from vram.payloads.trim.driver import STICKY
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

CONTEXT = 518 * MIB

# raw.start() makes the primary context: here the program has none.
OWN = (
    PREAMBLE
    + """\
import ctypes
from ctypes import byref
from vram.guard.memory import devices_with_context, unreachable_devices

raw.call("cuInit", 0)

def own_context(device=0):
    return raw.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, device)

def primary_is_active(device=0):
    active = ctypes.c_int()
    raw.call("cuDevicePrimaryCtxGetState", device, byref(ctypes.c_uint()), byref(active))
    return active.value

def free_into_pool(nbytes):
    from tests.guard.leaks import _free_into_pool
    _free_into_pool(nbytes)
"""
)

# ---- contexts of the program's own ----


def test_memory_in_a_context_of_the_programs_own_is_told_and_its_pools_are_trimmed(
    virtual_gpu: VirtualGpu,
) -> None:
    """And no primary context is made for it."""
    told = result(
        virtual_gpu,
        """
        own_context()
        raw.alloc(1536 * MIB)
        free_into_pool(256 * MIB)
        report = vram.flush()
        tell([*map(list, (report.before[0], report.after[0])), report.returned, report.unreachable,
              devices_with_context(), primary_is_active(), repr(report)])
        """,
        OWN,
    )
    before, after, returned, unentered, awake, primary, text = told
    assert (before[1], after[1]) == (CONTEXT + (1536 + 256) * MIB, CONTEXT + 1536 * MIB)
    assert (returned, unentered, awake, primary) == (256 * MIB, [], [0], 0)
    assert text.startswith("256.0 MiB freed: GPU 0 2.3 GiB → 2.0 GiB held by this process")


def test_memory_in_a_context_of_another_thread_is_told_as_out_of_reach(two_virtual_gpus: VirtualGpu) -> None:
    told = result(
        two_virtual_gpus,
        """
        def work():
            own_context(1)
            raw.alloc(64 * MIB)
            ready.set()
            end.wait()
            reports.append(vram.flush())
        ready, end, reports = threading.Event(), threading.Event(), []
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        reports.append(vram.flush())
        end.set()
        thread.join()
        tell([[each.after[0].device, each.after[0].used, each.unreachable] for each in reports]
             + [primary_is_active(1), repr(reports[0])])
        """,
        OWN,
    )
    here, there, primary, text = told
    assert here == [1, CONTEXT + 64 * MIB, [1]]
    assert there == [1, CONTEXT + 64 * MIB, []]
    assert primary == 0
    assert "GPU 1: nothing could be freed from this thread" in text


def test_a_context_beside_the_primary_one_is_not_left(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        raw.start()
        mine = own_context()
        raw.alloc(64 * MIB)
        report = vram.flush()
        current = ctypes.c_uint64()
        raw.call("cuCtxGetCurrent", byref(current))
        tell([report.after[0].used, current.value == mine])
        """,
        OWN,
    )
    assert told == [2 * CONTEXT + 64 * MIB, True]


def test_memory_in_a_green_context_is_told(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        resource = ctypes.create_string_buffer(144)
        raw.call("cuDeviceGetDevResource", 0, resource, 1)
        description = raw.out(ctypes.c_uint64, "cuDevResourceGenerateDesc", resource, 1)
        green = raw.out(ctypes.c_uint64, "cuGreenCtxCreate", description, 0, 1)
        raw.call("cuCtxPushCurrent_v2", raw.out(ctypes.c_uint64, "cuCtxFromGreenCtx", green))
        raw.alloc(64 * MIB)
        free_into_pool(32 * MIB)
        report = vram.flush()
        tell([report.returned, report.after[0].used])
        """,
        OWN,
    )
    assert told == [32 * MIB, CONTEXT + 64 * MIB]


def test_a_graph_that_is_captured_in_an_own_context_is_not_disturbed(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("cuStreamIsCapturing", error=906)
    told = result(virtual_gpu, "own_context()\ntell(vram.flush().refused)", OWN)
    assert told == "a CUDA graph is being captured: nothing was touched"


def test_pools_are_erased_in_an_own_context_without_a_primary_one(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        own_context()
        with vram.scope("work", leak="report", zero_on_exit=True) as s:
            free_into_pool(64 * MIB)
        def work():
            with vram.scope("elsewhere", leak="report", zero_on_exit=True) as other:
                pass
            notes.extend(other.notes)
        notes = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        tell([s.notes, notes, primary_is_active()])
        """,
        OWN,
    )
    assert told == [
        [],
        ["GPU 0: its pools were not erased, because its context is not current in this thread"],
        0,
    ]


def test_a_scope_counts_what_is_gained_in_an_own_context(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        own_context()
        with vram.scope("work", leak="report", tolerance=0) as s:
            raw.alloc(64 * MIB)
        tell(s.leak.nbytes)
        """,
        OWN,
    )
    assert told == 64 * MIB


@needs("pycuda")
def test_pools_of_pycuda_are_emptied_in_their_own_thread_alone(virtual_gpu: VirtualGpu) -> None:
    """Elsewhere PyCUDA would forget the memory without freeing it."""
    told = result(
        virtual_gpu,
        """
        import pycuda.driver as driver
        from pycuda.tools import DeviceMemoryPool
        driver.init()
        context = driver.Device(0).make_context()
        pool = DeviceMemoryPool()
        pool.allocate(256 * MIB).free()
        gc.disable()
        cycle = [driver.mem_alloc(64 * MIB)]
        cycle.append(cycle)
        del cycle
        reports = []
        thread = threading.Thread(target=lambda: reports.append(vram.flush()))
        thread.start()
        thread.join()
        reports.append(vram.flush())
        context.pop()
        tell([[each.returned, each.notes] for each in reports])
        """,
        PREAMBLE,
    )
    (elsewhere, notes), (here, nothing) = told
    assert (elsewhere, nothing) == (0, [])
    assert here >= (256 + 64) * MIB
    assert notes[0].startswith("PyCUDA can free memory only in the thread of its context")


# ---- sticky errors ----

BROKEN = (
    OWN
    + """\
raw.start()
pointer = raw.alloc(64 * MIB)

class AcceleratorError(RuntimeError):
    pass

def fault():
    if raw.code("cuMemsetD8_v2", pointer, 0, 16):
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")
"""
)


@pytest.fixture
def faulty(virtual_gpu: VirtualGpu) -> VirtualGpu:
    virtual_gpu.fail("cuMemsetD8", nth=1, sticky="ILLEGAL_ADDRESS")
    return virtual_gpu


def test_flush_says_that_a_broken_context_returns_nothing(faulty: VirtualGpu) -> None:
    """And touches nothing: a library that is made to free there may abort the program."""
    told = result(
        faulty,
        """
        free_into_pool(32 * MIB)
        sys.last_value = ValueError()
        try:
            fault()
        except AcceleratorError:
            pass
        report = vram.flush()
        tell([[[each.device, each.code, each.error] for each in report.broken], report.refused, repr(report),
              report.after[0].used, report.returned, sys.last_value is not None])
        """,
        BROKEN,
    )
    broken, refused, text, used, returned, kept = told
    assert broken == [[0, 700, "CUDA_ERROR_ILLEGAL_ADDRESS"]]
    assert refused == text
    assert "end the process to get its 614.0 MiB back" in text
    assert (used, returned, kept) == (CONTEXT + 96 * MIB, 0, True)


def test_flush_finds_an_error_that_nobody_had_waited_for(virtual_gpu: VirtualGpu) -> None:
    """Only the wait for the GPU brings it out."""
    virtual_gpu.fail("cuCtxSynchronize", nth=1, sticky="ASSERT")
    told = result(
        virtual_gpu,
        """
        report = vram.flush()
        tell([report.broken[0].code, report.refused])
        """,
        BROKEN,
    )
    assert told[0] == 710
    assert "a device-side assert (CUDA_ERROR_ASSERT, 710)" in told[1]


def test_a_broken_context_beside_a_sound_one_is_told_with_its_gpu(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.fail("cuMemsetD8", nth=1, sticky=719)
    told = result(
        two_virtual_gpus,
        """
        raw.start(0)
        raw.start(1)
        raw.code("cuMemsetD8_v2", raw.alloc(MIB), 0, 16)
        raw.start(0)
        tell([[each.device, each.code] for each in vram.flush().broken])
        """,
        OWN,
    )
    assert told == [[1, 719]]


def test_a_scope_tells_the_error_that_broke_its_context(faulty: VirtualGpu) -> None:
    told = result(
        faulty,
        """
        try:
            with vram.scope("outer", leak="raise"), vram.scope("step", leak="raise", zero_on_exit=True) as s:
                raw.alloc(64 * MIB)
                fault()
        except AcceleratorError as error:
            notes = error.__notes__
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with vram.scope("later"):
                pass
        tell([notes, s.notes, s.leak, [str(each.message) for each in seen]])
        """,
        BROKEN,
    )
    notes, scope_notes, leak, later = told
    sentence = BrokenContext(0, 700).sentence()
    assert notes == [f"vram: {sentence}"]
    assert scope_notes == [sentence]
    assert leak is None
    assert later == [f"scope 'later': {sentence}"]


def test_a_broken_context_is_not_tried_again(faulty: VirtualGpu) -> None:
    """Neither for the error itself nor for an out-of-memory that a library makes of it."""
    told = result(
        faulty,
        """
        tried = []
        @vram.retry_on_oom(shrink="n")
        def step(n):
            tried.append(n)
            try:
                fault()
            except AcceleratorError:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
        try:
            step(8)
        except RuntimeError as error:
            tell([tried, error.__notes__])
        """,
        BROKEN,
    )
    assert told == [[8], [f"vram: {BrokenContext(0, 700).sentence()}"]]


@needs("numba")
def test_the_recorder_notes_it_and_writes_no_file_about_memory(faulty: VirtualGpu, tmp_path: object) -> None:
    done = run(
        faulty,
        f"""
        import os
        from numba import cuda
        recorder = vram.on_oom({str(tmp_path)!r})
        array = cuda.device_array(1 << 20)
        raw.code("cuMemsetD8_v2", pointer, 0, 16)
        try:
            cuda.device_array(1 << 20)
        except Exception as error:
            tell([error.__notes__, recorder.files])
        os._exit(0)
        """,
        BROKEN,
    )
    assert done.returncode == 0, done.stderr
    assert f"vram: {BrokenContext(0, 700).sentence()}" in done.stdout
    assert done.stdout.rstrip().endswith("[]]")


@needs("cuda.bindings")
def test_the_table_is_what_nvidias_documentation_says() -> None:
    """Of just these codes it says that the process, or the context, has to go."""
    from cuda.bindings import driver, runtime

    ends = ("process must be terminated", "cannot be used anymore, and must be destroyed")

    def documented(kind: type) -> dict[int, str]:
        pages = {int(each): (each.name, " ".join((each.__doc__ or "").split())) for each in kind}  # type: ignore[attr-defined]
        return {code: name for code, (name, page) in pages.items() if any(end in page for end in ends)}

    assert documented(driver.CUresult) == {code: names[0] for code, names in STICKY.items()}
    assert documented(runtime.cudaError_t) == {code: names[1] for code, names in STICKY.items()}


@pytest.mark.parametrize("code", STICKY)
def test_each_is_known_by_its_names_and_words(code: int) -> None:
    driver, runtime, _ = STICKY[code]
    said = [
        f"cuda: {driver}",
        f"{runtime}: something",
        *([f"CUDA error: {STICKY_WORDS[code]}"] if code in STICKY_WORDS else []),
    ]
    assert [sticky_code_in(text) for text in said] == [code] * len(said)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "bus error: misaligned address",
        "the launch timed out and was terminated by the operator",
        "AssertionError: device side asserts are off",
        "CUDA error: invalid argument",
        "cudaErrorInvalidValue",
    ],
)
def test_other_errors_are_not_taken_for_one(text: str) -> None:
    assert sticky_code(RuntimeError(text)) is None
    assert broken_contexts(RuntimeError(text)) == ()


def test_causes_and_codes_of_frameworks_count_and_foreign_ones_do_not() -> None:
    class CudaAPIError(Exception):
        code = 719

    CudaAPIError.__module__ = "numba.cuda.cudadrv.driver"

    class HttpError(Exception):
        code = 700

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    outer = ValueError("the step failed")
    outer.__cause__ = CudaAPIError("[719] Call to cuMemFree")
    assert (sticky_code(outer), sticky_code(HttpError()), sticky_code(Silent())) == (719, None, None)
    assert not is_out_of_memory(outer)


def test_an_error_is_noted_once() -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    for _ in range(2):
        add_broken_notes(error, broken_contexts(error))
    assert error.__notes__ == [f"vram: {BrokenContext(None, 710).sentence()}"]


def test_what_a_person_reads_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    held = (DeviceMemory(0, 2 * GIB, 10 * GIB, 12 * GIB),)
    broken = (BrokenContext(0, 700),)
    reports = [
        FlushReport(before=held, after=held, unreachable=(0,)),
        FlushReport(before=held, after=held, broken=broken, refused=broken[0].sentence("its 2.0 GiB")),
    ]
    for report in reports:
        lines = repr(report).splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 5
    assert "<p>the CUDA context on GPU 0 is broken" in reports[1]._repr_html_()


def test_a_visit_from_outside_says_the_same(faulty: VirtualGpu) -> None:
    """A trim runs in a thread of its own, where a context of the program's own is not current."""
    told = result(
        faulty,
        """
        from vram.payloads import trim

        def visited():
            until = time.monotonic() + 60
            request = {"verb": "trim", "pid": os.getpid(), "until": until, "tracebacks": False}
            answers.append(trim.answer(request)["notes"])

        answers = []
        own_context()
        pointer = raw.alloc(64 * MIB)
        visited()
        thread = threading.Thread(target=visited)
        thread.start()
        thread.join()
        raw.code("cuMemsetD8_v2", pointer, 0, 16)
        visited()
        tell(answers)
        """,
        OWN,
    )
    here, elsewhere, broken = told
    assert here == []
    assert "no primary context" in elsewhere[0]
    assert broken == [BrokenContext(0, 700).sentence()]
