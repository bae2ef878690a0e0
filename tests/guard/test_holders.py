"""Who holds an object: every kind of holder has its text, and the search changes nothing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import vram
from tests.cpu_time import least_cpu_s
from tests.patience import PATIENCE_S
from vram.payloads.arrays.heap.search import shortest_paths


class Thing:
    """Stands for an array: what keeps one keeps the other."""


class Hostile:
    """Does harm whenever any of its code is run."""

    def __init__(self, kept: object) -> None:
        object.__getattribute__(self, "__dict__")["kept"] = kept

    def _harm(self, *words: object) -> Any:
        raise SystemExit("code of an object that was only met")

    __getattr__ = __getattribute__ = __repr__ = __str__ = __len__ = __iter__ = __eq__ = __bool__ = _harm
    __class__ = property(_harm)  # type: ignore[assignment]
    __hash__ = object.__hash__


@pytest.fixture
def module() -> Iterator[Any]:
    """A module that the program has imported."""
    made = ModuleType("somebodys_module")
    sys.modules["somebodys_module"] = made
    yield made
    del sys.modules["somebodys_module"]


def names(thing: object) -> list[str]:
    return [str(holder) for holder in vram.holders(thing)]


def lines_here() -> str:
    return f"test_holders.py:{sys._getframe(1).f_lineno}"


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda thing: {"x": thing}, "['x']"),
        (lambda thing: {("a", 3): [None, thing]}, "[('a', 3)][1]"),
        (lambda thing: deque([1, thing]), "[1]"),
        (lambda thing: (thing,), "[0]"),
        (lambda thing: {thing}, " (a member of the set)"),
        (lambda thing: {thing: 1}, " as a key"),
        (lambda thing: {"\x1b[2J": thing}, "['\\x1b[2J']"),
        (lambda thing: {"k" * 500: thing}, f"['{'k' * 37}…']"),
        (lambda thing: Hostile(thing), ".kept"),
        (lambda thing: {Hostile(None): thing}, "[<Hostile>]"),
        (lambda thing: type("Slotted", (), {"__slots__": ("held",)}), None),
    ],
)
def test_containers_and_attributes(module: Any, keep: Any, words: str | None) -> None:
    thing = Thing()
    module.kept = keep(thing)
    if words is None:
        module.kept = module.kept()
        module.kept.held = thing
        words = ".held"
    assert f"module somebodys_module: kept{words}" in names(thing)


def test_an_attribute_of_a_class(module: Any) -> None:
    class Model:
        cache: list[Thing] = [Thing()]  # noqa: RUF012

    module.Model = Model
    del Model
    assert "module somebodys_module: Model.cache[0]" in names(module.Model.cache[0])


def test_a_local_variable_of_the_caller() -> None:
    thing = Thing()
    found, here = names(thing), lines_here()
    assert f"{here} local 'thing' in test_a_local_variable_of_the_caller()" in found


def test_an_exception_somebody_kept(module: Any) -> None:
    def fail(out: Thing) -> None:
        raise ValueError

    thing = Thing()
    line = fail.__code__.co_firstlineno + 1
    try:
        fail(thing)
    except ValueError as error:
        module.errors = [error]
    expected = (
        f"test_holders.py:{line} local 'out' in frame of kept exception (module somebodys_module: errors[0])"
    )
    assert expected in names(thing)


def test_a_closure_and_a_hook(module: Any) -> None:
    def closing_over(kept: Thing) -> Any:
        return lambda: kept

    class Layer:
        def __init__(self, hook: Any) -> None:
            self._forward_hooks = {0: hook}

    one, other = Thing(), Thing()
    module.callback = closing_over(one)
    module.layers = [None, Layer(closing_over(other))]
    name = "test_a_closure_and_a_hook.<locals>.closing_over.<locals>.<lambda>"
    assert f"closure of {name}: kept (module somebodys_module: callback)" in names(one)
    assert "closure of hook on layers[1]: kept" in names(other)


def test_generators_and_coroutines(module: Any) -> None:
    def batches(batch: Thing) -> Iterator[int]:
        yield 1
        print(batch)

    async def fetch(reply: Thing) -> None:
        await asyncio.sleep(0)
        print(reply)

    one, other = Thing(), Thing()
    module.pending, module.job = batches(one), fetch(other)
    next(module.pending)
    module.job.send(None)
    assert any("local 'batch' in suspended generator batches() (module some" in name for name in names(one))
    assert any("local 'reply' in suspended coroutine fetch() (module some" in name for name in names(other))
    module.job.close()


def test_a_thread_and_its_own_storage(module: Any) -> None:
    ready, end = threading.Event(), threading.Event()
    one, other = Thing(), Thing()
    module.storage = threading.local()

    def work(mine: Thing) -> None:
        module.storage.cache = other
        ready.set()
        end.wait()

    thread = threading.Thread(target=work, args=(one,), name="worker \x1b7")
    thread.start()
    ready.wait()
    try:
        assert any(name.endswith("local 'mine' in work() of thread 'worker \\\\x1b7'") for name in names(one))
        assert "module somebodys_module: storage.cache in one thread" in names(other)
    finally:
        end.set()
        thread.join()


def test_the_shortest_way_is_told(module: Any) -> None:
    thing = Thing()
    module.far = {"a": {"b": {"c": [thing]}}}
    module.near = [thing]
    del thing
    found = shortest_paths(module.near, gc.get_objects())
    assert str(found.holder(id(module.near[0]))) == "module somebodys_module: near[0]"


class Optimizer:
    """Refers to what belongs to a model, on a shorter way than the model itself."""

    def __init__(self, *things: Thing) -> None:
        self.state = {thing: Thing() for thing in things}


def test_a_secondary_holder_is_named_only_if_there_is_no_other(module: Any) -> None:
    class Adam(Optimizer):
        pass

    module.optimizer = Adam(Thing())
    module.model = {"layers": [{"weight": next(iter(module.optimizer.state))}]}
    state = module.optimizer.state
    keys = [*map(id, state), *map(id, state.values())]
    del state
    found = shortest_paths(
        [*module.optimizer.state, *module.optimizer.state.values()], gc.get_objects(), secondary=[Optimizer]
    )
    assert [str(found.holder(key)) for key in keys] == [
        "module somebodys_module: model['layers'][0]['weight']",
        "module somebodys_module: optimizer.state[<Thing>]",
    ]


def test_looking_leaves_no_reference_behind(module: Any) -> None:
    def batches(batch: Thing) -> Iterator[int]:
        yield 1
        print(batch)

    thing = Thing()
    module.kept = [thing, batches(thing)]
    next(module.kept[1])
    gc.disable()
    try:
        vram.holders(thing)
        before = sys.getrefcount(thing)
        for _ in range(5):
            vram.holders(thing)
        assert sys.getrefcount(thing) == before
    finally:
        gc.enable()


def test_a_variable_that_is_deleted_after_the_look_is_gone() -> None:
    import weakref

    thing = Thing()
    gone = weakref.ref(thing)
    vram.holders(thing)
    del thing
    assert gone() is None


def test_the_variables_of_a_function_under_a_debugger_are_left_alone() -> None:
    def traced() -> tuple[str, Thing]:
        word, thing = "still here", Thing()
        frame = sys._getframe()
        frame.f_trace = tracer
        sys.settrace(tracer)
        vram.holders(thing)
        sys.settrace(previous)
        return word, thing

    def tracer(frame: Any, event: str, argument: object) -> Any:
        if frame.f_code is not traced.__code__:
            return None
        vram.holders(frame)
        return tracer

    previous = sys.gettrace()
    word, thing = traced()
    assert (word, type(thing)) == ("still here", Thing)


def test_a_snapshot_of_locals_that_a_program_holds_stays_as_it_is() -> None:
    def snapshot() -> dict[str, object]:
        word, thing = "here", Thing()
        taken = locals()
        vram.holders(thing)
        return {**taken, "word": word}

    assert {"word", "thing"} <= set(snapshot())


def test_a_search_without_time_says_so(module: Any) -> None:
    thing = Thing()
    module.near = [thing]
    found = vram.holders(thing, budget_s=0)
    assert found.was_cut
    assert "ran out of time" in repr(found)


def test_a_heap_of_a_million_objects_is_bounded(module: Any) -> None:
    module.much = [[number] for number in range(1_000_000)]
    thing = Thing()
    module.deep = [thing]
    assert least_cpu_s(lambda: vram.holders(thing, budget_s=0.5), 3) < 3


LOOKS = {
    "holders": "vram.holders(kept)",
    "of nobody": "vram.holders([])",
    "unknown to the collector": "inventory._untracked_arrays(gc.get_objects(), [int])",
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_program_that_used_asyncio_is_unharmed_by_a_look(look: str) -> None:
    """The collector's next run never ended on Python 3.12.0 to 3.12.5."""
    program = f"""
        import asyncio, gc, vram
        from vram.payloads.arrays import inventory

        async def wait(future): await future

        async def main():
            futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
            tasks = [asyncio.create_task(wait(future)) for future in futures]
            await asyncio.sleep(0)
            for future in futures: future.set_result(None)
            await asyncio.gather(*tasks)

        kept = []
        asyncio.run(main())
        for _ in range(2):
            {look}
            gc.collect()
        asyncio.run(main())
        print("unharmed")
    """
    argv = [sys.executable, "-c", dedent(program)]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S).stdout == "unharmed\n"


def test_html_is_inert(module: Any) -> None:
    thing = Thing()
    module.kept = {"<script>": thing}
    assert "&lt;script&gt;" in vram.holders(thing)._repr_html_()
    assert "<script>" not in vram.holders(thing)._repr_html_()
