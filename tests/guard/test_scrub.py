"""Scrubbing erases exactly what an array covers, in any library, and is done when it returns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.guard.owner import told
from tests.needs import needs
from vram.guard.borrowed import byte_rows
from vram.guard.dlpack import BYTE, ArrayLayout, ElementType, dense
from vram.virtualgpu import VirtualGpu


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ArrayLayout, set[int]]:
    """Any view of a small dense array: sliced, stepped, reversed, transposed, repeated; and its bytes."""
    nbytes = draw(st.sampled_from([1, 2, 4]))
    whole = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    offset, shape, strides = 0, [], []
    for extent, stride in zip(whole, dense(tuple(whole), nbytes), strict=True):
        step = draw(st.sampled_from([-2, -1, 1, 2, 3]))
        start = draw(st.integers(0, extent - 1))
        chosen = range(start, extent, step) if step > 0 else range(start, -1, step)
        offset += start * stride
        shape.append(len(chosen))
        strides.append(step * stride)
    if draw(st.booleans()):
        shape.append(3)
        strides.append(0)
    order = draw(st.permutations(range(len(shape))))
    layout = ArrayLayout(
        tuple(shape[at] for at in order),
        tuple(strides[at] for at in order),
        ElementType(BYTE.code, nbytes * 8),
    )
    return layout, _bytes_of(layout)


def _bytes_of(layout: ArrayLayout) -> set[int]:
    covered = {0}
    for extent, stride in zip(layout.shape, layout.byte_strides, strict=True):
        covered = {at + number * stride for at in covered for number in range(extent)}
    return {at + byte for at in covered for byte in range(layout.element.nbytes)}


@given(layouts())
def test_the_pieces_are_exactly_the_bytes_of_the_array(case: tuple[ArrayLayout, set[int]]) -> None:
    layout, expected = case
    touched: set[int] = set()
    for piece in byte_rows(layout):
        assert piece.width <= piece.pitch or piece.height == 1
        for row in range(piece.height):
            begin = piece.offset + row * piece.pitch
            touched |= set(range(begin, begin + piece.width))
    assert touched == expected


@given(st.lists(st.integers(1, 6), max_size=5))
def test_a_dense_array_is_one_piece(shape: list[int]) -> None:
    assert len(list(byte_rows(ArrayLayout(tuple(shape))))) == 1


@needs("numba")
def test_a_view_is_erased_and_its_neighbours_are_not(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        import numpy
        from numba import cuda
        array = cuda.to_device(numpy.ones((6, 5), dtype=numpy.int16))
        erased = vram.scrub(array[1:5:2, 1:4])
        tell(erased, array.copy_to_host().tolist())
        """,
    ) == [
        12,
        [[1] * 5, [1, 0, 0, 0, 1], [1] * 5, [1, 0, 0, 0, 1], [1] * 5, [1] * 5],
    ]


@needs("cuda.core")
def test_memory_that_speaks_only_dlpack_is_erased(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        from cuda.core import Device, DeviceMemoryResource
        device = Device(0)
        device.set_current()
        theirs = DeviceMemoryResource(device).allocate(4096, stream=device.default_stream)
        ours = Buffer.from_dlpack(theirs)
        ours.fill(7)
        tell(vram.scrub(theirs), ours.read().count(7))
        """,
    ) == [4096, 0]


@pytest.mark.parametrize(
    "make", ["Buffer(4096)", "Buffer.pitched(10, 20)", "Buffer.pinned(64)", "Buffer.managed(64)"]
)
def test_a_buffer_is_erased_with_its_padding(virtual_gpu: VirtualGpu, make: str) -> None:
    answer = told(
        virtual_gpu,
        f"b = {make}; b.fill(255); n = vram.scrub(b); tell(n == b.nbytes, b.read().count(0) == n)",
    )
    assert answer == [True, True]


def test_it_works_in_a_thread_without_a_context(virtual_gpu: VirtualGpu) -> None:
    program = "b = Buffer(64); b.fill(1); in_thread(lambda: vram.scrub(b)); tell(b.read().count(0))"
    assert told(virtual_gpu, program) == 64


@pytest.mark.parametrize("thing", ["5", "b'bytes'", "None", "bytearray(5)"])
def test_what_has_no_gpu_memory_is_refused(virtual_gpu: VirtualGpu, thing: str) -> None:
    assert told(virtual_gpu, f"tell(error_of(vram.scrub, {thing}))") == "UsageError"
