"""Scopes that nobody leaves: at the interpreter's end, in generators and threads, by a finalizer."""

from __future__ import annotations

import pytest

from tests.guard.scoping import result, run
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

LEFT_OPEN = {
    "by the program": """
        opened = vram.scope("left open", limit="1GiB").__enter__()
    """,
    "in a cycle": """
        class Node: pass
        node = Node()
        node.me, node.scope = node, vram.scope("left open").__enter__()
        del node
    """,
    "in a generator": """
        def batches():
            with vram.scope("left open", leak="raise"):
                raw.alloc(2 * MIB)
                yield 1
        batch = batches()
        next(batch)
    """,
    "in an async generator": """
        async def batches():
            async with vram.scope("left open", leak="raise"):
                raw.alloc(2 * MIB)
                yield 1
        batch = batches()
        try:
            batch.__anext__().send(None)
        except StopIteration:
            pass
    """,
    "in a daemon thread": """
        ready = threading.Event()
        def work():
            with vram.scope("left open", limit="1GiB", every_s=0.001):
                ready.set()
                threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        ready.wait()
    """,
    "in a module of its own": """
        import types
        sys.modules["theirs"] = theirs = types.ModuleType("theirs")
        theirs.opened = [vram.scope("left open").__enter__()]
        theirs.recorder = vram.on_oom()
        theirs.buffer = vram.Buffer("1MiB")
        theirs.lent = theirs.buffer.__dlpack__()
        theirs.thread = vram.Thread(target=print)
        theirs.pool = vram.ThreadPoolExecutor(1)
        theirs.pool.submit(int).result()
    """,
}


@pytest.mark.parametrize("where", LEFT_OPEN)
def test_a_scope_left_open_ends_in_silence_with_the_interpreter(virtual_gpu: VirtualGpu, where: str) -> None:
    done = run(virtual_gpu, LEFT_OPEN[where] + "\n        tell(1)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_finalizer_in_the_midst_of_the_registry_does_not_wait_for_itself(virtual_gpu: VirtualGpu) -> None:
    """The collector runs anywhere, also while a scope that begins holds the lock."""
    program = """
        from vram.guard import scope_tree

        class Node: pass

        def abandon():
            node = Node()
            node.me, node.scope = node, vram.scope("abandoned", leak="report").__enter__()

        abandon()
        measure = scope_tree.read_footprint
        def collecting():
            gc.collect()
            return measure()
        scope_tree.read_footprint = collecting
        with vram.scope("next", leak="report") as s:
            raw.alloc(2 * MIB)
        scope_tree.read_footprint = measure
        with vram.scope("alone", leak="report") as alone:
            raw.alloc(4 * MIB)
        tell([len(scope_tree._open), scope_tree._root.child_group.open, alone.leak.nbytes])
    """
    assert result(virtual_gpu, program) == [0, 0, 4 * MIB]


def test_a_scope_that_is_dropped_elsewhere_changes_nothing_for_the_one_that_runs(
    virtual_gpu: VirtualGpu,
) -> None:
    program = """
        abandoned = []
        def open_one():
            abandoned.append(vram.scope("abandoned", leak="report").__enter__())
        thread = threading.Thread(target=open_one)
        thread.start()
        thread.join()
        with vram.scope("outer", leak="report") as outer:
            abandoned.clear()
            with vram.scope("inner", leak="report") as inner:
                raw.alloc(4 * MIB)
        tell([inner.leak.names, inner.notes])
    """
    assert result(virtual_gpu, program) == [["inner"], []]


def test_a_generator_that_ends_between_keeps_nobody_as_its_child(virtual_gpu: VirtualGpu) -> None:
    """Its scope was around the consumer's when that began, and is gone when that ends."""
    program = """
        from vram.guard import scope_tree

        def batches():
            with vram.scope("batches", leak="report"):
                yield 1

        batch = batches()
        next(batch)
        with vram.scope("consumer", leak="report"):
            batch.close()
        with vram.scope("later", leak="report") as later:
            raw.alloc(4 * MIB)
        tell([later.leak.names, later.notes, scope_tree._current.get(), scope_tree._open])
    """
    assert result(virtual_gpu, program) == [["later"], [], None, []]


def test_a_watcher_lets_an_abandoned_scope_go(virtual_gpu: VirtualGpu) -> None:
    program = """
        opened = vram.scope("abandoned", leak="report", limit="1GiB", every_s=0.001).__enter__()
        watcher, gone = opened._watcher._thread, weakref.ref(opened)
        del opened
        while gone() is not None:
            pass
        watcher.join()
        tell(threading.active_count())
    """
    assert result(virtual_gpu, program) == 1


def test_a_finalizer_may_open_a_scope_while_another_begins(virtual_gpu: VirtualGpu) -> None:
    """The collector runs it in the midst of our own work, in the same thread."""
    program = """
        import gc
        class Cleans:
            def __init__(self):
                self.me = self
            def __del__(self):
                with vram.scope("in a finalizer"):
                    done.append(1)
        done = []
        for at in range(60):
            gc.disable()
            Cleans()
            gc.set_threshold(1 + at % 20, 1, 1)
            gc.enable()
            with vram.scope("around"):
                pass
        gc.collect()
        tell(len(done))
    """
    assert result(virtual_gpu, program) == 60
