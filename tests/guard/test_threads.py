"""Threads: what they leave behind is told when they end, also when they fail."""

from __future__ import annotations

from tests.guard.scoping import NUMBA, PREAMBLE, result, run
from tests.needs import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_raw_pointers_of_threads_that_ended_are_told(virtual_gpu: VirtualGpu) -> None:
    """Five threads of seed 002's first program: all at once, so they are checked as one."""
    program = """
        import ctypes
        context = raw.out(ctypes.c_uint64, "cuCtxGetCurrent")
        together = threading.Barrier(5)

        def worker():
            together.wait()
            raw.call("cuCtxSetCurrent", context)
            raw.alloc(4 * MIB)

        threads = [vram.Thread(target=worker, leak="report") for _ in range(5)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        leaks = [thread.leak for thread in threads if thread.leak]
        tell([[leak.nbytes, len(leak.names)] for leak in leaks])
    """
    assert result(virtual_gpu, program) == [[20 * MIB, 5]]


PYCUDA = (
    PREAMBLE
    + """\
import pycuda.driver as cuda
cuda.init()
context = cuda.Device(0).make_context()
context.pop()

def leak_of(worker):
    thread = vram.Thread(target=worker, leak="report")
    thread.start()
    thread.join()
    return [thread.leak.nbytes, list(thread.leak.notes)] if thread.leak else None
"""
)


@needs("pycuda")
def test_a_free_that_pycuda_skipped_is_named(virtual_gpu: VirtualGpu) -> None:
    """The variable dies after the pop, in a thread that did not make the context: PyCUDA only warns."""
    program = """
        def skips():
            context.push()
            memory = cuda.mem_alloc(64 * MIB)
            context.pop()

        def work():
            memory = cuda.mem_alloc(64 * MIB)

        def remedied():
            context.push()
            work()
            context.pop()

        def frees():
            context.push()
            memory = cuda.mem_alloc(64 * MIB)
            memory.free()
            context.pop()

        tell([leak_of(remedied), leak_of(frees), leak_of(skips)])
    """
    inner, freed, (nbytes, notes) = result(virtual_gpu, program, PYCUDA)
    assert (inner, freed, nbytes) == (None, None, 64 * MIB)
    assert len(notes) == 1
    assert "PyCUDA does not free an allocation whose last reference is dropped" in notes[0]
    assert "has warned of one here: call its free() before context.pop()" in notes[0]


@needs("pycuda")
def test_a_leak_beside_pycuda_is_not_called_a_skipped_free(virtual_gpu: VirtualGpu) -> None:
    """A raw pointer leaks too, and so does a skipped free whose warning was suppressed: both are possible."""
    program = """
        def leaks():
            context.push()
            raw.alloc(64 * MIB)
            context.pop()

        tell(leak_of(leaks))
    """
    nbytes, notes = result(virtual_gpu, program, PYCUDA)
    assert nbytes == 64 * MIB
    assert notes[0].startswith("no array of a framework explains it. PyCUDA does not free")
    assert "has warned" not in notes[0]


def test_raw_pointers_are_a_sum_and_nobody_says_which(virtual_gpu: VirtualGpu) -> None:
    """Of three allocations two are freed: neither the scope nor vram.live() knows the third's pointer."""
    program = """
        with vram.scope("work", leak="report") as s:
            pointers = [raw.alloc(nbytes * MIB) for nbytes in (16, 32, 64)]
            raw.call("cuMemFree_v2", pointers[0])
            raw.call("cuMemFree_v2", pointers[2])
        told = [str(s.leak), *map(str, vram.live())]
        named = [any(f"{each:x}" in text or str(each) in text for text in told) for each in pointers]
        tell([s.leak.nbytes, [gain.where for gain in s.leak.gains], len(s.leak.arrays), len(told) - 1, named])
    """
    nbytes, places, arrays, live, named = result(virtual_gpu, program)
    assert (nbytes, places) == (32 * MIB, ["outside every framework"])
    assert (arrays, live, named) == (0, 0, [False, False, False])


@needs("numba")
def test_a_thread_that_fails_releases_of_everything_though_its_error_is_kept(virtual_gpu: VirtualGpu) -> None:
    program = """
        kept = []
        threading.excepthook = lambda args: kept.append(args.exc_value)

        def worker():
            big = array(64 * MIB)
            raise ValueError("in the thread")

        thread = vram.Thread(target=worker, name="fails", leak="report")
        thread.start()
        thread.join()
        from vram.guard.memory import read_footprint
        now = read_footprint(thorough=True)
        tell([thread.leak, str(kept[0]), now.outside // MIB, now.cached])
    """
    leak, error, outside, cached = result(virtual_gpu, program, NUMBA)
    assert (leak, error, cached) == (None, "in the thread", 0)
    assert outside == 518  # the context alone


@needs("numba")
def test_an_executor_keeps_results_and_nothing_else(virtual_gpu: VirtualGpu) -> None:
    program = """
        hoard = []

        def makes(): return array(32 * MIB)
        def hoards(): hoard.append(array(64 * MIB))
        def fails():
            big = array(128 * MIB)
            raise ValueError("gone")

        from vram.guard.memory import read_footprint
        with vram.ThreadPoolExecutor(1, leak="raise") as pool:
            made = pool.submit(makes).result()
            failed = pool.submit(fails)
            failed.exception()
            after_failure = read_footprint(thorough=True).outside // MIB
            leak = pool.submit(hoards).exception().leak
        tell([made.nbytes // MIB, str(failed.exception()), after_failure, leak.names, leak.nbytes // MIB])
    """
    assert result(virtual_gpu, program, NUMBA) == [32, "gone", 518 + 32, ["hoards"], 64]


def test_a_subclass_with_a_run_of_its_own_is_checked_too(virtual_gpu: VirtualGpu) -> None:
    program = """
        class Worker(vram.Thread):
            def run(self):
                raw.start()
                raw.alloc(8 * MIB)

        worker = Worker(name="own", leak="report")
        worker.start()
        worker.join()
        tell([worker.leak.names, worker.leak.nbytes // MIB])
    """
    assert result(virtual_gpu, program) == [["own"], 8]


def test_a_thread_may_be_bounded(virtual_gpu: VirtualGpu) -> None:
    program = """
        seen = []
        threading.excepthook = lambda args: seen.append(type(args.exc_value).__name__)

        def worker():
            raw.start()
            raw.alloc(64 * MIB)

        thread = vram.Thread(target=worker, limit="32MiB", leak="report")
        thread.start()
        thread.join()
        tell(seen)
    """
    assert result(virtual_gpu, program) == ["LimitExceeded"]


def test_without_a_driver_a_thread_is_a_thread(virtual_gpu: VirtualGpu) -> None:
    program = """
        import vram
        thread = vram.Thread(target=lambda: print("ran"))
        thread.start()
        thread.join()
        print(thread.leak)
    """
    assert run(virtual_gpu, program, "").stdout == "ran\nNone\n"


def test_a_run_that_calls_the_first_one_is_checked_once(virtual_gpu: VirtualGpu) -> None:
    program = """
        class Worker(vram.Thread):
            def run(self):
                super().run()
                raw.start()
                raw.alloc(8 * MIB)

        worker = Worker(target=lambda: (raw.start(), raw.alloc(4 * MIB)), leak="report")
        worker.start()
        worker.join()
        alive = weakref.ref(worker)
        leak = worker.leak.nbytes // MIB
        gc.disable()
        del worker
        tell([leak, alive() is None])
    """
    assert result(virtual_gpu, program) == [12, True]


def test_results_of_work_that_overlaps_are_the_callers(virtual_gpu: VirtualGpu) -> None:
    program = """
        first, together = vram.Buffer("1MiB"), threading.Barrier(3)

        def work():
            made = vram.Buffer("32MiB")
            together.wait()
            return made

        with vram.ThreadPoolExecutor(3, leak="raise") as pool:
            made = [pool.submit(work) for _ in range(3)]
        tell([each.result().nbytes // MIB for each in made])
    """
    assert result(virtual_gpu, program) == [32] * 3


def test_a_future_that_failed_keeps_nothing_that_its_work_was_given(virtual_gpu: VirtualGpu) -> None:
    program = """
        def fails(given, *, named):
            raise ValueError("gone")

        given, named = vram.Buffer("32MiB"), vram.Buffer("32MiB")
        alive = [weakref.ref(given), weakref.ref(named)]
        with vram.ThreadPoolExecutor(1, leak="raise") as pool:
            failed = pool.submit(fails, given, named=named)
            del given, named
        tell([str(failed.exception()), [each() is None for each in alive]])
    """
    assert result(virtual_gpu, program) == ["gone", [True, True]]


def test_results_of_an_executor_count_in_the_scope_that_had_the_work_done(virtual_gpu: VirtualGpu) -> None:
    """They are excused in the work's own scope alone; and what comes after that scope is none of its work."""
    program = """
        with vram.ThreadPoolExecutor(2, leak="report") as pool:
            with vram.scope("epoch", leak="report") as epoch:
                results = [pool.submit(vram.Buffer, "8MiB").result() for _ in range(3)]
            with vram.scope("next", leak="report") as after:
                pool.submit(int).result()
        tell([epoch.leak and [epoch.leak.names, epoch.leak.nbytes], epoch.notes, after.leak])
    """
    assert result(virtual_gpu, program) == [[["epoch"], 24 * MIB], [], None]


def test_a_pieces_arguments_may_have_any_name(virtual_gpu: VirtualGpu) -> None:
    program = """
        def work(**named): return sorted(named)
        with vram.ThreadPoolExecutor(1) as pool:
            tell(pool.submit(work, place=1, opened=2, function=3, work=4).result())
    """
    assert result(virtual_gpu, program) == ["function", "opened", "place", "work"]
