"""Scopes inside, beside and across each other: in threads, tasks and generators."""

from __future__ import annotations

from tests.guard.scoping import result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


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
