"""What serves models: vLLM, SGLang, text-generation-inference, TensorRT, ONNX Runtime, llama.cpp, Ollama."""

from __future__ import annotations

import re
from functools import reduce

from msgspec.structs import replace

from vram.model.cards import card_nbytes
from vram.model.oom import Amount, OomMessage, Where
from vram.oom.dialects import SIZE, Match, Parsed, amount, dialect, last_in, minus, plus
from vram.oom.passage import Passage

_ESTIMATE = re.compile(r"estimated\s+maximum\s+model\s+length\s+is\s+(\d+)")
_SHARE = re.compile(r"gpu[-_]memory[-_]utilization['\"]?[=:\s]+([\d.]*\d)")
_AVAILABLE = re.compile(r"Available\s+KV\s+cache\s+memory:\s+(-?[\d.]+)\s+GiB")
_CAPACITY = re.compile(rf"total_gpu_memory\s+\(({SIZE})\)")


@dialect(
    "vllm",
    needles=(b"desired GPU", b"cache blocks", b"KV cache is needed", b"in KV cache", b"when warming up"),
    start=re.compile(
        r"Free\s+memory\s+on\s+device\s+(?:\S+\s+)?\((?P<free>[\d.]+)/(?P<total>[\d.]+)\s+GiB\)\s+on\s+startup\s+is\s+"
        r"less\s+than\s+desired\s+GPU\s+memory\s+utilization\s+\((?P<share>[\d.]+),\s+(?P<desired>[\d.]+)\s+GiB\)"
        r"|CUDA\s+out\s+of\s+memory\s+(?P<warming>occurred\s+when\s+warming\s+up)[^\n]{0,80}?\bdummy\s+requests"
        r"|No\s+available\s+memory\s+for\s+the\s+cache\s+blocks"
        r"|To\s+serve\s+at\s+least\s+one\s+request\s+with\s+the\s+models?(?:'s)?\s+max\s+seq\s+len\s+\((?P<wanted>\d+)\),"
        r"\s+\(?(?P<needed>[\d.]+)\s+GiB\s+KV\s+cache\s+is\s+needed,\s+which\s+is\s+larger\s+than\s+the\s+available\s+"
        r"KV\s+cache\s+memory\s+\((?P<available>[\d.]+)\s+GiB\)"
        r"|max\s+seq\s+len\s+\((?P<length>\d+)\)\s+is\s+larger\s+than\s+the\s+maximum\s+number\s+of\s+tokens\s+that\s+"
        r"can\s+be\s+stored\s+in\s+KV\s+cache\s+\((?P<tokens>\d+)\)"
    ),
)
def vllm(found: Match, passage: Passage) -> Parsed:
    """vLLM: a budget for the GPU (gpu_memory_utilization) and what has to fit into it."""
    share = found["share"] or last_in(_SHARE, passage.before)
    estimate = _ESTIMATE.search(passage.text, found.end(), found.end() + 400)
    fitting = found["tokens"] or (estimate.group(1) if estimate else None)
    wanted = found["wanted"] or found["length"]
    reading = OomMessage(
        dialect="vllm",
        wording=_name_wording(found),
        asked=amount(found["desired"] or found["needed"], "GiB"),
        total=amount(found["total"], "GiB") or amount(last_in(_CAPACITY, passage.before)),
        free=amount(found["free"], "GiB"),
        limit=amount(found["available"], "GiB") if found["available"] else _read_left(passage.before, found),
        utilization=float(share) if share else None,
        tokens_wanted=int(wanted) if wanted else None,
        tokens_fitting=int(fitting) if fitting else None,
    )
    return reading, estimate.end() if estimate else found.end()


def _name_wording(found: Match) -> str:
    if found["desired"]:
        return "startup"
    if found["warming"]:
        return "warm up"
    return "kv cache" if found["wanted"] or found["length"] else "no cache blocks"


def _read_left(before: str, found: Match) -> Amount | None:
    """What the budget leaves for the cache; below zero where weights and activations overrun it."""
    words = None if found["desired"] else last_in(_AVAILABLE, before)
    if words is None:
        return None
    sign = -1 if words.startswith("-") else 1
    left = amount(words.lstrip("-"), "GiB")
    return Amount(sign * left.nbytes, left.slack) if left else None


_FRACTION = re.compile(r"mem[_-]fraction[_-]static['\"]?[=:\s]+([\d.]*\d)")
_BEFORE_WEIGHTS = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")
_AFTER_WEIGHTS = re.compile(r"Load weight end\.[^\n]{0,200}?avail mem=([\d.]+) GB")
_WEIGHTS = re.compile(r"Load weight end\.[^\n]{0,300}?mem usage=([\d.]+) GB")
_TOKENS = re.compile(
    r"\s*Try to allocate (?P<wanted>\d+) tokens\.\s*"
    r"(?:Ava\w+ (?:full )?tokens: (?P<left>\d+)"
    r"(?:[^\n]*\n\s*Available swa\w*(?: tokens)?: (?P<window>\d+))?)?"
)


@dialect(
    "sglang",
    needles=(b"-fraction-static", b"capacity is unbalanced", b"lower your batch size"),
    start=re.compile(
        r"Loaded\s+weights\s+leave\s+no\s+GPU\s+memory\s+for\s+the\s+KV\s+cache"
        r"(?:\s+under\s+--mem-fraction-static=(?P<under>[\d.]*\d))?|"
        r"Not\s+enough\s+memory\.\s+Please\s+try\s+to\s+increase\s+--mem-fraction-static"
        r"(?:\.\s+Current\s+value:\s+\S*?mem_fraction_static=(?P<share>[\d.]*\d))?"
        r"|memory\s+capacity\s+is\s+unbalanced\.(?:\s+Some\s+GPUs\s+may\s+be\s+occupied\s+by\s+other\s+processes\.)?"
        r"(?:\s+\w+=(?P<least>[\d.]+),\s+local_gpu_memory=(?P<local>[\d.]+))?"
        r"|(?P<pool>Prefill\s+out|Decode\s+out|Out)\s+of\s+memory\.\s+Try\s+to\s+lower\s+your\s+batch\s+size"
    ),
)
def sglang(found: Match, passage: Passage) -> Parsed:
    """SGLang: a share of the GPU for weights and cache (mem_fraction_static), and a cache counted in tokens.

    Its GB are of 1024^3 bytes.
    """
    if found["pool"]:
        tokens = _TOKENS.match(passage.text, found.end() + 1)
        left = (tokens["window"] or tokens["left"]) if tokens else None
        reading = OomMessage(
            dialect="sglang",
            wording="kv cache",
            tokens_wanted=int(tokens["wanted"]) if tokens else None,
            tokens_fitting=int(left) if left else None,
        )
        return reading, tokens.end() if tokens else found.end()
    if found.group().startswith("memory"):
        return OomMessage(
            dialect="sglang",
            wording="unbalanced",
            asked=amount(found["local"], "GiB"),
            free=amount(found["least"], "GiB"),
        )
    share = found["share"] or found["under"] or last_in(_FRACTION, passage.before)
    free = amount(last_in(_AFTER_WEIGHTS, passage.before), "GiB")
    first = amount(last_in(_BEFORE_WEIGHTS, passage.before), "GiB")
    return OomMessage(
        dialect="sglang",
        wording="static",
        free=free,
        live=minus(first, free) or amount(last_in(_WEIGHTS, passage.before), "GiB"),
        utilization=float(share) if share else None,
    )


@dialect(
    "tgi",
    needles=(b"max-batch-", b"Not enough memory to handle"),
    start=re.compile(
        r"Not\s+enough\s+memory\s+to\s+handle\s+(?:(?P<total>\d+)\s+total\s+tokens\s+with\s+)?"
        r"(?P<tokens>\d+)\s+prefill\s+tokens"
        r"(?:\.\s+You\s+need\s+to\s+decrease\s+`--max-batch-[\w-]+`(?:\s+or\s+`--max-batch-[\w-]+`)?)?"
    ),
)
def tgi(found: Match, passage: Passage) -> Parsed:
    """text-generation-inference: at its start it tries the largest batch that it may get."""
    return OomMessage(
        dialect="tgi",
        wording="total tokens" if found["total"] else "prefill tokens",
        tokens_wanted=int(found["total"] or found["tokens"]),
    )


@dialect(
    "tensorrt",
    needles=(
        b"be allocated",
        b"OutOfMemory (",
        b"Failed to allocate memory for",
        b"requested bytes of",
        b"Cuda Runtime (",
    ),
    start=re.compile(
        r"Requested\s+amount\s+of\s+GPU\s+memory\s+\((?P<asked>\d+)\s+bytes\)\s+could\s+not\s+be\s+allocated"
        r"|Error\s+Code\s+2:\s+OutOfMemory\s+\((?:Requested\s+size\s+was\s+(?P<size>\d+)\s+bytes)?"
        r"|Error\s+Code\s+1:\s+Cuda\s+Runtime\s+\((?P<bare>out\s+of\s+memory)\)"
        r"|Failed\s+to\s+allocate\s+memory\s+for\s+requested\s+buffer\s+of\s+size\s+(?P<buffer>\d+)"
        r"|Available\s+memory\s+of\s+(?P<left>\d+)\s+is\s+smaller\s+than\s+requested\s+bytes\s+of\s+(?P<wanted>\d+)"
    ),
)
def tensorrt(found: Match, passage: Passage) -> Parsed:
    """TensorRT and ONNX Runtime: one buffer that could not be had, with its size.

    TensorRT first prints CUDA's own words, and the size in its next line, if at all.
    """
    asked = found["asked"] or found["size"] or found["buffer"] or found["wanted"]
    left = amount(found["left"])
    return OomMessage(
        dialect="onnxruntime" if found["buffer"] or found["wanted"] else "tensorrt",
        wording="arena" if found["wanted"] else "runtime" if found["bare"] else "buffer",
        asked=amount(asked),
        idle=left,
        signs=("arena-limit",) if left else (),
    )


_TRTLLM_TOTAL = re.compile(r"Total\s+GPU\s+memory\s+\(GiB\):\s+([\d.]+)")
_TRTLLM_FREE = re.compile(r"Free\s+GPU\s+memory\s+before[^\n:]*:\s+([\d.]+)")


@dialect(
    "tensorrt-llm",
    needles=(b"insufficient GPU memory",),
    start=re.compile(r"Executor\s+creation\s+failed\s+due\s+to\s+insufficient\s+GPU\s+memory"),
)
def tensorrt_llm(found: Match, passage: Passage) -> Parsed:
    """TensorRT-LLM: which part of its executor found no room, and how much was free before that part."""
    body = passage.text[found.end() : found.end() + 600]
    total, free = _TRTLLM_TOTAL.search(body), _TRTLLM_FREE.search(body)
    reading = OomMessage(
        dialect="tensorrt-llm",
        wording="executor",
        total=amount(total.group(1), "GiB") if total else None,
        free=amount(free.group(1), "GiB") if free else None,
    )
    return reading, found.end() + max((each.end() for each in (total, free) if each), default=0)


_FOLLOWS = re.compile(
    r"[^\n]*\n(?:[^\n]*failed to allocate \w+ buffer of size \d+[^\n]*\n?)?"
    r"(?:[^\n]*unable to allocate \w+ buffer[^\n]*\n?)?"
)
_DEVICE = r"(?:CUDA|ROCm)(\d+)"
_BEGAN = re.compile(rf"using\s+device\s+{_DEVICE}\s[^\n]*?-\s+(\d+)\s+MiB\s+free")
_CARD = re.compile(r"Device\s+(\d+):\s+([^,\n]+),\s+compute\s+capability[^\n]*")
_CARD_TOTAL = re.compile(r"VRAM:\s+(\d+)\s+MiB")
_BREAKDOWN = re.compile(rf"-\s+{_DEVICE}\s+\([^)\n]*\)\s*\|\s*(\d+)\s+=")
_NAMED = re.compile(rf"using\s+device\s+{_DEVICE}\s+\((.+?)\)\s+(?:\(|-)")
_BUFFER = re.compile(rf"{_DEVICE}\s+(?:model|KV|compute|RS)?\s*buffer\s+size\s*=\s*([\d.]+)\s+MiB")
# Each run has its own buffers: those of an earlier one are gone.
_RUN_BEGINS = re.compile(r"ggml_(?:cuda_init|init_cublas): found|using device|msg=\"?offload")
# Ollama lists what was free on each GPU that it gives to a model, in the order in which the model sees them.
_OLLAMA_FREE = re.compile(r'memory\.available="\[([^]"\n]*)\]"')
_OLLAMA_GPU = re.compile(rf'msg="inference compute"[^\n]*\btotal="({SIZE})"')
_ABOUT_THE_GPU = (
    *(b"using device", b"compute capability", b"buffer size", b"memory_breakdown", b"ggml_cuda_init: found"),
    *(b"ggml_init_cublas: found", b"memory.available=", b'msg="inference compute"'),
)
# CUDA's total is a little less than a card's name says: 24080 of 24564 MiB on an RTX 4090.
_NAME_SLACK = 0.04


@dialect(
    "llama.cpp",
    needles=(
        b"Malloc failed",
        b"failed to allocate",
        b"unable to allocate",
        b"more system memory",
        b"too large for system",
        b"layout cannot be allocated",
        b"memory allocation of size",
        b"for kv cache",
    ),
    start=re.compile(
        r"allocating\s+(?P<asked>[\d.,]+\s+MiB)\s+on\s+device\s+(?P<gpu>\d+):\s+(?:cuda|hip)Malloc\s+failed:\s+"
        r"out\s+of\s+memory"
        r"|failed\s+to\s+allocate\s+(?P<backend>[A-Za-z]+)(?P<number>\d*)(?P<host>_Host)?\s+buffer"
        r"(?:\s+of\s+size\s+(?P<nbytes>\d+))?"
        r"|unable\s+to\s+allocate\s+(?:backend|(?P<named>[A-Za-z]+)(?P<at>\d+))\s+buffer"
        r"|failed\s+to\s+allocate\s+(?P<pinned>[\d.,]+\s+MiB)\s+of\s+pinned\s+memory"
        r"|failed\s+to\s+allocate\s+(?P<what>compute(?:\s+\w+)?\s+buffers?|buffer\s+for\s+(?:the\s+)?kv\s+cache)"
        r"|Device\s+memory\s+allocation\s+of\s+size\s+(?P<vulkan>\d+)\s+failed"
        r"|memory\s+(?P<layout>layout\s+cannot\s+be\s+allocated)(?:\s+with\s+num_gpu\s+=\s+\d+)?"
        rf"|model\s+request\s+too\s+large\s+for\s+system\"?\s+requested=\"?(?P<want>{SIZE})\"?\s+available=\"?(?P<left>{SIZE}|\d+)"
        rf"|requires\s+more\s+system\s+memory\s+\((?P<need>{SIZE})\)\s+than\s+is\s+available\s+\((?P<have>{SIZE})\)"
    ),
)
def llama_cpp(found: Match, passage: Passage) -> Parsed:
    """llama.cpp and what is built on it: a buffer that did not fit, and the buffers made before it."""
    if found["need"] or found["want"]:
        return OomMessage(
            dialect="llama.cpp",
            wording="system memory",
            where="host",
            asked=amount(found["need"] or found["want"]),
            free=amount(found["have"] or found["left"]),
        )
    if found["layout"] or found["what"]:
        wording = "layout" if found["layout"] else "buffer"
        began = _BEGAN.findall(passage.lines_with(_ABOUT_THE_GPU))
        gpu = int(began[-1][0]) if began else None
        return _with_history(OomMessage(dialect="llama.cpp", wording=wording), gpu, passage)
    backend = "Vulkan" if found["vulkan"] else found["backend"] or found["named"] or "CUDA"
    number = found["gpu"] or found["number"] or found["at"]
    asked = amount((found["asked"] or found["pinned"] or "").replace(",", ".")) or amount(
        found["nbytes"] or found["vulkan"]
    )
    where: Where = "pinned" if found["pinned"] or found["host"] else "host" if backend == "CPU" else "device"
    if backend not in ("CUDA", "ROCm", "CPU", "Vulkan", "Metal", "SYCL"):
        return None
    gpu = int(number) if number else None
    follows = _FOLLOWS.match(passage.text, found.end())
    reading = OomMessage(
        dialect="llama.cpp",
        wording="buffer",
        where=where,
        gpu=gpu if where == "device" else None,
        asked=asked,
        signs=("hip",) if backend == "ROCm" or "hipMalloc" in found.group() else (),
    )
    if where == "device":
        reading = _with_history(reading, gpu, passage)
    return reading, follows.end() if follows else found.end()


def _with_history(reading: OomMessage, gpu: int | None, passage: Passage) -> OomMessage:
    """Add what it took, what is left of what was free at the start, and how large the card is."""
    before = passage.lines_with(_ABOUT_THE_GPU)
    runs = list(_RUN_BEGINS.finditer(before))
    this_run = before[runs[-1].start() :] if runs else before
    taken = [amount(size, "MiB") for number, size in _BUFFER.findall(this_run) if int(number) == gpu]
    live = reduce(plus, taken) if taken else None
    free = _read_free(before, gpu)
    return replace(reading, live=live, free=minus(free, live) or free, total=_read_total(before, gpu))


def _read_free(before: str, gpu: int | None) -> Amount | None:
    """What was free on *gpu* when the model began to load."""
    began = [free for number, free in _BEGAN.findall(before) if int(number) == gpu]
    if began:
        return amount(began[-1], "MiB")
    listed = re.findall(SIZE, last_in(_OLLAMA_FREE, before) or "")
    return amount(listed[gpu]) if gpu is not None and gpu < len(listed) else None


def _read_total(before: str, gpu: int | None) -> Amount | None:
    """How large *gpu* is: as it was printed, or else by the card's name."""
    cards = [found for found in _CARD.finditer(before) if int(found[1]) == gpu]
    printed = [found[1] for card in cards[-1:] for found in _CARD_TOTAL.finditer(card.group())]
    printed += [total for number, total in _BREAKDOWN.findall(before) if int(number) == gpu]
    if printed:
        return amount(printed[-1], "MiB")
    alike = set(_OLLAMA_GPU.findall(before))
    if len(alike) == 1:
        return amount(alike.pop())
    names = [card[2] for card in cards]
    names += [name for number, name in _NAMED.findall(before) if int(number) == gpu]
    nbytes = card_nbytes(names[-1]) if names else None
    return Amount(nbytes, int(_NAME_SLACK * nbytes)) if nbytes else None
