"""TensorRT and ONNX Runtime: one buffer that could not be had, with its size.

TensorRT first passes on CUDA's own words, and tells the size in its next line, if at all.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.sizes import amount

NAME = "tensorrt"
NEEDLES: tuple[bytes, ...] = (
    b"be allocated",
    b"OutOfMemory (",
    b"Failed to allocate memory for",
    b"requested bytes of",
    b"Cuda Runtime (",
)
START = re.compile(
    r"Requested\s+amount\s+of\s+GPU\s+memory\s+\((?P<asked>\d+)\s+bytes\)\s+could\s+not\s+be\s+allocated"
    r"|Error\s+Code\s+2:\s+OutOfMemory\s+\((?:Requested\s+size\s+was\s+(?P<size>\d+)\s+bytes)?"
    r"|Error\s+Code\s+1:\s+Cuda\s+Runtime\s+\((?P<bare>out\s+of\s+memory)\)"
    r"|Failed\s+to\s+allocate\s+memory\s+for\s+requested\s+buffer\s+of\s+size\s+(?P<buffer>\d+)"
    r"|Available\s+memory\s+of\s+(?P<left>\d+)\s+is\s+smaller\s+than\s+requested\s+bytes\s+of\s+(?P<wanted>\d+)"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    asked = found["asked"] or found["size"] or found["buffer"] or found["wanted"]
    left = amount(found["left"])
    reading = Reading(
        dialect="onnxruntime" if found["buffer"] or found["wanted"] else NAME,
        wording="arena" if found["wanted"] else "runtime" if found["bare"] else "buffer",
        asked=amount(asked),
        idle=left,
        signs=("arena-limit",) if left else (),
    )
    return reading, found.end()
