"""Whether a CUDA graph is being captured, asked without disturbing the capture."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p

from vram.payloads.arrays.provider import loaded
from vram.payloads.trim.driver import driver

LEGACY, PER_THREAD = 0, 2
# The legacy stream returns one of these while any ordinary stream of its context is captured. By the
# documentation this query does not end the capture.
CAPTURE_CODES = range(900, 910)


def is_capturing() -> bool:
    """Whether this thread, or an ordinary stream of any context that it can enter, captures a graph."""
    streams = (LEGACY, PER_THREAD, *_current_streams())

    def ask() -> int:
        return next((code for code in map(_code, streams) if code in CAPTURE_CODES), 0)

    return any(code in CAPTURE_CODES for _, code in driver.everywhere(ask))


def is_capturing_here() -> bool:
    """The same, including PyTorch's capture in this thread, which uses a stream of its own."""
    torch = loaded("torch.cuda")
    by_torch = torch is not None and torch.is_initialized() and torch.is_current_stream_capturing()
    return by_torch or is_capturing()


def _code(stream: int) -> int:
    """One of CAPTURE_CODES while *stream* is captured."""
    status = c_int()
    code = driver.code("cuStreamIsCapturing", c_void_p(stream), byref(status))
    return CAPTURE_CODES[0] if code == 0 and status.value != 0 else code


def _current_streams() -> Iterator[int]:
    """CuPy captures on streams of its own; PyTorch itself objects to a release during a capture."""
    stream = loaded("cupy.cuda.stream")
    if stream is not None:
        yield int(stream.get_current_stream().ptr)
