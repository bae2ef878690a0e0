"""A scope whose body fails: the error passes unmasked, and its frames are cleared."""

from __future__ import annotations

from tests.guard.scoping import NUMBA, result
from tests.needs import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


@needs("numba")
def test_an_exception_passes_unmasked_and_its_frames_are_cleared_of_arrays(virtual_gpu: VirtualGpu) -> None:
    program = """
        def without_arrays(count):
            work(count)

        def work(count):
            big = array(count * MIB)
            alive.append(weakref.ref(big))
            raise ValueError("the body's own")

        caught, alive = None, []
        try:
            with vram.scope("fails", leak="raise") as s:
                without_arrays(64)
        except ValueError as error:
            caught = error
        steps = caught.__traceback__.tb_next
        frames = (steps.tb_frame, steps.tb_next.tb_frame)
        tell([str(caught), alive[0]() is None, *(dict(frame.f_locals) for frame in frames)])
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


@needs("newer-python", detail="task groups and except* came with Python 3.11")
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
