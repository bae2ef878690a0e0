"""cuBLAS, cuDNN and their kin: handles and workspaces that no framework's pool gives way for."""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.frames import frames

NAME = "cuda-library"
NEEDLES: tuple[bytes, ...] = (b"ALLOC_FAILED", b"ALLOCATION_FAILED")
START = re.compile(
    r"\b(?P<library>CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|ROCBLAS|MIOPEN|CUBLASLT)"
    r"(?:_STATUS)?_(?:ALLOC_FAILED|ALLOCATION_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)\b"
    r"|cuDNN\s+error:\s+CUDNN_STATUS_ALLOC_FAILED"
)
_SPELLED = {
    "CUBLAS": "cuBLAS",
    "CUBLASLT": "cuBLASLt",
    "CUDNN": "cuDNN",
    "CUFFT": "cuFFT",
    "CUSOLVER": "cuSOLVER",
    "CUSPARSE": "cuSPARSE",
    "CURAND": "cuRAND",
    "HIPBLAS": "hipBLAS",
    "ROCBLAS": "rocBLAS",
    "MIOPEN": "MIOpen",
}
_POOLED = re.compile(r"tensorflow/|external/xla|stream_executor|jaxlib|xla_extension|XlaRuntimeError")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end() + 400]
    library = found["library"] or "CUDNN"
    # TensorFlow and JAX take nearly the whole GPU before the first handle is made.
    pooled = bool(_POOLED.search(f"{frames(before)}\n{line}"))
    made = "handle" if re.search(r"Create\b|create\w*\s+\w*\s*handle|Create\(", line) else "workspace"
    signs = ("workspace", library.lower(), *(("pool-took-all",) if pooled else ()))
    return Reading(dialect=NAME, wording=f"{_SPELLED[library]} {made}", signs=signs), found.end()
