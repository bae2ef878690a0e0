"""retry_on_oom: less and less until it fits, and nothing of the failed tries is left."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from tests.guard.scoping import NUMBA, result
from tests.needs import needs
from vram import retry_on_oom
from vram.errors import OutOfMemory, UsageError
from vram.guard.cuda_errors import is_out_of_memory
from vram.virtualgpu import VirtualGpu


@needs("numba")
def test_an_argument_is_halved_until_the_work_fits(virtual_gpu: VirtualGpu) -> None:
    program = """
        tried = []

        @vram.retry_on_oom(shrink="gib")
        def work(gib):
            tried.append(gib)
            return array(gib * GIB).nbytes // GIB

        tell([work(400), tried])
    """
    assert result(virtual_gpu, program, NUMBA) == [100, [400, 200, 100]]


@needs("numba")
def test_what_a_failed_try_held_is_there_for_the_next(virtual_gpu: VirtualGpu) -> None:
    """The first try keeps 100 of 140 GiB in a variable when it fails; the second needs them."""
    program = """
        tried = []

        @vram.retry_on_oom(shrink="parts")
        def work(parts):
            tried.append(parts)
            first = array(100 * GIB)
            rest = [array(20 * GIB) for _ in range(parts)]
            return first.nbytes + sum(each.nbytes for each in rest)

        tell([work(parts=2) // GIB, tried])
    """
    assert result(virtual_gpu, program, NUMBA) == [120, [2, 1]]


@needs("numba")
def test_when_nothing_smaller_is_left_the_last_error_is_raised_with_a_note(virtual_gpu: VirtualGpu) -> None:
    program = """
        try:
            vram.retry_on_oom(lambda n: array(n * 500 * GIB), shrink="n", least=2)(n=8)
        except Exception as error:
            tell([type(error).__name__, error.__notes__])
    """
    name, (note,) = result(virtual_gpu, program, NUMBA)
    assert name == "CudaAPIError"
    assert note == "vram: n=2 ran out of memory too, and there is no smaller one to try"


@needs("cuda")
def test_cuda_core_is_recognised(virtual_gpu: VirtualGpu) -> None:
    program = """
        from cuda.core import Device
        device = Device()
        device.set_current()
        stream = device.create_stream()

        @vram.retry_on_oom(shrink={"gib": lambda gib: gib - 100 if gib > 100 else None})
        def work(gib):
            return device.allocate(gib * GIB, stream=stream).size // GIB

        tell(work(gib=300))
    """
    assert result(virtual_gpu, program, NUMBA.split("import numpy")[0]) == 100


def calls(until: int) -> tuple[list[int], Any]:
    """A function that runs out of memory above *until*, and what it was called with."""
    seen: list[int] = []

    def work(size: int) -> int:
        seen.append(size)
        if size > until:
            raise OutOfMemory("it is full")
        return size

    return seen, work


def test_the_least_is_tried_too() -> None:
    seen, work = calls(until=3)
    assert retry_on_oom(work, shrink="size", least=3)(7) == 3
    assert seen == [7, 3]


def test_the_size_that_worked_can_be_remembered() -> None:
    seen, work = calls(until=4)
    remembering = retry_on_oom(work, shrink="size", remember=True)
    assert [remembering(16), remembering(16), remembering(2)] == [4, 4, 2]
    assert seen == [16, 8, 4, 4, 2]


def last_word(work: Any, *args: Any) -> str:
    """The note on the out-of-memory that is raised in the end."""
    with pytest.raises(OutOfMemory) as caught:
        work(*args)
    (note,) = caught.value.__notes__
    return note


def test_tries_that_are_used_up_are_said_to_be() -> None:
    _, work = calls(until=0)
    assert (
        last_word(retry_on_oom(work, shrink="size", tries=2), 8)
        == "vram: size=4 ran out of memory too, and tries=2 allows no more"
    )
    assert (
        last_word(retry_on_oom(work, shrink="size", tries=2), 2)
        == "vram: size=1 ran out of memory too, and there is no smaller one to try"
    )
    assert last_word(retry_on_oom(work), 8) == "vram: a second try ran out of memory too"
    assert last_word(retry_on_oom(work, tries=1), 8) == "vram: tries=1 allows no second try"


def test_a_fraction_is_halved_below_one() -> None:
    seen: list[float] = []

    @retry_on_oom(shrink="share")
    def work(share: float) -> float:
        seen.append(share)
        if share > 0.3:
            raise OutOfMemory("it is full")
        return share

    assert work(0.8) == 0.2
    assert seen == [0.8, 0.4, 0.2]


def test_a_fraction_as_the_least_is_kept_to() -> None:
    seen, work = calls(until=0)
    last_word(retry_on_oom(work, shrink="size", least=0.25), 0.8)
    assert seen == [0.8, 0.4, 0.25]
    seen.clear()
    last_word(retry_on_oom(work, shrink="size", least=1.5), 7)
    assert seen == [7, 3, 2]


@needs("numpy")
@pytest.mark.parametrize("kind", ["int64", "uint8", "float32"])
def test_numbers_of_numpy_are_halved(kind: str) -> None:
    import numpy

    seen, work = calls(until=3)
    assert retry_on_oom(work, shrink="size")(getattr(numpy, kind)(8)) == 2
    assert seen == [8, 4, 2]


@pytest.mark.parametrize("value", ["8", None, True, [8]])
def test_what_cannot_be_halved_leaves_the_out_of_memory_as_it_is(value: Any) -> None:
    def work(size: Any) -> None:
        raise OutOfMemory("it is full")

    assert last_word(retry_on_oom(work, shrink="size"), value) == (
        f"vram: size is a {type(value).__name__}, which cannot be halved: name a number, or map the name "
        "to a function"
    )


def test_the_last_word_prints_numbers_and_text_alone() -> None:
    """Showing a GPU array would need memory just then."""

    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError

    def work(batch: Any) -> None:
        raise OutOfMemory("it is full")

    word = last_word(retry_on_oom(work, shrink={"batch": lambda batch: None}), Unprintable())
    assert word.startswith("vram: batch=<Unprintable> ran out of memory")


def test_generators_and_coroutines_are_refused() -> None:
    """They are not run by the call, so they would never be tried again."""

    def generator(size: int) -> Any:
        yield size

    async def coroutine(size: int) -> int:
        return size

    async def both(size: int) -> Any:
        yield size

    for function in (generator, coroutine, both, partial(generator)):
        with pytest.raises(UsageError, match="is a generator or a coroutine"):
            retry_on_oom(function, shrink="size")


def test_another_error_is_raised_at_once() -> None:
    seen = []

    @retry_on_oom(shrink="size")
    def work(size: int) -> None:
        seen.append(size)
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        work(8)
    assert seen == [8]


def test_an_error_while_an_out_of_memory_is_handled_is_another_error() -> None:
    @retry_on_oom(shrink="size")
    def work(size: int) -> None:
        try:
            raise OutOfMemory("full")
        except OutOfMemory:
            raise KeyError(size)  # noqa: B904

    with pytest.raises(KeyError, match="8"):
        work(8)


def test_one_that_was_raised_from_it_counts() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = OutOfMemory("full")
    assert is_out_of_memory(wrapped)
    if sys.version_info < (3, 11):
        from exceptiongroup import ExceptionGroup
    else:
        from builtins import ExceptionGroup
    assert is_out_of_memory(ExceptionGroup("two", [ValueError(), OutOfMemory("full")]))
    assert not is_out_of_memory(ExceptionGroup("one", [ValueError()]))


class OutOfMemoryError(RuntimeError):
    """As PyTorch and CuPy name theirs."""


class XlaRuntimeError(RuntimeError):
    """As JAX names its own, for every kind of trouble."""


@pytest.mark.parametrize(
    ("kind", "module", "message", "is_one"),
    [
        (OutOfMemoryError, "torch", "CUDA out of memory.", True),
        (OutOfMemoryError, "cupy.cuda.memory", "Out of memory allocating 8 bytes", True),
        (OutOfMemoryError, "somebody.else", "out of cheese", False),
        (XlaRuntimeError, "jaxlib.xla_extension", "RESOURCE_EXHAUSTED: Out of memory while trying", True),
        (XlaRuntimeError, "jaxlib.xla_extension", "INVALID_ARGUMENT: shapes", False),
        (RuntimeError, "builtins", "CUDA error: out of memory", True),
        (RuntimeError, "builtins", "CUDA error: an illegal memory access", False),
        (MemoryError, "builtins", "", False),
        (MemoryError, "builtins", "std::bad_alloc: out_of_memory: CUDA error", True),
    ],
)
def test_every_frameworks_word_for_it_is_known(kind: Any, module: str, message: str, is_one: bool) -> None:
    raised = kind if module == "builtins" else type(kind.__name__, (kind,), {"__module__": module})
    assert is_out_of_memory(raised(message)) is is_one


@pytest.mark.parametrize(
    "options",
    [
        {"shrink": "missing"},
        {"shrink": 3},
        {"shrink": {"size": 2}},
        {"tries": 0},
        {"tries": "3"},
        {"shrink": "size", "least": 0},
        {"shrink": "size", "least": "1"},
    ],
)
def test_words_that_mean_nothing_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        retry_on_oom(lambda size: size, **options)
    assert caught.value.hint
