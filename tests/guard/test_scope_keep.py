"""What is said to be meant to stay: each piece of memory once, and only while it is there."""

from __future__ import annotations

from tests.guard.scoping import NUMBA, result
from tests.needs import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_what_is_kept_several_times_counts_once(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("load", leak="report") as s:
            model = s.keep(vram.Buffer("8MiB"))
            s.keep(model)
            s.keep([model, {"again": model}])
            forgotten = vram.Buffer("8MiB")
        tell(s.leak.nbytes)
    """
    assert result(virtual_gpu, program) == 8 * MIB


LAZY = """
        class Lazy:
            # As web frameworks have them: to be asked for its class wakes it, at the wrong time it fails.
            @property
            def __class__(self):
                raise LookupError("woken")
"""


def test_lazy_objects_in_what_is_kept_are_not_woken(virtual_gpu: VirtualGpu) -> None:
    program = f"""
{LAZY}
        @vram.scoped(leak="report")
        def load():
            return [Lazy(), vram.Buffer("8MiB")]
        tell(len(load()))
    """
    assert result(virtual_gpu, program) == 2


def test_lazy_objects_among_a_failed_frames_variables_are_not_woken(virtual_gpu: VirtualGpu) -> None:
    """The body's own error comes out, and releases the array beside the lazy object."""
    program = f"""
{LAZY}
        def load():
            lazy, big = Lazy(), vram.Buffer("8MiB")
            alive.append(weakref.ref(big))
            raise ValueError("mine")
        alive = []
        try:
            with vram.scope("fails"):
                load()
        except Exception as error:
            tell([repr(error), alive[0]() is None])
    """
    assert result(virtual_gpu, program) == ["ValueError('mine')", True]


def test_what_was_kept_and_then_freed_excuses_nothing(virtual_gpu: VirtualGpu) -> None:
    """The driver gives the same address to the next one."""
    program = """
        with vram.scope("load", leak="report") as s:
            model = s.keep(vram.Buffer("8MiB"))
            address = model.pointer
            model.close()
            forgotten = vram.Buffer("8MiB")
        tell([forgotten.pointer == address, s.leak and s.leak.nbytes])
    """
    assert result(virtual_gpu, program) == [True, 8 * MIB]


def test_what_was_kept_and_then_dropped_excuses_nothing(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("load", leak="report") as s:
            s.keep(vram.Buffer("8MiB"))
            forgotten = vram.Buffer("8MiB")
        tell(s.leak and s.leak.nbytes)
    """
    assert result(virtual_gpu, program) == 8 * MIB


def test_what_takes_the_place_of_something_older_is_kept_all_the_same(virtual_gpu: VirtualGpu) -> None:
    """A freed object's place in memory, and so its ``id``, goes to another one.

    Not always to the next of its kind: it is tried until it happens.
    """
    program = """
        reused, leaks = False, []
        for attempt in range(200):
            model = vram.Buffer("8MiB")
            before = id(model)
            with vram.scope("load", leak="report", track=True) as s:
                model = None
                model = s.keep(vram.Buffer("32MiB"))
            reused = id(model) == before
            leaks.append(s.leak)
            if reused:
                break
        tell([reused, any(leaks)])
    """
    assert result(virtual_gpu, program) == [True, False]


@needs("numba")
def test_memory_that_was_kept_by_a_view_stays_kept_without_it(virtual_gpu: VirtualGpu) -> None:
    """As PyTorch's state_dict() does, whose tensors are new ones each time."""
    program = """
        with vram.scope("load", leak="report") as s:
            model = array(8 * MIB)
            s.keep({"weights": model[4:]})
        tell(s.leak)
    """
    assert result(virtual_gpu, program, NUMBA) is None


def test_what_a_decorated_generator_yields_is_its_consumers(virtual_gpu: VirtualGpu) -> None:
    """It goes on as a generator: what is sent or thrown into it arrives, and it returns."""
    program = """
        first = vram.Buffer("1MiB")

        @vram.scoped(leak="raise")
        def batches():
            sent = yield vram.Buffer("8MiB")
            try:
                yield vram.Buffer(sent)
            except KeyError:
                yield vram.Buffer("16MiB")
            return vram.Buffer("32MiB")

        steps = batches()
        seen = [next(steps), steps.send("4MiB"), steps.throw(KeyError())]
        try:
            next(steps)
        except StopIteration as end:
            seen.append(end.value)
        tell([each.nbytes // MIB for each in seen])
    """
    assert result(virtual_gpu, program) == [8, 4, 16, 32]


def test_a_decorated_generator_says_that_its_consumer_counts_too(virtual_gpu: VirtualGpu) -> None:
    program = """
        @vram.scoped(leak="raise")
        def batches():
            yield from range(3)

        @vram.scoped(leak="raise")
        def made():
            raw.alloc(8 * MIB)

        def text_of(call):
            try:
                call()
            except vram.LeakDetected as error:
                return str(error)

        tell([text_of(lambda: [raw.alloc(8 * MIB) for _ in batches()]), text_of(made)])
    """
    consumed, made = result(virtual_gpu, program)
    assert "scope 'batches' kept 24.0 MiB" in consumed
    assert "note: memory kept by its consumer between yields is included" in consumed
    assert "consumer" not in made
