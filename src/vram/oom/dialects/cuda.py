"""CUDA's own messages: the driver, the runtime, cuBLAS and similar libraries, NCCL, BAR1."""

from __future__ import annotations

import re
from itertools import takewhile

from vram.model.oom import OomMessage, Where
from vram.oom.dialects import SIZE, Match, Parsed, amount, amount_in, dialect
from vram.oom.passage import Passage

_CALL = r"\s+failed[:\s]+(?:cudaErrorMemoryAllocation:\s+)?out\s+of\s+memory"
_WORDS = r"[^\n]{0,60}?(?:[Ee]rror|[Ff]ail\w*|:)[^\n]{0,20}?'?[Oo]ut\s+of\s+memory'?"
_MORE = re.compile(r"\W{0,8}Tried\s+to\s+allocate")
# As a call or a frame: as an option of a data loader it means nothing.
_PINNED = re.compile(
    r"\bpin_memory(?:\(|\.py\b)|\bin pin_memory$|pin memory thread"
    r"|HostAlloc|MallocHost|CachingHostAllocator|MemHostRegister|cuda_host_mem",
    re.MULTILINE,
)
_CONTEXT = re.compile(
    r"_cuda_init|_lazy_init|cuCtxCreate|PrimaryCtxRetain|cuInit|cudaSetDevice|make_context|cublasCreate|cudnnCreate"
    r"|set_device|\'setDevice\'|ncclCommInit|runtime implicit initialization"
)
_POOL = re.compile(r"MemPool|cudaMallocAsync|cuMemAllocAsync|MallocFromPoolAsync")
_FREE = re.compile(rf"[Ff]ree\s+memory:?\s+({SIZE}|\d+)")
# As ONNX Runtime says which GPU it was.
_GPU = re.compile(r";\s+GPU=(\d+)\s+;")
_WANTED = re.compile(
    r"(?:[Rr]equested(?:\s+memory|Space)?:?|tried to allocate|allocating|cudaMalloc|\bsize)"
    rf"\s+({SIZE}|\d{{5,}})"
)


# Each alternative begins with a literal letter, so that the search skips most of a text.
@dialect(
    "cuda",
    needles=(
        b"ut of memory",
        b"out of GPU",
        b"nsufficient memory on accelerator",
        b"to allocate device memory",
        b"OF_MEMORY",
        b"MemoryAllocation",
        b"OutOfMemory",
        b"rror 2",
        b"thrust::system",
    ),
    start=re.compile(
        rf"parallel_for{_CALL}|get_temporary_buffer{_CALL}"
        r"|CUDA(?:_|\s)(?:runtime\s+)?[Ee]rror(?:\s*\(2\))?\s*:?\s+out\s+of\s+memory"
        r"|cuda\s+runtime\s+error\s+\(2\)\s*:\s+out\s+of\s+memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY(?:\s*\(?2\)?)?(?::\s+out\s+of\s+memory)?"
        # PyTorch 2.9 and later say where to look the error's name up: that is no second error.
        r"|(?<!Search for `)cudaErrorMemoryAllocation(?:\s+\(error\s+2\))?(?:[:\s]+out\s+of\s+memory)?"
        r"|(?<!Search for `)hipErrorOutOfMemory|HIP\s+error:\s+out\s+of\s+memory"
        r"|CUDA\s+out\s+of\s+memory|HIP\s+out\s+of\s+memory|XPU\s+out\s+of\s+memory"
        # Cycles, Blender's renderer; LAMMPS; NVIDIA's video encoder
        r"|System\s+is\s+out\s+of\s+GPU\s+(?:and\s+shared\s+host\s+)?memory"
        r"|Insufficient\s+memory\s+on\s+accelerator"
        r"|[Ff]ailed\s+to\s+allocate\s+device\s+memory"
        r"|(?:OpenEncodeSessionEx|CreateInputBuffer|CreateBitstreamBuffer)\s+failed:\s+out\s+of\s+memory\s+\(10\)"
        r"|Error\s+out\s+of\s+memory\s+at\s+line\s+\d+\s+in\s+file"
        r"|GPUassert:\s+out\s+of\s+memory|Out\s+of\s+memory\s+in\s+cu[A-Z]\w+"
        r"|CUDA\s+error\s+2\b(?![.\d])(?:[^\n]{0,160}?out\s+of\s+memory)?"
        rf"|C(?:UDA|uda){_WORDS}|cuda{_WORDS}|CUDA\s+error\s+(?:in|at)\s[^\n]{{0,160}}?\bout\s+of\s+memory"
        r"|cudaSuccess\s+\(2\s+vs\.\s+0\)\s+out\s+of\s+memory|cuMem\w*(?:\(\))?:\s+out\s+of\s+memory"
        r"|CudaCustomAllocator\s+out\s+of\s+memory(?:\s+\[requestedSpace:\s+\d+)?"
        r"|Failed\s+to\s+allocate\s+device[^\n]{0,80}?\(error\s+code\s+out\s+of\s+memory\)"
        r"|Error(?::\s+[^\n]{1,200}\.cuh?:\d+|\s+while\s+calling\s+cud[^\n]{1,300}?)[,.]\s+code:\s+2,\s+reason:\s+out\s+of"
        r"\s+memory"
        # Device memory, although it is called as C++ calls the host's.
        r"|thrust::system::detail::bad_alloc'\s+what\(\):\s+std::bad_alloc(?::[^\n]{0,60}?out\s+of\s+memory)?"
        r"|cudaMalloc\w*\s*(?:\(\))?\s*(?:failed|returned)[^\n]{0,40}?out\s+of\s+memory"
    ),
)
def cuda(found: Match, passage: Passage) -> Parsed:
    """CUDA's own words, whichever program prints them: they carry no figures.

    Their line, and less surely the frames of their traceback, often show what was being made: a context,
    pinned memory, a library's handle.
    """
    text = passage.text
    if _MORE.match(text, found.end()):
        return None  # a wrapped message of PyTorch, which goes on in the next line
    begin = text.rfind("\n", 0, found.start()) + 1
    after = text[found.end() : found.end() + 300].split("\n")
    # XGBoost has its figures below, as a list.
    listed = takewhile(lambda each: each.startswith("- "), after[1:])
    line = "\n".join([text[begin : found.end()] + after[0], *listed])
    near = f"{_read_frames(passage.before)}\n{line}"
    if own := _VRAM_HPP.search(line):
        return _read_header(found, own)
    gpu = _GPU.search(line)
    pinned = _PINNED.search(near) is not None
    where: Where = "pinned" if pinned else "device"
    signs = [sign for sign, pattern in (("context", _CONTEXT), ("pool", _POOL)) if pattern.search(near)]
    if pinned and not _PINNED.search(line):
        signs.append("by-frames")
    return OomMessage(
        dialect="bitsandbytes" if "bitsandbytes" in near else "cuda",
        wording=" ".join(found.group().split())[:60],
        where=where,
        gpu=int(gpu.group(1)) if gpu else None,
        asked=amount_in(_WANTED, line),
        free=amount_in(_FREE, line),
        signs=tuple(signs),
    )


# What an array of vram.hpp throws: everything that CUDA said at that moment.
_VRAM_HPP = re.compile(
    r"requested (?P<asked>\d+) bytes \([^)\n]*\), (?P<free>\d+) of (?P<total>\d+) bytes free"
    r" on device (?P<gpu>\d+)"
)


def _read_header(found: Match, own: Match) -> OomMessage:
    call = found.group().split()[0]
    return OomMessage(
        dialect="cuda",
        wording=f"vram.hpp {call}"[:60],
        where="pinned" if call == "cudaHostAlloc" else "device",
        gpu=int(own["gpu"]),
        asked=amount(own["asked"]),
        free=amount(own["free"]),
        total=amount(own["total"]),
        signs=("pool",) if call == "cudaMallocAsync" else (),
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
_PREALLOCATES = re.compile(r"tensorflow/|external/xla|stream_executor|jaxlib|xla_extension|XlaRuntimeError")


@dialect(
    "cuda-library",
    needles=(b"ALLOC_FAILED", b"ALLOCATION_FAILED"),
    start=re.compile(
        r"\b(?P<library>CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|ROCBLAS|MIOPEN|CUBLASLT)"
        r"(?:_STATUS)?_(?:ALLOC_FAILED|ALLOCATION_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)\b"
        r"|cuDNN\s+error:\s+CUDNN_STATUS_ALLOC_FAILED"
    ),
)
def libraries(found: Match, passage: Passage) -> Parsed:
    """cuBLAS, cuDNN and similar libraries: handles and workspaces, allocated beside the framework's pool."""
    text = passage.text
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end() + 400]
    library = _SPELLED[found["library"] or "CUDNN"]
    # TensorFlow and JAX take nearly the whole GPU before the first handle is made.
    pooled = bool(_PREALLOCATES.search(f"{_read_frames(passage.before)}\n{line}"))
    made = "handle" if re.search(r"Create\b|create\w*\s+\w*\s*handle|Create\(", line) else "workspace"
    return OomMessage(
        dialect="cuda-library",
        wording=f"{library} {made}",
        signs=("workspace", "pool-took-all") if pooled else ("workspace",),
        library=library,
    )


_AND = re.compile(
    r"[^\n]*\n(?:[^\n]*\n){0,2}?[^\n]*?Failed\s+to\s+(?:CUDA|Cuda)\s+(?P<host>host\s+)?(?:calloc|alloc)"
    r"(?:\s+async)?\s+(?P<asked>\d+)\s+bytes"
)


@dialect(
    "nccl",
    needles=(b"NCCL WARN", b"Last error:"),
    start=re.compile(
        r"(?P<last>Last\s+error:)\s+Cuda\s+failure\s+(?:\d+\s+)?'out\s+of\s+memory'"
        r"|(?:\[(?P<gpu>\d+)\]\s+[\w/.]+:\d+\s+(?:\(\w+\)\s+)?)?NCCL\s+WARN\s+"
        r"(?:Cuda\s+failure\s+(?:\d+\s+)?'out\s+of\s+memory'"
        r"|Failed\s+to\s+(?:CUDA|Cuda)\s+(?P<host>host\s+)?(?:calloc|alloc)(?:\s+async)?\s+(?P<asked>\d+)\s+bytes)"
    ),
)
def nccl(found: Match, passage: Passage) -> Parsed:
    """NCCL: its buffers are outside every framework's pool, and allocated late.

    Unless NCCL_DEBUG is set, only its last error is printed, by its caller.
    """
    more = None if found["asked"] else _AND.match(passage.text, found.end())
    sized = more or found
    reading = OomMessage(
        dialect="nccl",
        wording="calloc" if sized["asked"] else "last error" if found["last"] else "failure",
        where="pinned" if sized["host"] else "device",
        gpu=int(found["gpu"]) if found["gpu"] else None,
        asked=amount(sized["asked"]),
        signs=("workspace",),
    )
    return reading, sized.end()


@dialect(
    "bar1",
    needles=(b"buffer object failed", b"VA space", b"t allocate memory", b"BAR1"),
    start=re.compile(
        r"mapping\s+of\s+buffer\s+object\s+failed"
        r"|can't\s+alloc\s+VA\s+space\s+for\s+mapping"
        r"|(?:ibv_reg_mr|ibv_reg_dmabuf_mr|nvidia_p2p_get_pages|gdr_pin_buffer|gdr_map|cuFileBufRegister)\w*"
        r"[^\n]{0,120}?(?:Cannot\s+allocate\s+memory|Out\s+of\s+memory|No\s+space|insufficient)"
        r"|BAR1[^\n]{0,60}?(?:out\s+of\s+memory|failed\s+to\s+alloc)"
    ),
)
def bar1(found: Match, passage: Passage) -> Parsed:
    """BAR1, the window through which the host and other devices reach a GPU's memory, is full."""
    return OomMessage(dialect="bar1", wording=" ".join(found.group().split())[:60], where="bar1")


_TRACEBACK = "Traceback (most recent call last)"
# A frame's line, and the source below it where Python had it.
_FRAME = re.compile(r'File "[^"\n]*", line \d+[^\n]*(?:\n(?!\s*File ")[^\n]*)?')


def _read_frames(before: str) -> str:
    """Return the frames of the traceback that *before* leaves open; nothing where it leaves none."""
    found = list(_FRAME.finditer(before.rpartition(_TRACEBACK)[2]))
    if not found:
        return ""
    below = found[-1].string[found[-1].end() :].split("\n")
    return "\n".join(each.group() for each in found) if all(map(_is_source_line, below)) else ""


def _is_source_line(line: str) -> bool:
    """Between the last frame and its error, Python prints more of the source and marks below it."""
    return line.startswith((" ", "\t")) or not line.strip("~^ \t")
