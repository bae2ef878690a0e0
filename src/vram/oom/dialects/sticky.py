"""Errors that break a CUDA context: no memory is missing, and nothing in that context can be freed."""

from __future__ import annotations

import re

from vram.model.oom import OomMessage
from vram.oom.dialects import Match, Parsed, dialect, last_in
from vram.oom.passage import Passage
from vram.payloads.trim.driver import STICKY

STICKY_SIGN = "sticky"
_ASSERT = 710
# The driver's and the runtime's description (cuGetErrorString), where the error's name is not printed.
STICKY_WORDS = {
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
}
_STICKY_NAMES = {name: code for code, (driver, runtime, _) in STICKY.items() for name in (driver, runtime)}
_STICKY_CODES = {**_STICKY_NAMES, **{words: code for code, words in STICKY_WORDS.items()}}


def _spaced(words: str) -> str:
    """Terminals and loggers break lines anywhere."""
    return r"\s+".join(map(re.escape, words.split()))


# The other descriptions occur in other programs too: they count where CUDA is named with them.
_UNMISTAKABLE = frozenset((700, 710, 717, 719))
_NAMES_CUDA = re.compile(r"CUDA|[cC]uda|\bcu[A-Z]\w+\s+failed|GPUassert")


# Who reports it, by the words of its line and the next ones.
_REPORTERS = (
    (
        "pytorch",
        re.compile(r"torch|AcceleratorError|CUDA kernel errors might|THCudaCheck|cuda runtime error"),
    ),
    ("cupy", re.compile(r"cupy")),
    ("numba", re.compile(r"numba|Call to cu\w+ results in")),
    ("pycuda", re.compile(r"pycuda|\bcu[A-Z]\w+ failed: ")),
    ("xla", re.compile(r"XlaRuntimeError|external/xla|jaxlib|JaxRuntimeError|pjrt")),
    ("tensorflow", re.compile(r"tensorflow")),
    ("llama.cpp", re.compile(r"ggml")),
    ("nccl", re.compile(r"NCCL")),
    ("triton", re.compile(r"Triton Error")),
)
_ASSERTION = re.compile(r"Assertion [`'](?P<words>[^`'\n]{1,120})[`'] failed")


# PyTorch 2.9 and later say where to look the error's name up: that is no second error.
@dialect(
    "cuda-error",
    needles=(
        *(b"CUDA_ERROR_", b"cudaError", b"llegal memory access", b"side assert triggered", b"launch failure"),
        *(b"illegal instruction was", b"isaligned address", b"launch timed out", b"UNKNOWN_CUDA_ERROR"),
        *(b"hardware stack error", b"global/shared address space", b"invalid program counter"),
    ),
    start=re.compile(
        "|".join(
            [
                *(rf"(?<!Search for `){name}\b" for name in sorted(_STICKY_NAMES, key=len, reverse=True)),
                *(_spaced(words) for words in STICKY_WORDS.values()),
                # Numba names the errors that it knows: newer ones have only their number.
                r"\[(?P<number>\d{3})\]\s+Call\s+to\s+cu\w+\s+results\s+in\s+UNKNOWN_CUDA_ERROR",
            ]
        )
    ),
)
def sticky_error(found: Match, passage: Passage) -> Parsed:
    """An error that breaks the context for good: an illegal address, an assert on the device.

    It is not about memory, but people meet it beside such errors: nothing in that context can be freed.
    """
    said = " ".join(found.group().split())
    code = int(found["number"]) if found["number"] else _STICKY_CODES[said]
    text = passage.text
    begin = text.rfind("\n", 0, found.start()) + 1
    is_named = said in _STICKY_NAMES or code in _UNMISTAKABLE
    if code not in STICKY or not (is_named or _NAMES_CUDA.search(text[begin : found.end()])):
        return None
    # A message often has the name and then the description: that is one error.
    again = (
        re.compile(rf"[\s:(]*{_spaced(STICKY_WORDS[code])}").match(text, found.end())
        if code in STICKY_WORDS
        else None
    )
    near = "\n".join(text[begin : begin + 1000].split("\n")[:3])
    reading = OomMessage(
        dialect="cuda-error",
        wording=STICKY[code][0],
        signs=(STICKY_SIGN,),
        code=code,
        reporter=next((name for name, words in _REPORTERS if words.search(near)), None),
        assertion=last_in(_ASSERTION, passage.before) if code == _ASSERT else None,
    )
    return reading, (again or found).end()


def sticky_code_in(text: str) -> int | None:
    """The number of the sticky error that *text* reports first."""
    for found in sticky_error.start.finditer(text):
        known = sticky_error.parse(found, Passage(text, text, str, lambda words: ""))
        if known is not None:
            return known[0].code
    return None


# What NVIDIA's catalogue of Xid errors says of those that end a program.
XIDS = {
    13: "an exception in a kernel (graphics engine exception)",
    31: "an access to memory that is not mapped (memory page fault)",
    43: "a fault of the program (the GPU stopped processing for it)",
    45: "an earlier error (its channels were cleaned up)",
    48: "a memory error that ECC cannot correct",
    62: "a fault of the GPU's own microcontroller",
    69: "an exception in a kernel (graphics engine class error)",
    74: "an error of NVLink",
    79: "the loss of the GPU (it has fallen off the bus)",
    94: "a memory error that the GPU contained to this program",
    95: "a memory error that the GPU could not contain",
    109: "a context switch that timed out",
    119: "a timeout of the GPU's own processor (GSP)",
    120: "an error of the GPU's own processor (GSP)",
}
# A program cannot cause these.
HARDWARE_XIDS = frozenset((48, 62, 74, 79, 94, 95, 119, 120))


@dialect(
    "xid",
    needles=(b"NVRM: Xid",),
    start=re.compile(
        r"NVRM:\s+Xid\s+\((?:PCI:)?[\w:.]+\):\s+(?P<number>\d+)\b(?:,\s+pid='?(?P<pid>\d+)'?,\s+name=\S+?,)?"
    ),
)
def xid(found: Match, passage: Passage) -> Parsed:
    """The kernel driver's own line about a fault of a GPU or of a program on it."""
    number = int(found["number"])
    if number not in XIDS:
        return None
    pids = (int(found["pid"]),) if found["pid"] else ()
    return OomMessage(dialect="xid", wording=str(number), signs=(STICKY_SIGN,), code=number, pids=pids)
