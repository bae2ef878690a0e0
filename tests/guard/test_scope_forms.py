"""Scopes as decorators, with wrong words, and where there is no GPU."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from functools import partial
from inspect import iscoroutinefunction

import pytest

from tests.guard.scoping import NUMBA, result, run
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram import LeakDetected, LimitExceeded, scope, scoped
from vram.errors import UsageError
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


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


@pytest.mark.filterwarnings("ignore:no NVIDIA driver answers here")
def test_a_plain_decorator_keeps_the_function_as_it_is() -> None:
    @scoped
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert (double(3), double.__name__, double.__doc__) == (6, "double", "Twice.")


def test_anything_that_can_be_called_can_be_decorated() -> None:
    class Model:
        def __call__(self) -> str:
            return "called"

    class AsyncModel:
        async def __call__(self) -> str:
            await asyncio.sleep(0)
            return "awaited"

    assert scoped(partial(int, "7"))() == 7
    assert scoped()(Model())() == "called"
    assert iscoroutinefunction(scoped(AsyncModel()))
    assert asyncio.run(scoped(AsyncModel())()) == "awaited"


def test_what_has_no_name_is_called_after_what_it_is(virtual_gpu: VirtualGpu) -> None:
    program = """
        from functools import partial

        class Model:
            def __call__(self): raw.alloc(8 * MIB)

        def step(nbytes): raw.alloc(nbytes)

        names = []
        for each in (Model(), partial(partial(step, 8 * MIB))):
            try:
                vram.scoped(leak="raise")(each)()
            except vram.LeakDetected as error:
                names += error.leak.names
            with vram.ThreadPoolExecutor(1, leak="raise", initializer=raw.start) as pool:
                names += pool.submit(each).exception().leak.names
        tell(names)
    """
    assert result(virtual_gpu, program) == ["Model", "Model", "step", "step"]


def test_a_scope_tells_whether_it_is_new_open_or_closed() -> None:
    opened = scope("x", leak="report")
    seen = [repr(opened)]
    with opened:
        seen.append(repr(opened))
    seen.append(repr(opened))
    assert seen == ["<vram.scope 'x', new>", "<vram.scope 'x', open>", "<vram.scope 'x', closed>"]


@pytest.mark.parametrize("limit", ["much", "", "-1GiB", "1QiB", -1, 1.5, True, [1]])
def test_a_limit_that_is_no_size_is_a_usage_error(limit: object) -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        scope("x", limit=limit)  # type: ignore[arg-type]
    assert "8GiB" in caught.value.hint or "20GiB" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"leak": "explode"},
        {"tolerance": "some"},
        {"every_s": 0, "limit": "1GiB"},
        {"every_s": -1.0, "limit": "1GiB"},
        {"every_s": math.inf, "limit": "1GiB"},
        {"every_s": math.nan, "limit": "1GiB"},
        {"every_s": True, "limit": "1GiB"},
        {"every_s": 0.05},
    ],
)
def test_other_words_that_mean_nothing_are_usage_errors(options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        scope("x", **options)  # type: ignore[arg-type]
    assert caught.value.hint
    with pytest.raises(UsageError):
        scoped(**options)


def test_a_scope_is_entered_once_at_a_time() -> None:
    opened = scope("once")
    with opened, pytest.raises(UsageError, match="already open"):
        opened.__enter__()
    with opened:
        pass


def test_without_a_driver_scopes_do_nothing_and_say_so_once() -> None:
    loop = "for n in range(3):\n    with vram.scope('x', leak='raise', limit=0) as s: pass\n"
    program = f"import vram\n{loop}print(s.leak)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "None\n")
    said = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert [line.partition(":")[0] for line in said] == ([] if has_driver_files() else ["<string>"])


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
        tell(["libcuda.so" in text, "libnvidia-ml" in text])
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
