"""What other libraries say of their memory is passed on, and not believed where it cannot be."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from tests.guard.owner import told
from tests.needs import needs
from vram.virtualgpu import VirtualGpu

LENDERS = """
from vram.guard import dlpack

class ByInterface:
    "Lends *buffer* by the CUDA array interface, with *words* changed."
    def __init__(self, buffer, **words):
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (16,), "typestr": "|u1", "data": (buffer.pointer, False)} | words

class ByDlpack:
    "Lends *buffer* by DLPack, with *words* changed in the capsule."
    def __init__(self, buffer, **words):
        self.buffer, self.words = buffer, words
    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()
    def __dlpack__(self, *, stream=None, max_version=None):
        capsule = self.buffer.__dlpack__(stream=stream, max_version=max_version)
        lent = inside(capsule)
        for name, value in self.words.items():
            setattr(lent.tensor if hasattr(lent.tensor, name) else lent, name, value)
        return capsule

class Old:
    "Knows nothing of DLPack 1.0."
    def __init__(self, buffer): self.buffer = buffer
    def __dlpack_device__(self): return self.buffer.__dlpack_device__()
    def __dlpack__(self, *, stream=None): return self.buffer.__dlpack__(stream=stream)

def inside(capsule):
    return dlpack.DLManagedTensorVersioned.from_address(dlpack._pointer(capsule, dlpack.VERSIONED))

def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)

def by_interface(**words):
    return Buffer.from_cuda_array_interface(ByInterface(Buffer(4096), **words))

def by_dlpack(**words):
    return Buffer.from_dlpack(ByDlpack(Buffer.pinned(64), **words))

def read_only(buffer):
    return Buffer.from_dlpack(ByDlpack(buffer, flags=dlpack.READ_ONLY))

def read_only_interface(buffer):
    return Buffer.from_cuda_array_interface(ByInterface(buffer, data=(buffer.pointer, True)))
"""


def answer(gpu: VirtualGpu, program: str) -> Any:
    return told(gpu, LENDERS + dedent(program))


# ---- read-only memory ----


@pytest.mark.parametrize("borrow", ["read_only", "read_only_interface"])
def test_read_only_memory_stays_so_for_the_next_borrower(virtual_gpu: VirtualGpu, borrow: str) -> None:
    """By whichever protocol it came and goes; not by DLPack before 1.0, which has no word for it."""
    assert answer(
        virtual_gpu,
        f"""
        ours = {borrow}(Buffer(16))
        capsule = ours.__dlpack__(max_version=(1, 0))
        again = Buffer.from_dlpack(ours)
        tell(ours.__cuda_array_interface__["data"][1], inside(capsule).flags, error_of(ours.__dlpack__),
             again.__cuda_array_interface__["data"][1], error_of(Buffer.from_dlpack, Old(ours)),
             "read-only" in repr(ours))
        """,
    ) == [True, 1, "BufferError", True, "UsageError", True]


def test_memory_that_may_be_written_is_lent_so(virtual_gpu: VirtualGpu) -> None:
    assert answer(
        virtual_gpu,
        """
        ours = Buffer.from_dlpack(Buffer(16))
        tell(inside(ours.__dlpack__(max_version=(1, 0))).flags, ours.__cuda_array_interface__["data"][1],
             error_of(ours.__dlpack__), error_of(Buffer.from_dlpack, Old(ours)), "read-only" in repr(ours))
        """,
    ) == [0, False, None, None, False]


def test_read_only_memory_is_not_written_to(virtual_gpu: VirtualGpu) -> None:
    """Reading goes on; scrub alone does what it promises: erase behind the back of the library."""
    assert answer(
        virtual_gpu,
        """
        theirs = Buffer.pinned(16)
        theirs.fill(7)
        ours = read_only(theirs)
        refused = [error_of(ours.write, b"x"), error_of(ours.fill), error_of(ours.erase)]
        shown = ours.host
        refused.append(error_of(shown.__setitem__, 0, 1))
        seen = ours.read(2).hex(), bytes(shown[:2]).hex(), shown.readonly, theirs.host.readonly
        erased = vram.scrub(ours), ours.read().count(0)
        ended = error_of(ours.close), error_of(lambda: shown[0]), error_of(ours.write, b"x")
        tell(refused, seen, erased, ended)
        """,
    ) == [
        ["UsageError"] * 3 + ["TypeError"],
        ["0707", "0707", True, False],
        [16, 16],
        [None, "ValueError", "BufferClosed"],
    ]


@needs("numpy")
def test_numpy_cannot_write_to_read_only_memory(virtual_gpu: VirtualGpu) -> None:
    program = "import numpy; tell(numpy.from_dlpack(read_only(Buffer.pinned(8))).flags.writeable)"
    assert answer(virtual_gpu, program) is False


# ---- strides ----


def test_host_shows_no_array_with_gaps(virtual_gpu: VirtualGpu) -> None:
    """Its bytes are not the first ones: two columns of four, as read() has it."""
    assert answer(
        virtual_gpu,
        """
        sliced = by_dlpack(dimensions=2, shape=numbers(4, 2), strides=numbers(4, 1))
        tell(sliced.shape, error_of(lambda: sliced.host), error_of(sliced.read))
        """,
    ) == [[4, 2], "UsageError", "UsageError"]


def test_a_stride_that_leads_nowhere_makes_no_gaps(virtual_gpu: VirtualGpu) -> None:
    """PyTorch lends a contiguous (1, 4) with strides (1, 1)."""
    assert answer(
        virtual_gpu,
        """
        row = by_dlpack(dimensions=2, shape=numbers(1, 4), strides=numbers(1, 1))
        row.write(b"four")
        tell(row.read().decode(), bytes(row.host).decode())
        """,
    ) == ["four", "four"]


# ---- words that cannot be true ----


@pytest.mark.parametrize(
    "words",
    [
        "shape=(-4,)",
        "shape='16'",
        "shape=None",
        "strides=(1, 2)",
        "typestr=None",
        "typestr='|V0'",
        "data=None",
        "data=(64,)",
        "data=('x', False)",
        "stream='fast'",
        "shape=(0,)",
    ],
)
def test_a_broken_interface_is_a_typed_error(virtual_gpu: VirtualGpu, words: str) -> None:
    assert answer(virtual_gpu, f"tell(error_of(by_interface, {words}))") == "UsageError"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("shape=ctypes.POINTER(ctypes.c_int64)()", "UsageError"),
        ("dimensions=-1", "UsageError"),
        ("shape=numbers(-4)", "UsageError"),
        ("shape=numbers(0)", "UsageError"),
        ("lanes=0", "UsageError"),
        ("bits=4", "UsageError"),  # packed: it would be half of what was counted
        ("major=2", "UsageError"),
        ("flags=dlpack.IS_COPIED", "UsageError"),
        ("data=4096", "DeviceError"),
    ],
)
def test_a_broken_capsule_is_a_typed_error_and_goes_back(
    virtual_gpu: VirtualGpu, words: str, error: str
) -> None:
    assert answer(
        virtual_gpu,
        f"""
        theirs = Buffer.pinned(64)
        refused = error_of(Buffer.from_dlpack, ByDlpack(theirs, {words}))
        gc.collect()
        tell(refused, error_of(theirs.close))
        """,
    ) == [error, None]


@pytest.mark.parametrize("words", ["typestr='<f8', shape=(3,), strides=(12,)", "typestr='|V300', shape=(2,)"])
def test_what_dlpack_has_no_words_for_is_not_lent(virtual_gpu: VirtualGpu, words: str) -> None:
    """Rounded strides or a cut element size would lead the consumer elsewhere."""
    assert answer(
        virtual_gpu,
        f"""
        ours = by_interface({words})
        try:
            ours.__dlpack__()
        except BufferError:
            tell("refused", error_of(ours.close))  # nothing is lent while the error is looked at
        """,
    ) == ["refused", None]


# ---- one capsule, one consumer ----


def test_a_capsule_in_use_is_not_taken_by_another(virtual_gpu: VirtualGpu) -> None:
    """A second consumer would give the memory back under the first; afterwards it is free again."""
    assert answer(
        virtual_gpu,
        """
        class Same:
            "Hands out one capsule to everybody."
            def __init__(self, buffer): self.capsule = buffer.__dlpack__(max_version=(1, 0))
            def __dlpack_device__(self): return 2, 0
            def __dlpack__(self, **words): return self.capsule
        theirs = Buffer(16)
        same = Same(theirs)
        first = Buffer.from_dlpack(same)
        second = error_of(Buffer.from_dlpack, same)
        first.close()
        third = Buffer.from_dlpack(same)
        del same
        lent = error_of(theirs.close)
        third.close()
        tell(second, lent, error_of(theirs.close))
        """,
    ) == ["UsageError", "BufferLent", None]


def test_an_old_producer_that_refuses_is_a_typed_error(virtual_gpu: VirtualGpu) -> None:
    program = """
        class Refusing(Old):
            def __dlpack__(self, *, stream=None): raise BufferError("not now")
        tell(error_of(Buffer.from_dlpack, Refusing(Buffer(16))))
        """
    assert answer(virtual_gpu, program) == "UsageError"


@pytest.mark.parametrize("error", ["BufferError", "ValueError", "RuntimeError", "TypeError"])
@pytest.mark.parametrize("call", ["__dlpack__", "__dlpack_device__"])
def test_whatever_a_producer_raises_is_a_typed_error(virtual_gpu: VirtualGpu, call: str, error: str) -> None:
    """PyTorch's meta tensors raise a ValueError, its nested ones a RuntimeError."""
    program = f"""
        class Refusing(ByDlpack):
            def {call}(self, **words): raise {error}("not this one")
        refusing = Refusing(Buffer(16))
        tell(error_of(Buffer.from_dlpack, refusing), error_of(vram.scrub, refusing))
        """
    assert answer(virtual_gpu, program) == ["UsageError", "UsageError"]


def test_an_interface_that_fails_leaves_dlpack(virtual_gpu: VirtualGpu) -> None:
    """PyTorch's raises a KeyError for floats of 8 bits."""
    program = """
        class Float8(ByDlpack):
            @property
            def __cuda_array_interface__(self): return {}["float8"]
        buffer = Buffer(16)
        buffer.fill(7)
        erased = vram.scrub(Float8(buffer, code=10))
        refused = error_of(Buffer.from_cuda_array_interface, Float8(buffer))
        tell(erased, buffer.read().count(0), refused)
        """
    assert answer(virtual_gpu, program) == [16, 16, "UsageError"]


def test_memory_that_its_owner_freed_is_said_to_be_so(virtual_gpu: VirtualGpu) -> None:
    """The CUDA array interface does not keep it; nothing happened to the context."""
    program = """
        theirs = Buffer(16)
        ours = Buffer.from_cuda_array_interface(theirs)
        theirs.close()
        try:
            ours.read()
        except BufferLost as error:
            tell(str(error), error.hint, error_of(ours.close))
        """
    message, hint, second = answer(virtual_gpu, program)
    assert message == "the memory that this buffer borrowed is gone"
    assert hint.startswith("its owner freed it")
    assert second == "BufferClosed"


# ---- work of the owner's that is still under way ----


def test_who_borrows_from_a_borrower_waits_for_the_first_owner(virtual_gpu: VirtualGpu) -> None:
    """DLPack orders the owner's work before the legacy stream only. A wait shows by failing."""
    assert answer(
        virtual_gpu,
        """
        from vram.virtualgpu import VirtualGpu
        ours, own = Buffer.from_dlpack(Buffer(16)), Buffer(16)
        VirtualGpu.inside().fail("cuStreamSynchronize", error=999)
        waits = [error_of(ours.__dlpack__), error_of(ours.__dlpack__, stream=-1), error_of(own.__dlpack__)]
        VirtualGpu.inside().clear_faults()
        tell(waits, ours.__cuda_array_interface__["stream"], own.__cuda_array_interface__["stream"])
        """,
    ) == [["DeviceError", None, None], 1, None]
