"""Frames in all situations: here those of the language; stack_runtime.py and stack_trees.py have others.

    python stack_situations.py HARNESS

Prints a JSON object: how much each situation compared, and what differed.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import sys

from stack_compare import CALLBACK, HOLDING, LIBRARY, WALKS, Place, Result, compare
from stack_runtime import foreign_thread, imports, sub_interpreter, threads, tracing
from stack_trees import random_trees


def plain_calls():
    def inner(number):
        compare()
        return number

    return inner(
        inner(1)
        + inner(
            2,
        )
    )


def recursion():
    def descend(depth):
        if depth:
            descend(depth - 1)
        else:
            compare()
            compare(most=64)
            compare(most=1)

    descend(500)


def generators():
    def inner():
        compare()
        yield 1
        compare()
        try:
            yield 2
        finally:
            compare()

    def outer():
        yield from inner()
        yield from (compare() for _ in range(2))

    list(outer())
    abandoned = outer()
    next(abandoned), next(abandoned)
    abandoned.close()
    sent = outer()
    sent.send(None)
    with contextlib.suppress(ValueError):
        sent.throw(ValueError)


def tasks():
    async def numbers():
        for each in range(3):
            compare()
            await asyncio.sleep(0)
            yield each

    async def work():
        compare()
        async for _ in numbers():
            compare()
        return [each async for each in numbers()]

    async def main():
        await asyncio.gather(*(work() for _ in range(4)))
        await asyncio.get_running_loop().run_in_executor(None, compare)

    asyncio.run(main())


def expressions():
    (lambda: compare())()
    [compare() for _ in range(2)]
    {compare() for _ in range(2)}
    {each: compare() for each in range(2)}
    list(compare() for _ in range(2))  # noqa: C400
    [[compare() for _ in range(2)] for _ in range(2)]
    f"{compare()} {[compare() for _ in range(1)]}"
    _ = True and (
        compare(),
        compare(),
    )


def decorators():
    def traced(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @functools.cache
    @traced
    @functools.partial(functools.partial, functools.partial)
    def work():
        compare()

    work()()

    @contextlib.contextmanager
    def around():
        compare()
        yield
        compare()

    with around():
        compare()
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(compare)
        raise KeyError


def classes():
    class Meta(type):
        def __new__(meta, name, bases, body):
            compare()
            return super().__new__(meta, name, bases, body)

    class Thing(metaclass=Meta):
        compare()

        def __init__(self, number=0):
            compare()
            self.number = number

        def __getitem__(self, key):
            compare()
            return key

        @property
        def size(self):
            compare()
            return 1

        def __getattr__(self, name):
            compare()
            raise AttributeError(name)

        def __eq__(self, other):
            compare()
            return True

        def __lt__(self, other):
            compare()
            return True

        def __iter__(self):
            compare()
            return iter(())

        def __enter__(self):
            compare()

        def __exit__(self, *_):
            compare()

    # Often enough for the interpreter to specialise the calls, which it makes without C frames then.
    for _ in range(40):
        thing = Thing(1)
        (
            thing["key"],
            thing.size,
            thing == thing,
            sorted([thing, thing]),
            list(thing),
            hasattr(thing, "missing"),
        )
        with thing:
            pass


def from_c():
    sorted([3, 1, 2], key=lambda number: compare() or number)
    list(map(lambda _: compare(), range(2)))  # noqa: C417
    functools.reduce(lambda left, right: compare(), range(3))
    max([1, 2], key=lambda number: compare() or number)

    def called():
        compare()

    LIBRARY.harness_call(CALLBACK(called))
    HOLDING.harness_call(CALLBACK(called))
    LIBRARY.harness_call(CALLBACK(lambda: sorted([2, 1], key=lambda number: called() or number)))
    exec("compare()")
    eval("[compare() for _ in range(2)]")


class _Name(str):
    """Is not read: it may be laid out in another way."""


def qualified_names():
    """What Python itself calls these functions, written out; before 3.11 only the last part."""

    class Model:
        class Layer:
            def forward(self):
                check("qualified_names.<locals>.Model.Layer.forward")

        def forward(self):
            check("qualified_names.<locals>.Model.forward")
            self.Layer().forward()

            def inner():
                check("qualified_names.<locals>.Model.forward.<locals>.inner")

            inner()

        @staticmethod
        def make():
            check("qualified_names.<locals>.Model.make")

        @property
        def weights(self):
            check("qualified_names.<locals>.Model.weights")

        def batches(self):
            check("qualified_names.<locals>.Model.batches")
            yield

        async def fetch(self):
            check("qualified_names.<locals>.Model.fetch")

        apply = lambda self: check("qualified_names.<locals>.Model.<lambda>")  # noqa: E731

    class Child(Model):
        pass

    def check(name):
        place, code = (Place * 2)(), sys._getframe(1).f_code
        wanted = name if sys.version_info >= (3, 11) else name.rpartition(".")[2]
        for walk in WALKS:
            walk(place, 2)
            Result.compared += 1
            if place[1].function.decode() != wanted or getattr(code, "co_qualname", wanted) != wanted:
                Result.differ(place[1].function.decode(), wanted)
        compare()

    for model in (Model(), Child()):
        model.forward()
        model.make()
        _ = model.weights
        list(model.batches())
        with contextlib.suppress(StopIteration):
            model.fetch().send(None)
        model.apply()
        (lambda: check("qualified_names.<locals>.<lambda>"))()
        list(check("qualified_names.<locals>.<genexpr>") for _ in range(1))  # noqa: C400
    _module_level(check)


def _module_level(check):
    check("_module_level")


def odd_names():
    names = (
        "",
        "x" * 100_000,
        "ä",
        "\u0394ata",
        "\U0001f40d" * 300,
        "nul\0l",
        "bad\udc80byte",
        "é" * 1023,
        "~" * 1023,
    )
    for name in names:
        code = compile("def f():\n\n  compare()\n", name, "exec") if "\0" not in name else None
        if code is None:
            code = compile("def f():\n compare()", "plain", "exec")
        scope = {"compare": compare}
        exec(code, scope)
        function = scope["f"]
        function.__code__ = function.__code__.replace(co_name=name, co_filename=name)
        function()
        if hasattr(function.__code__, "co_qualname"):
            for qualified in (name, "Outer." + name, _Name("Outer." + name)):
                function.__code__ = function.__code__.replace(co_qualname=qualified)
                function()
    for source in (
        "compare()",
        "\n" * 70_000 + "compare()",
        "compare(\n" + "\n" * 300 + ")",
        "if 1:\n" + " 1\n" * 600 + " compare()",
    ):
        exec(compile(source, "lines", "exec"))
    scope = {"compare": compare}
    exec(compile("def f(\n" + "\n" * 200 + "): return compare()\n", "<signature>", "exec"), scope)
    scope["f"]()
    scope["f"].__code__ = scope["f"].__code__.replace(co_firstlineno=1_000_000)
    scope["f"]()


def immortal_code():
    """3.14 marks a frame's reference to an object that is never freed."""
    scope = {"compare": compare}
    exec("def f():\n compare()\n", scope)
    code = scope["f"].__code__
    if sys.version_info >= (3, 12):
        ctypes.c_uint32.from_address(id(code)).value = 0xC0000000  # the count that makes it immortal
    scope["f"]()


def closures():
    source = "def outer({0}):\n def inner():\n  compare()\n  return {1}\n inner()\n compare()\n"
    names = [f"n{each}" for each in range(200)]
    scope = {"compare": compare}
    exec(source.format(", ".join(names), " and ".join(names)), scope)
    scope["outer"](*range(200))


def exceptions():
    def fail():
        try:
            raise ValueError
        finally:
            compare()

    for _ in range(3):
        try:
            fail()
        except ValueError:
            compare()
            try:
                fail()
            except ValueError as error:
                compare()
                del error


def collection():
    class Finalized:
        def __init__(self):
            self.itself = self

        def __del__(self):
            compare()

    def during(phase, info):
        compare()

    def make():
        for _ in range(3):
            Finalized()

    make()
    gc.callbacks.append(during)
    gc.collect()
    gc.callbacks.remove(during)
    before = gc.get_threshold()
    # At each allocation of a container: also while frames, generators and cells are being set up.
    gc.callbacks.append(during)
    gc.set_threshold(1)
    generators()
    closures_of = [functools.partial(lambda value: lambda: value, each) for each in range(20)]
    [each()() for each in closures_of]
    gc.set_threshold(*before)
    gc.callbacks.remove(during)


SITUATIONS = (
    plain_calls, recursion, generators, tasks, expressions, decorators, classes, from_c, qualified_names,
    odd_names, immortal_code, closures, exceptions, threads, foreign_thread, collection, tracing, imports,
    sub_interpreter, random_trees,
)  # fmt: skip


def main():
    counts = {}
    for each in SITUATIONS:
        before = Result.compared
        each()
        counts[each.__name__] = Result.compared - before
    print(Result.as_json(counts=counts))


if __name__ == "__main__":
    main()
