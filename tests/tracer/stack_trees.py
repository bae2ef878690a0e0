"""The last situation of stack_situations.py: one function calls the next in ways that chance chooses."""

import contextlib
import functools
import os
import random

from stack_compare import CALLBACK, HOLDING, LIBRARY, compare


def random_trees():
    """Random ways from one function into the next, a leaf here and there compares."""
    chooser = random.Random(int(os.environ.get("VRAM_STACK_SEED", "1")))
    turns = int(os.environ.get("VRAM_STACK_TREES", "400"))
    scope = {}
    exec(
        compile("def executed(go):\n\n\n    return (\n        go())\n", "écrit-\U0001f40d.py", "exec"), scope
    )

    class Thing:
        def __init__(self, go=None):
            if go:
                go()

        def method(self, go):
            return go()

        @classmethod
        def of_class(cls, go):
            return cls(go)

        def __call__(self, go):
            return go()

    def by_generator(go):
        def produce():
            yield go()

        return next(produce())

    def by_delegation(go):
        def produce():
            yield from (go() for _ in range(1))

        return list(produce())

    def by_coroutine(go):
        async def awaited():
            return go()

        async def run():
            return await awaited()

        with contextlib.suppress(StopIteration):
            run().send(None)

    def by_sort(go):
        return sorted([0], key=lambda _: go() or 0)

    def by_comprehension(go):
        return [go() for _ in range(1)]

    def by_callback(go):
        return chooser.choice((LIBRARY, HOLDING)).harness_call(CALLBACK(lambda: go() and None))

    def by_exception(go):
        try:
            raise KeyError
        except KeyError:
            return go()

    def by_context(go):
        class Manager:
            def __enter__(self):
                go()

            def __exit__(self, *_):
                pass

        with Manager():
            pass

    def by_many_lines(go):
        return [
            1,
            go(
            ),
        ]  # fmt: skip

    thing = Thing()
    ways = (
        lambda go: go(), Thing, thing.method, Thing.of_class, thing, scope["executed"],
        by_generator, by_delegation, by_coroutine, by_sort, by_comprehension, by_callback,
        by_exception, by_context, by_many_lines, functools.partial(lambda go: go()),
    )  # fmt: skip

    def grow(depth):
        if chooser.random() < 0.15:
            compare()
        if depth:
            chooser.choice(ways)(lambda: grow(depth - 1))
        else:
            compare()

    for _ in range(turns):
        grow(chooser.randrange(12))
