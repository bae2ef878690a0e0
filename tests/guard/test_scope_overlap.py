"""Scopes inside, beside and across each other: in threads, tasks and generators."""

from __future__ import annotations

from tests.guard.scoping import result
from vram.guard.scope import NOT_THE_LAST
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


def test_scopes_of_threads_that_overlap_are_checked_by_the_last(virtual_gpu: VirtualGpu) -> None:
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


def test_tasks_that_interleave_are_checked_together(virtual_gpu: VirtualGpu) -> None:
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


TASKS = """
    import asyncio
    scopes, hoard = {}, []

    async def work(name, arrived, other):
        async with vram.scope(name, leak="report") as scopes[name]:
            arrived.set()
            await other.wait()
            raw.alloc(8 * MIB)

    async def both():
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(work("one", one, two), work("two", two, one))
"""


def test_tasks_inside_a_scope_are_checked_together_too(virtual_gpu: VirtualGpu) -> None:
    program = (
        TASKS
        + """
    async def main():
        async with vram.scope("outer", leak="report") as scopes["outer"]:
            await both()

    asyncio.run(main())
    tell({name: [s.leak and s.leak.names, s.leak and s.leak.nbytes // MIB] for name, s in scopes.items()})
    """
    )
    told = result(virtual_gpu, program)
    assert told["outer"] == [["outer"], 16]
    judged = [told["one"], told["two"]]
    assert [None, None] in judged
    assert [["one", "two"], 16] in judged


def test_what_is_inside_one_of_two_that_overlap_is_judged_by_those_two_alone(
    virtual_gpu: VirtualGpu,
) -> None:
    program = """
        opened, done = threading.Event(), threading.Event()
        scopes = {}

        def beside():
            with vram.scope("beside", leak="report") as scopes["beside"]:
                opened.set()
                done.wait()

        thread = threading.Thread(target=beside)
        with vram.scope("outer", leak="report") as outer:
            with vram.scope("alone", leak="report") as alone:
                raw.alloc(4 * MIB)
            with vram.scope("inner", leak="report") as inner:
                raw.alloc(8 * MIB)
                thread.start()
                opened.wait()
            with vram.scope("later", leak="report") as later:
                raw.alloc(16 * MIB)
        done.set()
        thread.join()
        both = scopes["beside"].leak
        judged = [inner.leak, later.leak, outer.leak, both.names, both.nbytes // MIB]
        tell([alone.leak.nbytes // MIB, judged, inner.notes, later.notes, outer.notes])
    """
    alone, judged, *notes = result(virtual_gpu, program)
    assert alone == 4
    assert judged == [None, None, None, ["outer", "beside"], 28]
    inner, later, outer = ("\n".join(each) for each in notes)
    assert "could not be checked here" in inner
    assert inner == later
    assert NOT_THE_LAST in outer


CROWD = """
    hoard, first_in, both_in, first_out = [], threading.Event(), threading.Event(), threading.Event()
    before = vram.Buffer("1MiB")

    def first(act):
        with vram.scope("first", leak="report", track=True) as s:
            hoard.append(act(s))
            first_in.set()
            both_in.wait()
        first_out.set()

    def second():
        first_in.wait()
        with vram.scope("second", leak="report", track=True) as s:
            both_in.set()
            first_out.wait()
        hoard.append(s.leak)

    def together(act):
        threads = [threading.Thread(target=first, args=(act,)), threading.Thread(target=second)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return hoard[-1]
"""


def test_what_one_of_a_crowd_keeps_on_purpose_is_no_leak_of_the_crowd(virtual_gpu: VirtualGpu) -> None:
    program = (
        CROWD
        + """
    leak = together(lambda s: [s.keep(vram.Buffer("32MiB")), vram.Buffer("8MiB")])
    tell([leak.names, leak.nbytes // MIB])
    """
    )
    assert result(virtual_gpu, program) == [["first", "second"], 8]


def test_arrays_that_came_before_the_last_of_a_crowd_are_named(virtual_gpu: VirtualGpu) -> None:
    program = (
        CROWD
        + """
    leak = together(lambda s: vram.Buffer("32MiB"))
    tell([[kept.nbytes // MIB, "hoard[0]" in kept.holder] for kept in leak.arrays])
    """
    )
    assert result(virtual_gpu, program) == [[32, True]]


def test_a_crowd_that_never_ends_remembers_some_names(virtual_gpu: VirtualGpu) -> None:
    program = """
        from contextvars import Context

        before = None
        for number in range(3000):
            mine = Context(), vram.scope(f"request {number // 2}", leak="report", track=False)
            mine[0].run(mine[1].__enter__)
            if before:
                before[0].run(before[1].__exit__, None, None, None)
            before = mine
        names = list(mine[1]._node.group.names)
        tell([len(names), names[:2]])
        os._exit(0)
    """
    assert result(virtual_gpu, program) == [100, ["request 0", "request 1"]]
