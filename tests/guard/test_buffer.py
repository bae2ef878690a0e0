"""A buffer has memory while it is open, frees it once, and raises when it is misused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.guard.owner import PREAMBLE, SOURCE, told
from vram.errors import UsageError
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

KINDS = {
    "device": "Buffer('8MiB')",
    "stream-ordered": "Buffer('8MiB', stream=0)",
    "pitched": "Buffer.pitched(1000, 8192)",
    "managed": "Buffer.managed('8MiB')",
    "pinned": "Buffer.pinned('8MiB')",
    "zero-copy": "Buffer.zero_copy('8MiB')",
}
# Of managed memory the one page that the copy wrote to has moved to the device. The driver takes 128 MiB at
# once for such pages, and keeps what nobody used of them.
ON_DEVICE = {"device": 8 * MIB, "pitched": 8 * MIB, "managed": 128 * MIB, "pinned": 0, "zero-copy": 0}
KEPT_BY_THE_DRIVER = {"managed": 126 * MIB}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_holds_bytes_and_is_gone_after_the_block(virtual_gpu: VirtualGpu, kind: str) -> None:
    answer = told(
        virtual_gpu,
        f"""
        before = used()
        with {KINDS[kind]} as buffer:
            buffer.write(b"old bytes", offset=100)
            held = used() - before
            tell_later = [buffer.kind, buffer.nbytes, buffer.read(9, offset=100).decode(), buffer.device]
        tell(tell_later, held, used() - before, error_of(lambda: buffer.pointer), buffer.closed)
        """,
    )
    (name, nbytes, text, device), held, left, after, closed = answer
    assert (name, text, device, after, closed) == (kind, "old bytes", 0, "BufferClosed", True)
    assert nbytes == 8 * MIB if kind != "pitched" else nbytes % 8192 == 0
    if kind == "stream-ordered":
        assert held >= left  # the pool allocates more, and frees it later
        assert held >= 8 * MIB
    else:
        assert (held, left) == (ON_DEVICE[kind], KEPT_BY_THE_DRIVER.get(kind, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_double_free_and_use_after_close_are_errors(virtual_gpu: VirtualGpu, kind: str) -> None:
    """Not crashes: every way to the memory is barred, for every kind."""
    uses = told(
        virtual_gpu,
        f"""
        buffer = {KINDS[kind]}
        buffer.close()
        tell([error_of(use) for use in (
            buffer.close, buffer.read, buffer.fill, buffer.erase, buffer.__enter__, buffer.__dlpack__,
            buffer.__dlpack_device__, lambda: buffer.write(b"x"), lambda: buffer.pointer,
            lambda: buffer.device, lambda: vram.scrub(buffer))])
        """,
    )
    assert uses == ["BufferClosed"] * 11


def test_pitched_rows_lie_a_pitch_apart(virtual_gpu: VirtualGpu) -> None:
    shape, pitch, nbytes, interface = told(
        virtual_gpu,
        "b = Buffer.pitched(1000, 3); tell(b.shape, b.pitch, b.nbytes, b.__cuda_array_interface__)",
    )
    assert shape == [3, 1000]
    assert pitch >= 1000
    assert nbytes == 3 * pitch
    assert (interface["shape"], interface["strides"]) == ([3, 1000], [pitch, 1])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("Buffer(0)", "UsageError"),
        ("Buffer(-4096)", "UsageError"),
        ("Buffer('8 apples')", "UsageError"),
        ("Buffer(1.5)", "UsageError"),
        ("Buffer(True)", "UsageError"),
        ("Buffer(None)", "UsageError"),
        ("Buffer(1, device=7)", "NoSuchDevice"),
        ("Buffer(1, device=-1)", "NoSuchDevice"),
        ("Buffer(1, device='cuda')", "NoSuchDevice"),
        ("Buffer(1, stream='fast')", "UsageError"),
        ("Buffer('10TiB')", "OutOfMemory"),
        ("Buffer(2**80)", "OutOfMemory"),
        ("Buffer.managed('200GiB')", "OutOfMemory"),
        ("Buffer.pitched(16, -1)", "UsageError"),
        ("Buffer.pitched(16, 16, element_nbytes=3)", "UsageError"),
        ("Buffer(16).write(b'x' * 17)", "UsageError"),
        ("Buffer(16).write(b'x', offset=-1)", "UsageError"),
        ("Buffer(16).read(4, offset=13)", "UsageError"),
        ("Buffer(16).write(5)", "UsageError"),
        ("Buffer(16).write('text')", "UsageError"),
        ("Buffer(16).write([1, 2, 3])", "UsageError"),
        ("Buffer(16).write(None)", "UsageError"),
        ("Buffer(16).write(b'x', offset=1.5)", "UsageError"),
        ("Buffer(16).read(-1)", "UsageError"),
        ("Buffer(16).read(offset=17)", "UsageError"),
        ("Buffer(16).read(2**50)", "UsageError"),
        ("Buffer(16).read(2**70)", "UsageError"),
        ("Buffer(16).read(1.5)", "UsageError"),
        ("Buffer(16).read('all')", "UsageError"),
        ("Buffer(16).fill(256)", "UsageError"),
        ("Buffer(16).fill(1.5)", "UsageError"),
        ("Buffer(16).fill('x')", "UsageError"),
        ("Buffer(16).host", "UsageError"),
        ("__import__('pickle').dumps(Buffer(16))", "UsageError"),
        ("__import__('copy').copy(Buffer(16))", "UsageError"),
    ],
)
def test_bad_words_are_typed_errors_and_cost_nothing(virtual_gpu: VirtualGpu, call: str, error: str) -> None:
    program = f"""
        before = used()
        answer = error_of(lambda: {call})
        tell(answer, used() - before)
        """
    assert told(virtual_gpu, program) == [error, 0]


def test_what_shows_its_memory_is_written_as_it_lies_there(virtual_gpu: VirtualGpu) -> None:
    """Whatever its elements are, and also where they do not lie side by side."""
    assert told(
        virtual_gpu,
        """
        import array
        buffer = Buffer(16)
        buffer.write(memoryview(b"0123456")[::2])
        buffer.write(array.array("H", [0x4241, 0x4443]), offset=4)
        buffer.write(bytearray(b"end"), offset=13)
        buffer.write(b"", offset=16)
        tell(buffer.read(8).decode(), buffer.read(offset=13).decode(), buffer.read(offset=16).decode())
        """,
    ) == ["0246ABCD", "end", ""]


def test_out_of_memory_is_also_a_memory_error(virtual_gpu: VirtualGpu) -> None:
    assert told(virtual_gpu, "tell(issubclass(OutOfMemory, MemoryError), error_of(Buffer, '150GiB'))") == [
        True,
        "OutOfMemory",
    ]


def test_the_other_gpu_is_used_when_asked_for(two_virtual_gpus: VirtualGpu) -> None:
    """And the thread's own context is what it was before."""
    answer = told(
        two_virtual_gpus,
        """
        first, second = Buffer(MIB), Buffer(MIB, device=1)
        none = driver().current_context()
        with driver().on_device(1):
            third, fourth = Buffer(MIB), Buffer(MIB, device=0)
        devices = [each.device for each in (first, second, third, fourth)]
        for each in (fourth, third, second, first):
            each.close()
        tell(devices, none, driver().current_context())
        """,
    )
    assert answer == [[0, 1, 1, 0], 0, 0]


def test_a_context_of_the_programs_own_is_honoured(virtual_gpu: VirtualGpu) -> None:
    """As PyCUDA makes them: memory of the primary context could not be used in it."""
    answer = told(
        virtual_gpu,
        """
        cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        cuda.cuInit(0)
        assert cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == 0
        buffer = Buffer(MIB)
        belongs = driver().context_of(buffer.pointer) == own.value
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        in_thread(buffer.close)
        tell(belongs, buffer.closed)
        """,
    )
    assert answer == [True, True]


def test_if_zeroing_fails_nothing_is_freed(virtual_gpu: VirtualGpu) -> None:
    """Old bytes must not go back unseen; the buffer stays open and can be closed later."""
    answer = told(
        virtual_gpu,
        """
        from vram.virtualgpu import VirtualGpu
        buffer = Buffer(8 * MIB, zero_on_free=True)
        buffer.write(b"secret")
        held = used()
        VirtualGpu.inside().fail("cuMemsetD8", error=999)
        failed = error_of(buffer.close), buffer.closed, used() - held
        VirtualGpu.inside().clear_faults()
        tell(failed, buffer.read(6).decode(), error_of(buffer.close), held - used())
        """,
    )
    assert answer == [["DeviceError", False, 0], "secret", None, 8 * MIB]


def test_zero_on_free_leaves_nothing_for_the_next_owner(virtual_gpu: VirtualGpu) -> None:
    """Seen in the driver's pool, which hands every old byte over; the control shows that it does."""
    answer = told(
        virtual_gpu,
        """
        pool = ctypes.c_void_p()
        def next_owner():
            with Buffer(32 * MIB, stream=0) as found:
                return [found.read(8, offset=at).count(b"OLD") for at in (0, 2**24)]
        def last_owner(zero):
            with Buffer(32 * MIB, stream=0, zero_on_free=zero) as buffer:
                buffer.write(b"OLD", 0)
                buffer.write(b"OLD", 2**24)
        used()
        lib = ctypes.CDLL("libcuda.so.1")
        lib.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
        lib.cuMemPoolSetAttribute(pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
        last_owner(False)
        control = next_owner()
        last_owner(True)
        tell(control, next_owner())
        """,
    )
    assert answer == [[1, 1], [0, 0]]


def test_without_a_gpu_it_imports_and_says_what_is_missing(virtual_gpu: VirtualGpu) -> None:
    """The driver is there and finds no GPU: the variable that leads to the virtual one is not set."""
    environment = virtual_gpu.environment() | {"PYTHONPATH": str(SOURCE)}
    del environment["VRAM_VIRTUAL_GPU"]
    program = PREAMBLE + "tell(error_of(Buffer, 1), error_of(vram.remanence_test))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == '["DriverMissing", "DriverMissing"]\n', done.stderr


def test_the_hint_is_shown_with_the_traceback() -> None:
    assert UsageError("what", hint="next").__notes__ == ["hint: next"]
