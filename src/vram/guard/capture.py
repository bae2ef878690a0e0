"""Whether a CUDA graph is being captured, asked so that the capture is not disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p

from vram.guard.memory import awake_devices, cuda
from vram.payloads.arrays.frameworks.array import loaded
from vram.payloads.trim.driver import driver

LEGACY, PER_THREAD = 0, 2
# The legacy stream answers with these while any ordinary stream of its context is captured, and
# the documentation promises that asking does not end that capture.
CAPTURE_CODES = range(900, 910)


def is_capturing() -> bool:
    """Whether this thread, or an ordinary stream of any context here, is recording a graph."""
    streams = (LEGACY, PER_THREAD, *_current_streams())
    for device in awake_devices():
        with driver.inside(device) as entered:
            if entered and any(map(_is_captured, streams)):
                return True
    return False


def is_capturing_here() -> bool:
    """The same, PyTorch's capture in this thread included, which is on a stream that nobody else sees."""
    torch = loaded("torch.cuda")
    by_torch = torch is not None and torch.is_initialized() and torch.is_current_stream_capturing()
    return by_torch or is_capturing()


def _is_captured(stream: int) -> bool:
    library, status = cuda(), c_int()
    if library is None:
        return False
    answer = library.cuStreamIsCapturing(c_void_p(stream), byref(status))
    return answer in CAPTURE_CODES or (answer == 0 and status.value != 0)


def _current_streams() -> Iterator[int]:
    """CuPy captures on streams of its own; PyTorch objects by itself when it is asked to let go."""
    stream = loaded("cupy.cuda.stream")
    if stream is not None:
        yield int(stream.get_current_stream().ptr)
