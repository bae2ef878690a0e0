"""Buffers and other libraries' arrays are one memory, and nobody's goes while somebody uses it."""

from __future__ import annotations

import pytest

from tests.guard.owner import run, told
from tests.needs import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native


@needs("numba")
def test_numba_works_on_a_buffer_in_place(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        import numpy
        from numba import cuda
        buffer = Buffer(4096)
        array = cuda.as_cuda_array(buffer)
        array.copy_to_device(numpy.arange(4096, dtype=numpy.uint8))
        buffer.write(b"\\x63", offset=1)
        tell(list(buffer.read(4)), array.copy_to_host()[:4].tolist(),
             array.device_ctypes_pointer.value == buffer.pointer)
        """,
    ) == [[0, 99, 2, 3], [0, 99, 2, 3], True]


@needs("numba")
def test_numba_keeps_a_buffer_alive(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        from numba import cuda
        before = used()
        buffer = Buffer(8 * MIB)
        array = cuda.as_cuda_array(buffer)
        del buffer
        held = used() - before
        del array
        gc.collect()
        tell(held, used() - before)
        """,
    ) == [8 * MIB, 0]


@needs("numba")
def test_a_numba_array_is_borrowed_with_its_shape_and_kept_alive(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        import numpy
        from numba import cuda
        array = cuda.to_device(numpy.arange(12, dtype=numpy.float32).reshape(3, 4))
        alive = weakref.ref(array)
        buffer = Buffer.from_cuda_array_interface(array)
        del array
        again = cuda.as_cuda_array(buffer)
        values, kept = again.copy_to_host().tolist(), alive() is not None
        shown = values, str(again.dtype), buffer.shape, buffer.kind, kept
        del again
        buffer.close()
        gc.collect()
        tell(shown, alive() is None, error_of(buffer.read))
        """,
    ) == [
        [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], "float32", [3, 4], "borrowed", True],
        True,
        "BufferClosed",
    ]


@needs("cuda.core")
def test_cuda_core_views_a_buffer_in_place(virtual_gpu: VirtualGpu) -> None:
    """Through DLPack, which cuda.core prefers: the buffer cannot be closed meanwhile."""
    assert told(
        virtual_gpu,
        """
        from cuda.core.utils import StridedMemoryView
        buffer = Buffer(4096)
        view = StridedMemoryView(buffer, stream_ptr=-1)
        shown = view.ptr == buffer.pointer, list(view.shape), str(view.dtype), view.device_id
        refused = error_of(buffer.close)
        del view
        gc.collect()
        tell(shown, refused, error_of(buffer.close))
        """,
    ) == [[True, [4096], "uint8", 0], "BufferLent", None]


@needs("cuda.core")
def test_cuda_cores_memory_is_borrowed_and_kept_alive(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        from cuda.core import Device, DeviceMemoryResource
        device = Device(0)
        device.set_current()
        resource = DeviceMemoryResource(device)
        theirs = resource.allocate(MIB, stream=device.default_stream)
        ours = Buffer.from_dlpack(theirs)
        ours.write(b"both")
        same = ours.pointer == int(theirs.handle)
        alive = weakref.ref(theirs) if hasattr(theirs, "__weakref__") else None
        del theirs
        gc.collect()
        tell(same, ours.read(4).decode(), ours.nbytes, error_of(ours.close))
        """,
    ) == [True, "both", MIB, None]


@needs("numpy")
@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_numpy_works_on_host_memory_in_place(virtual_gpu: VirtualGpu, kind: str) -> None:
    assert told(
        virtual_gpu,
        f"""
        import numpy
        buffer = Buffer.{kind}(64)
        lent, shown = numpy.from_dlpack(buffer), numpy.asarray(buffer.host)
        lent[:3] = 1, 2, 3
        same = shown[:3].tolist()
        refused = error_of(buffer.close)
        del lent
        still = error_of(buffer.close)
        del shown
        tell(same, refused, still, error_of(buffer.close))
        """,
    ) == [[1, 2, 3], "BufferLent", "BufferLent", None]


def test_a_view_of_host_memory_ends_with_the_buffer(virtual_gpu: VirtualGpu) -> None:
    """Reading it later is an error of Python's own, not a crash; slices must be gone before."""
    assert told(
        virtual_gpu,
        """
        with Buffer.pinned(64) as buffer:
            view = buffer.host
            view[:5] = b"bytes"
            read = bytes(view[:5]).decode()
        after = error_of(lambda: view[0])
        other = Buffer.pinned(64)
        part = other.host[8:]
        refused, part[0] = error_of(other.close), 7
        del part
        tell(read, after, refused, error_of(other.close))
        """,
    ) == ["bytes", "ValueError", "BufferLent", None]


def test_a_view_of_host_memory_keeps_the_buffer_alive(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        buffer = Buffer.pinned(64)
        alive, view = weakref.ref(buffer), buffer.host
        del buffer
        gc.collect()
        view[0] = 3
        kept = alive() is not None
        del view
        tell(kept, alive() is None)
        """,
    ) == [True, True]


@pytest.mark.parametrize("words", ["", "max_version=(1, 0)"])
def test_a_capsule_that_nobody_uses_gives_the_buffer_back(virtual_gpu: VirtualGpu, words: str) -> None:
    """Also where it is dropped by an exception on its way, which must arrive unharmed."""
    assert told(
        virtual_gpu,
        f"""
        buffer = Buffer(MIB)
        alive = weakref.ref(buffer)
        def work():
            capsule = buffer.__dlpack__({words})
            assert error_of(buffer.close) == "BufferLent"
            raise KeyError("on its way")
        caught = error_of(work)
        capsule = buffer.__dlpack__({words})
        del buffer
        kept = alive() is not None
        del capsule
        tell(caught, kept, alive() is None)
        """,
    ) == ["KeyError", True, True]


@pytest.mark.parametrize("words", ["", "max_version=(1, 0)"])
def test_a_consumer_releases_without_the_gil_and_in_another_thread(
    virtual_gpu: VirtualGpu, words: str
) -> None:
    """As C++ libraries do: the deleter is called by a thread that Python has never seen."""
    assert told(
        virtual_gpu,
        f"""
        from vram.guard import dlpack
        api = ctypes.pythonapi
        api.PyCapsule_SetName.argtypes = ctypes.py_object, ctypes.c_char_p
        before = used()
        capsule = Buffer(8 * MIB).__dlpack__({words})
        kind = dlpack.{"DLManagedTensorVersioned" if words else "DLManagedTensor"}
        name = dlpack.{"VERSIONED" if words else "PLAIN"}
        address = dlpack._pointer(capsule, name)
        used_name = ctypes.create_string_buffer(b"used_" + name)
        api.PyCapsule_SetName(capsule, ctypes.cast(used_name, ctypes.c_char_p))
        del capsule
        held = used() - before
        deleter = kind.from_address(address).deleter
        # The C library's own thread calls it, with the structure as its argument.
        threads, thread = ctypes.CDLL(None), ctypes.c_ulong()
        assert threads.pthread_create(
            ctypes.byref(thread), None, ctypes.c_void_p(deleter), ctypes.c_void_p(address)) == 0
        threads.pthread_join(thread, None)
        tell(held, used() - before)
        """,
    ) == [8 * MIB, 0]


@needs("numpy")
def test_what_is_lent_at_exit_is_erased_and_nothing_crashes(virtual_gpu: VirtualGpu) -> None:
    """The consumer lives on while Python is taken apart; it must neither see old bytes nor a hole."""
    done = run(
        virtual_gpu,
        """
        import numpy
        class Late:
            def __del__(self, write=os.write):
                write(1, b"%d" % self.array.tobytes().count(9))
        late = Late()
        late.array = numpy.from_dlpack(Buffer.pinned(64, zero_on_free=True))
        late.array[:6] = 9
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("Buffer(8).__dlpack__(copy=True)", "BufferError"),
        ("Buffer(8).__dlpack__(dl_device=(1, 0))", "BufferError"),
        ("Buffer.pinned(8).__cuda_array_interface__", "AttributeError"),
        ("Buffer.from_dlpack(5)", "UsageError"),
        ("Buffer.from_dlpack(__import__('numpy').ones(3))", "UsageError"),
        ("Buffer.from_cuda_array_interface([1, 2])", "UsageError"),
        ("Buffer.from_cuda_array_interface(Fake(data=(0, False), shape=(0,), typestr='|u1'))", "UsageError"),
        (
            "Buffer.from_cuda_array_interface(Fake(data=(64, False), shape=(1,), typestr='|u1'))",
            "DeviceError",
        ),
        ("Buffer.from_cuda_array_interface(Fake(data=(0, False), shape=(1,), typestr='>f4'))", "UsageError"),
    ],
)
@needs("numpy")
def test_what_cannot_be_lent_or_borrowed_is_refused(virtual_gpu: VirtualGpu, call: str, error: str) -> None:
    program = f"""
        class Fake:
            def __init__(self, **interface):
                self.__cuda_array_interface__ = interface | {{"version": 3}}
        tell(error_of(lambda: {call}))
        """
    assert told(virtual_gpu, program) == error


def test_streams_of_every_library_are_understood(virtual_gpu: VirtualGpu) -> None:
    """By what each calls its handle; the stream lives as long as the buffer."""
    assert (
        told(
            virtual_gpu,
            """
        lib = ctypes.CDLL("libcuda.so.1")
        def make():
            handle = ctypes.c_void_p()
            with driver().on_device(0):
                assert lib.cuStreamCreate(ctypes.byref(handle), 0) == 0
            return handle.value
        class Named:
            def __init__(self, **words): self.__dict__.update(words)
        class Protocol:
            def __init__(self, handle): self.stream = handle
            def __cuda_stream__(self): return (0, self.stream)
        handles = [make() for _ in range(5)]
        pointer = ctypes.c_void_p(handles[2])
        streams = [Named(cuda_stream=handles[0]), Named(ptr=handles[1]), Named(handle=pointer),
                   Protocol(handles[3]), handles[4]]
        answers = []
        for stream, handle in zip(streams, handles):
            with Buffer(MIB, stream=stream) as buffer:
                buffer.write(b"in order")
                used_stream = buffer.__cuda_array_interface__["stream"]
                answers.append([buffer.read(8).decode(), used_stream == handle])
        tell(answers)
        """,
        )
        == [["in order", True]] * 5
    )


def test_a_stream_given_as_a_number_may_be_gone_when_the_finalizer_runs(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        lib, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        with driver().on_device(0):
            lib.cuStreamCreate(ctypes.byref(handle), 0)
            buffer = Buffer(MIB, stream=handle.value)
            lib.cuStreamDestroy_v2(handle)
        from vram.guard.allocation import living
        living_before = len(living)
        del buffer
        tell(living_before, len(living))
        """,
    ) == [1, 0]
