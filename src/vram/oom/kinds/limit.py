"""limit: a bound that somebody set, below what the GPU has

What it is
----------
torch.cuda.set_per_process_memory_fraction, CuPy's pool limit, RMM's maximum_pool_size, vLLM's
gpu_memory_utilization and max_model_len, JAX's memory fraction, PyTorch's watermark on Apple GPUs: each
makes an allocation fail although the GPU may have room.

How it is told
--------------
The message names the limit, and what is held plus what was asked for is more than that.

Remedies
--------
Raise the limit, if the GPU has the room; or ask for less.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Certainty, Judgement, OomKind, Reading, Term, Working
from vram.oom.remedies import change, look, smaller, utilization
from vram.oom.sums import CONTEXT, Sums, said
from vram.units import size

ID: OomKind = "limit"
TITLE = "a limit that was set"

# What JAX takes of a GPU unless told otherwise.
JAX_FRACTION = 0.75


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.dialect == "vllm":
        return _vllm(reading)
    if "pool-maximum" in reading.signs or "arena-limit" in reading.signs:
        return _judgement(reading, "fact", _pool_cause(reading), _raise(reading))
    if reading.limit is None or reading.asked is None or reading.dialect in ("tensorflow", "bfc"):
        return None
    held = (
        (worked.reserved or 0) if reading.dialect != "xla" else (reading.live.nbytes if reading.live else 0)
    )
    if held + reading.asked.nbytes <= reading.limit.nbytes:
        return None
    if reading.dialect == "xla":
        return _jax(reading, held)
    if reading.total and reading.limit.nbytes >= reading.total.nbytes - reading.total.slack:
        return None
    cause = (
        f"This program may have {said(reading.limit)}: a limit below what the GPU has was set,"
        " and it is reached."
    )
    return _judgement(reading, "fact", cause, _raise(reading), held)


def _jax(reading: Reading, held: int) -> Judgement | None:
    assert reading.limit is not None
    assert reading.asked is not None
    whole = reading.limit.nbytes / JAX_FRACTION
    if held + reading.asked.nbytes > whole:
        return None
    cause = (
        f"JAX's pool may grow to {said(reading.limit)}, {JAX_FRACTION:.0%} of the GPU unless"
        " XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise. It needs a little more than that."
    )
    share = min(0.95, (held + reading.asked.nbytes) / whole + 0.02)
    text = "Let it have more, if nobody else needs the GPU."
    way = change(text, f"export XLA_PYTHON_CLIENT_MEM_FRACTION={share:.2f}")
    return _judgement(reading, "likely", cause, (look(reading), way), held)


def _vllm(reading: Reading) -> Judgement | None:
    if reading.wording == "startup":
        return _vllm_startup(reading)
    if reading.wording == "warm up":
        return _warm_up(reading)
    if reading.wording == "kv cache":
        return _judgement(reading, "fact", _cache_cause(reading), (*_cache_ways(reading),))
    share = reading.utilization or 0.9
    short = -reading.limit.nbytes if reading.limit and reading.limit.nbytes < 0 else None
    if short and reading.total and short > (0.97 - share) * reading.total.nbytes:
        return None
    cause = (
        f"Weights and activations already fill the share of the GPU that vLLM may use ({share:.2f} of it)."
    )
    if short:
        cause += f" They overrun it by {size(short)}."
    return _judgement(reading, "likely", cause, _room_ways(reading, share))


def _warm_up(reading: Reading) -> Judgement:
    """Weights and cache are in place by then: what is tried out is beside them."""
    share = reading.utilization or 0.9
    cause = (
        f"vLLM had taken the share of the GPU that it may use ({share:.2f} of it), and its warm-up, with as"
        " many requests as it may serve at once, found no room beside it."
    )
    ways = (
        look(reading),
        change(f"Leave more beside it: --gpu-memory-utilization {share - 0.05:.2f}."),
        change("Or serve fewer requests at once: --max-num-seqs."),
    )
    return _judgement(reading, "likely", cause, ways)


def _vllm_startup(reading: Reading) -> Judgement | None:
    """A share that nobody can have: the GPU is empty but for contexts."""
    if reading.total is None or reading.free is None:
        return None
    if reading.total.nbytes - reading.free.nbytes > 2 * CONTEXT + reading.total.slack:
        return None
    cause = f"The share that was asked for ({reading.utilization}) is more than an empty GPU has free."
    return _judgement(reading, "fact", cause, utilization(reading))


def _cache_cause(reading: Reading) -> str:
    if reading.asked and reading.limit:
        return (
            f"One request of {reading.tokens_wanted} tokens needs {said(reading.asked)} of KV"
            " cache; the share of the"
            f" GPU that vLLM may use leaves {said(reading.limit)} for it."
        )
    return (
        f"One request may have {reading.tokens_wanted} tokens; the KV cache that fits into vLLM's"
        " share of the GPU"
        f" holds {reading.tokens_fitting}."
    )


def _cache_ways(reading: Reading) -> tuple[Remedy, ...]:
    fitting = reading.tokens_fitting
    if fitting is None and reading.asked and reading.limit and reading.tokens_wanted and reading.asked.nbytes:
        # A little less than it seems, since both figures are rounded; whole blocks of 16 tokens.
        fitting = int(0.99 * reading.tokens_wanted * reading.limit.nbytes / reading.asked.nbytes) // 16 * 16
    length = f"--max-model-len {fitting} fits" if fitting else "--max-model-len"
    shorter = change(f"Serve shorter requests: {length}.")
    return (shorter, *_room_ways(reading, reading.utilization or 0.9))


def _room_ways(reading: Reading, share: float) -> tuple[Remedy, ...]:
    more = min(0.97, round(share + 0.05, 2))
    ways = [look(reading)]
    if more > share:
        text = f"Give vLLM more of the GPU, if nobody else is on it: --gpu-memory-utilization {more:.2f}."
        ways.append(change(text))
    ways.append(
        change(
            "Or need less: --kv-cache-dtype fp8, --enforce-eager, --max-num-seqs, a quantized model,"
            " --tensor-parallel-size over more GPUs."
        )
    )
    return tuple(ways)


def _pool_cause(reading: Reading) -> str:
    if "arena-limit" in reading.signs:
        return (
            f"ONNX Runtime's arena has {said(reading.idle)} left of the limit that it was given"
            " (gpu_mem_limit)."
        )
    limit = f" of {said(reading.limit)}" if reading.limit else ""
    return f"RMM's pool has reached its maximum size{limit}: the GPU itself may have more."


def _raise(reading: Reading) -> tuple[Remedy, ...]:
    words = {
        "pytorch": "Raise or remove torch.cuda.set_per_process_memory_fraction.",
        "pytorch-mps": "Let it use more: the machine may swap, and become unresponsive.",
        "cupy": "Raise or remove the limit: cupy.get_default_memory_pool().set_limit(size=0),"
        " CUPY_GPU_MEMORY_LIMIT.",
        "rmm": "Raise maximum_pool_size (rmm.reinitialize, LocalCUDACluster(rmm_maximum_pool_size=...)).",
        "onnxruntime": "Raise gpu_mem_limit of the CUDA execution provider.",
    }
    text = words.get(reading.dialect, "Raise or remove the limit.")
    command = "export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0" if reading.dialect == "pytorch-mps" else ""
    ways = [] if reading.dialect == "pytorch-mps" else [look(reading, "See whether the GPU has the room.")]
    return (*ways, change(text, command), smaller(reading, reading.limit.nbytes if reading.limit else None))


def _judgement(
    reading: Reading, certainty: Certainty, cause: str, ways: tuple[Remedy, ...], held: int | None = None
) -> Judgement:
    workings: tuple[Working, ...] = ()
    if reading.asked and reading.limit and reading.limit.nbytes >= 0:
        terms = [Term("asked", reading.asked.nbytes), Term("limit", -reading.limit.nbytes)]
        if held:
            terms.insert(0, Term("held", held))
        over = sum(term.nbytes for term in terms)
        workings = (Working(tuple(terms), "beyond the limit", over),) if over > 0 else ()
    return Judgement(
        kind=ID,
        certainty=certainty,
        title=TITLE,
        cause=cause,
        workings=workings,
        remedies=ways,
    )
