"""Scopes: what a piece of work gained and kept is told, whoever allocated it; and nothing else is."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.guard.scoping import NUMBA, PREAMBLE, needs, result, run
from vram import LeakDetected, LimitExceeded, scope, scoped
from vram.errors import UsageError
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

# ---- what counts as a leak ----


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


def test_what_is_given_back_is_no_leak(virtual_gpu: VirtualGpu) -> None:
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
            tell([[each.what, each.nbytes, each.keeper] for each in error.leak.kept])
    """
    ((what, nbytes, keeper),) = result(virtual_gpu, program, NUMBA)
    assert what == "Numba uint8 67108864 on GPU 0"
    assert nbytes == 64 * MIB
    assert "history[0]" in keeper


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
    assert "the context was made inside the scope" in notes[0]


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
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with vram.scope("w"):
                raw.alloc(8 * MIB)
        tell([seen[0].category.__name__, seen[0].filename])
    """
    assert result(virtual_gpu, program) == ["LeakWarning", "<string>"]


# ---- exceptions ----


@needs("numba")
def test_an_exception_passes_unmasked_and_its_frames_let_go_of_arrays(virtual_gpu: VirtualGpu) -> None:
    program = """
        def bystander(count):
            work(count)

        def work(count):
            big = array(count * MIB)
            alive.append(weakref.ref(big))
            raise ValueError("the body's own")

        caught, alive = None, []
        try:
            with vram.scope("fails", leak="raise") as s:
                bystander(64)
        except ValueError as error:
            caught = error
        steps = caught.__traceback__.tb_next
        tell([str(caught), alive[0]() is None, steps.tb_frame.f_locals, steps.tb_next.tb_frame.f_locals])
    """
    assert result(virtual_gpu, program, NUMBA) == ["the body's own", True, {"count": 64}, {}]


def test_a_leak_beside_an_exception_is_a_note_on_it(virtual_gpu: VirtualGpu) -> None:
    program = """
        try:
            with vram.scope("both", leak="raise"):
                raw.alloc(64 * MIB)
                raise KeyError("mine")
        except KeyError as error:
            tell(error.__notes__)
    """
    (note,) = result(virtual_gpu, program)
    assert "scope 'both' kept 64.0 MiB" in note


def test_a_leak_in_a_task_group_comes_as_a_member_of_the_group(virtual_gpu: VirtualGpu) -> None:
    program = """
        import asyncio

        async def leaky():
            async with vram.scope("task", leak="raise"):
                raw.alloc(64 * MIB)

        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(leaky())

        try:
            asyncio.run(main())
        except* vram.LeakDetected as group:
            import pickle
            again = pickle.loads(pickle.dumps(group.exceptions[0]))
            tell([len(group.exceptions), again.leak.nbytes, again.hint == group.exceptions[0].hint])
    """
    assert result(virtual_gpu, program) == [1, 64 * MIB, True]


# ---- nested and at the same time ----


def test_scopes_nest_and_each_tells_its_own(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("outer", leak="report") as outer:
            raw.alloc(32 * MIB)
            with vram.scope("inner", leak="report") as inner:
                raw.alloc(64 * MIB)
        tell([outer.leak.nbytes, inner.leak.nbytes])
    """
    assert result(virtual_gpu, program) == [96 * MIB, 64 * MIB]


def test_scopes_of_threads_that_overlap_are_settled_by_the_last(virtual_gpu: VirtualGpu) -> None:
    """No figure tells threads apart: nobody is blamed alone, and nothing is lost."""
    program = """
        context = raw.out(__import__("ctypes").c_uint64, "cuCtxGetCurrent")
        both_in, first_done = threading.Barrier(2), threading.Event()
        scopes = {}

        def work(name, nbytes):
            raw.call("cuCtxSetCurrent", context)
            with vram.scope(name, leak="report") as scopes[name]:
                both_in.wait()
                raw.alloc(nbytes)
                if name == "late":
                    first_done.wait()
            first_done.set()

        sizes = {"early": 64 * MIB, "late": 32 * MIB}
        threads = [threading.Thread(target=work, args=each) for each in sizes.items()]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        with vram.scope("alone", leak="report") as alone:
            raw.alloc(16 * MIB)
        early, late = scopes["early"], scopes["late"].leak
        tell([early.leak, early.notes, sorted(late.names), late.nbytes, alone.leak.nbytes])
    """
    early, notes, names, nbytes, alone = result(virtual_gpu, program)
    assert early is None
    assert "at the same time" in notes[0]
    assert names == ["early", "late"]
    assert (nbytes, alone) == (96 * MIB, 16 * MIB)


def test_tasks_that_interleave_are_settled_together(virtual_gpu: VirtualGpu) -> None:
    program = """
        import asyncio
        scopes = []

        async def work(mine, other):
            async with vram.scope("task", leak="report") as s:
                scopes.append(s)
                mine.set()
                await other.wait()
                raw.alloc(32 * MIB)

        async def main():
            one, two = asyncio.Event(), asyncio.Event()
            await asyncio.gather(work(one, two), work(two, one))

        asyncio.run(main())
        tell(sorted(s.leak.nbytes if s.leak else 0 for s in scopes))
    """
    assert result(virtual_gpu, program) == [0, 64 * MIB]


# ---- the limit ----


def test_a_limit_is_checked_at_the_end(virtual_gpu: VirtualGpu) -> None:
    program = """
        try:
            with vram.scope("bounded", leak="report", limit="32MiB"):
                raw.alloc(64 * MIB)
        except vram.LimitExceeded as error:
            tell([str(error), error.gained])
    """
    text, gained = result(virtual_gpu, program)
    assert gained == 64 * MIB
    assert "gained 64.0 MiB of device memory; its limit is 32.0 MiB" in text


def test_a_watcher_stops_growth_while_it_happens(virtual_gpu: VirtualGpu) -> None:
    """The loop has no end of its own."""
    program = """
        pointers = []
        try:
            with vram.scope("endless", leak="report", limit="32MiB", every_s=0.002):
                while True:
                    pointers.append(raw.alloc(2 * MIB))
        except vram.LimitExceeded as error:
            tell([len(pointers) > 16, "its limit is 32.0 MiB" in str(error)])
    """
    assert result(virtual_gpu, program) == [True, True]


def test_a_watcher_that_comes_too_late_interrupts_nothing(virtual_gpu: VirtualGpu) -> None:
    """A thousand scopes that end while their watcher looks: none is struck afterwards or left open."""
    program = """
        from vram.guard import registry
        struck = 0
        for _ in range(1000):
            try:
                with vram.scope("race", leak="report", limit=0, every_s=0.00001):
                    pointer = raw.alloc(2 * MIB)
                    raw.call("cuMemFree_v2", pointer)
            except vram.LimitExceeded:
                struck += 1
            for _ in range(200):
                pass
        gc.collect()
        tell([struck > 0, registry._open, registry._crowd.open])
    """
    assert result(virtual_gpu, program) == [True, [], 0]


# ---- the decorator ----


@needs("numba")
def test_a_decorated_function_may_return_what_it_made(virtual_gpu: VirtualGpu) -> None:
    program = """
        import asyncio
        kept = []

        @vram.scoped(leak="raise")
        def made(): return array(64 * MIB)

        @vram.scoped("named", leak="raise")
        async def awaited(): return array(64 * MIB)

        @vram.scoped(leak="raise")
        def generated():
            yield 1
            kept.append(array(32 * MIB))

        one, two = made(), asyncio.run(awaited())
        try:
            list(generated())
        except vram.LeakDetected as error:
            tell([made.__name__, error.leak.names, error.leak.nbytes])
    """
    assert result(virtual_gpu, program, NUMBA) == ["made", ["generated"], 32 * MIB]


def test_a_plain_decorator_keeps_the_function_as_it_is() -> None:
    @scoped
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert (double(3), double.__name__, double.__doc__) == (6, "double", "Twice.")


# ---- bad input, and hosts without a GPU ----


@pytest.mark.parametrize("limit", ["much", "", "-1GiB", "1QiB", -1, 1.5, True, [1]])
def test_a_limit_that_is_no_size_is_a_usage_error(limit: object) -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        scope("x", limit=limit)  # type: ignore[arg-type]
    assert "8GiB" in caught.value.hint or "20GiB" in caught.value.hint


@pytest.mark.parametrize(
    "options", [{"leak": "explode"}, {"tolerance": "some"}, {"every_s": 0}, {"every_s": -1.0}]
)
def test_other_words_that_mean_nothing_are_usage_errors(options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        scope("x", **options)  # type: ignore[arg-type]
    assert caught.value.hint
    with pytest.raises(UsageError):
        scoped(**options)


def test_a_scope_is_entered_once_at_a_time() -> None:
    opened = scope("once")
    with opened, pytest.raises(UsageError, match="open already"):
        opened.__enter__()
    with opened:
        pass


def test_without_a_driver_scopes_do_nothing_and_say_so_once() -> None:
    loop = "for n in range(3):\n    with vram.scope('x', leak='raise', limit=0) as s: pass\n"
    program = f"import vram\n{loop}print(s.leak)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "None\n")
    said = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert len(said) == (0 if has_driver_files() else 1)


def has_driver_files() -> bool:
    from pathlib import Path

    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def test_an_async_scope_works_without_a_driver_too() -> None:
    async def main() -> object:
        async with scope("a") as opened:
            await asyncio.sleep(0)
        return opened.leak

    assert asyncio.run(main()) is None


def test_a_scope_wakes_nothing(virtual_gpu: VirtualGpu) -> None:
    """A process that has a driver at hand and does not use it has no context afterwards."""
    program = """
        with vram.scope("quiet"):
            pass
        with open("/proc/self/maps") as maps:
            text = maps.read()
        tell(["libcuda" in text, "libnvidia-ml" in text])
    """
    bare = "import json, vram\ndef tell(value): print(json.dumps(value))\n"
    assert result(virtual_gpu, program, bare) == [False, False]


def test_errors_have_their_place_in_the_tree() -> None:
    from vram import VramError

    assert issubclass(LeakDetected, VramError)
    assert issubclass(LimitExceeded, VramError)


def test_a_forked_child_measures_itself(virtual_gpu: VirtualGpu) -> None:
    """What the parent holds is not the child's to answer for."""
    program = """
        raw.alloc(64 * MIB)
        child = os.fork()
        if child == 0:
            with vram.scope("child", leak="raise"):
                pass
            os._exit(7)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = run(virtual_gpu, program)
    assert done.stdout.strip() == "7", done.stderr


# ---- erasing ----


def test_what_lies_in_a_pool_is_erased_at_the_end(virtual_gpu: VirtualGpu) -> None:
    """The control first: without it, the pool hands every old byte to the next owner."""
    program = """
        import ctypes
        pool = raw.out(ctypes.c_uint64, "cuDeviceGetDefaultMemPool", 0)
        raw.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(GIB)))

        def secrets_seen(**options):
            with vram.scope("secret", leak="raise", **options) as s:
                pointer = raw.out(ctypes.c_uint64, "cuMemAllocAsync", 8 * MIB, 0)
                raw.call("cuMemsetD8_v2", pointer, 0x5A, 8 * MIB)
                raw.call("cuMemFreeAsync", pointer, 0)
                raw.call("cuCtxSynchronize")
            again = raw.out(ctypes.c_uint64, "cuMemAllocAsync", 8 * MIB, 0)
            seen = raw.read(again, 8 * MIB).count(0x5A)
            raw.call("cuMemFreeAsync", again, 0)
            raw.call("cuCtxSynchronize")
            return seen

        tell([secrets_seen(), secrets_seen(zero_on_exit=True)])
    """
    assert result(virtual_gpu, program) == [8 * MIB, 0]
