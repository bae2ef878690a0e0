"""vram.live: sizes, sharing, holders, and the frameworks' own objects left alone."""

from __future__ import annotations

import pytest

import vram
from tests.guard.scoping import NUMBA, result
from tests.needs import needs
from vram.errors import NoSuchDevice
from vram.guard.live import Live, LiveArray
from vram.payloads.arrays.heap.search import ObjectHolder, ReferencePaths
from vram.payloads.arrays.provider import Description
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


@needs("numba")
def test_size_device_dtype_shape_and_holder(two_virtual_gpus: VirtualGpu) -> None:
    told = result(
        two_virtual_gpus,
        """
        first = cuda.device_array((256, 1024), numpy.float32)
        with cuda.gpus[1]:
            second = cuda.device_array((3, 5, 7), numpy.int16)
        def fields(found):
            return [[a.framework, a.nbytes, a.device, a.dtype, a.shape, a.holder.text, a.note] for a in found]
        tell([fields(vram.live()), fields(vram.live(1)), vram.live().nbytes])
        """,
        NUMBA,
    )
    one = ["Numba", MIB, 0, "float32", [256, 1024], "__main__: first", ""]
    other = ["Numba", 210, 1, "int16", [3, 5, 7], "__main__: second", ""]
    assert told == [[one, other], [other], MIB + 210]


@needs("numba")
def test_views_are_told_and_counted_once(virtual_gpu: VirtualGpu) -> None:
    """A small view that keeps a large array says so."""
    told = result(
        virtual_gpu,
        """
        def view():
            return array(64 * MIB)[:16]
        rows = [view()]
        rows.append(rows[0][:8])
        found = vram.live()
        tell([[[a.nbytes, a.note, a.is_shared] for a in found], found.nbytes, repr(found).splitlines()[0]])
        """,
        NUMBA,
    )
    notes, nbytes, text = told
    assert sorted(note[1] for note in notes) == ["a view of 16 of these bytes", "a view of 8 of these bytes"]
    assert [[note[0], note[2]] for note in notes] == [[64 * MIB, False], [64 * MIB, True]]
    assert nbytes == 64 * MIB
    assert text == "64.0 MiB in 2 live arrays on GPUs: Numba 64.0 MiB"


@needs("numba")
def test_memory_of_a_framework_without_an_array(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        kept = cuda.current_context().memalloc(32 * MIB)
        closed = vram.Buffer(8 * MIB); closed.close()
        pinned = vram.Buffer.pinned(8 * MIB)
        tell([[a.framework, a.nbytes, a.dtype, a.holder.text] for a in vram.live()])
        """,
        NUMBA,
    )
    assert told == [["Numba", 32 * MIB, "memory", "__main__: kept"]]


@needs("numba")
def test_managed_arrays_count_and_mapped_ones_lie_on_the_host(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        managed = cuda.managed_array((32, MIB), numpy.uint8)
        mapped = cuda.mapped_array((8, MIB), numpy.uint8)
        found = vram.flush().live
        tell([[a.framework, a.nbytes, a.device, a.dtype, a.shape, a.holder.text, a.note] for a in found])
        """,
        NUMBA,
    )
    assert told == [["Numba", 32 * MIB, 0, "uint8", [32, MIB], "__main__: managed", ""]]


@needs("numba")
def test_a_subclass_with_code_of_its_own_is_not_run(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        class Lazy(DeviceNDArray):
            shape = property(lambda self: os._exit(3), lambda self, value: self.__dict__.update(shape=value))
        plain = cuda.device_array(1024, numpy.uint8)
        lazy = Lazy.__new__(Lazy)
        lazy.__dict__.update(plain.__dict__)
        tell([[a.nbytes, list(a.shape), a.holder.text] for a in vram.live()])
        """,
        NUMBA,
    )
    assert sorted(told) == [[1024, [1024], "__main__: lazy"], [1024, [1024], "__main__: plain"]]


@needs("numba")
def test_nothing_is_kept_by_having_looked(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        def work():
            batch = array(16 * MIB)
            found = vram.live()
            gone = weakref.ref(batch)
            del batch
            return gone() is None, found[0].holder.text.partition(" ")[2]
        gc.disable()
        tell(work())
        """,
        NUMBA,
    )
    assert told == [True, "local 'batch' in work()"]


def test_no_framework_is_imported_for_it(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        before = set(sys.modules)
        vram.live(); vram.flush()
        tell(sorted(name for name in set(sys.modules) - before if not name.startswith(("vram", "_"))))
        """,
    )
    assert not {"torch", "cupy", "jax", "numba", "pycuda", "numpy", "rich", "IPython"} & set(told)


@pytest.mark.parametrize("device", [-1, True, "0"])
def test_a_device_that_cannot_be(device: object) -> None:
    with pytest.raises(NoSuchDevice):
        vram.live(device)  # type: ignore[arg-type]


def test_a_table_groups_neighbours_and_is_inert() -> None:
    paths = ReferencePaths()

    def array(nbytes: int, holder: str) -> LiveArray:
        paths.holders[key := len(paths.holders)] = ObjectHolder(holder, "module")
        return LiveArray("PyTorch", Description(nbytes, 0, nbytes, "float32", (2, 3)), False, paths, key)

    many = tuple(array(MIB + number, f"module m: history[{number}]") for number in range(5))
    found = Live((*many, array(MIB, "module m: x['<b>']")), was_cut=True)
    text, html = repr(found), found._repr_html_()
    assert "5 × float32 (2, 3)  module m: history[0…4]" in text
    assert "ran out of time" in text
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
