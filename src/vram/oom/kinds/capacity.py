"""More than the GPU has, or more than a limit that was set: too-large, limit."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Certainty, Judgement, OomMessage, Term, Working
from vram.oom.kinds import kind
from vram.oom.remedies import BIGGER, change, options, room_alone, run_why, smaller, use_less, utilization
from vram.oom.sums import ANY_GPU, CONTEXT, DRIVER, Sums, blamed, calculate, needed_context, say, shortfall
from vram.units import size

# Of a GPU, used by the program itself.
_NEARLY_ALL = 0.75


@kind("too-large", "too large for the GPU")
def too_large(reading: OomMessage, worked: Sums) -> Judgement | None:
    """too-large: this program needs more than the GPU has

    What it is:
    What the program uses, what it requested and one context together exceed the GPU, even without other
    processes. Neither emptying caches nor killing other processes would have been enough.

    How it is recognised:
    in use + asked + context > total. It is certain if in use + asked alone exceed the total, or if the
    message says what is outside the allocator; likely if the usual size of a context decides. If the message
    has no total: more than any GPU has, or more than the pool's own limit.

    Remedies:
    Use less; the message says by how much. vram.retry_on_oom reduces the size automatically.
    """
    if reading.asked is None and reading.dialect != "vllm":
        return None
    if reading.asked and reading.asked.nbytes > ANY_GPU:
        return _more_than_any_gpu(reading)
    if worked.fits_alone is False:
        return _more_than_this_gpu(reading, worked)
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _more_than_pool(reading)
    if reading.dialect == "vllm" and reading.wording == "no cache blocks":
        return _vllm_too_large(reading)
    if reading.dialect == "llama.cpp":
        return _since_start(reading, worked)
    if reading.dialect == "catboost":
        return _more_than_share(reading)
    if worked.fits_alone and worked.short and blamed(reading, worked) is None:
        return _uses_nearly_all(reading)
    return None


def _more_than_any_gpu(reading: OomMessage) -> Judgement:
    return too_large.conclude(
        "fact",
        f"It requested {say(reading.asked)} at once: no GPU has that much. A size or a shape was"
        " computed wrongly.",
        remedies=(
            change(
                "Check the shapes where it was raised: a negative or huge dimension, or an unmasked index."
            ),
        ),
    )


def _more_than_this_gpu(reading: OomMessage, worked: Sums) -> Judgement:
    assert reading.total is not None
    terms = [Term("in use by this program", reading.live.nbytes)] if reading.live else []
    terms += [Term("asked", reading.asked.nbytes)] if reading.asked else []
    needed = sum(term.nbytes for term in terms)
    sure = worked.outside is not None or needed > reading.total.nbytes + worked.slack
    beside = needed_context(reading, worked.outside)
    if reading.live and beside:
        terms.append(Term("one context", beside, sure=worked.outside is not None))
    terms.append(Term("total", -reading.total.nbytes))
    over = sum(term.nbytes for term in terms)
    fit = "not fit" if sure else "leave too little room for a typical context"
    cause = f"Even with nobody else on the GPU, what this program holds and requests would {fit}."
    if reading.live and reading.live.nbytes > reading.total.nbytes:
        cause += (
            " It already holds more than the GPU has: the driver moved part of it to host memory, as it"
            " does on Windows and WSL2."
        )
    advice = use_less(reading, room_alone(reading, worked))
    working = Working(tuple(terms), "too much", over)
    certainty: Certainty = "fact" if sure else "likely"
    return too_large.conclude(certainty, cause, workings=(working,), remedies=advice)


def _uses_nearly_all(reading: OomMessage) -> Judgement | None:
    """It fits on paper, by less than the driver and the rounding of blocks take."""
    if reading.live is None or reading.total is None:
        return None
    rest = reading.total.nbytes - reading.live.nbytes
    usual = CONTEXT + DRIVER if 2 * rest < reading.total.nbytes else 0
    if rest > max(usual, (1 - _NEARLY_ALL) * reading.total.nbytes):
        return None
    cause = (
        f"This program itself uses {say(reading.live)} of the GPU's {say(reading.total)}. The rest (a"
        " context, the driver and small pieces) is no more than usual."
    )
    room = reading.live.nbytes + (reading.free.nbytes if reading.free else 0)
    return too_large.conclude("likely", cause, workings=shortfall(reading), remedies=use_less(reading, room))


def _more_than_pool(reading: OomMessage) -> Judgement | None:
    asked, limit, live = reading.asked, reading.limit, reading.live
    if not (asked and limit) or asked.nbytes + (live.nbytes if live else 0) <= limit.nbytes:
        return None
    return too_large.conclude(
        "fact",
        f"The pool may grow to {say(limit)}, by default nearly the whole GPU, and that is not enough.",
        workings=(calculate("too much", {"in use": live, "asked": asked}, {"limit of the pool": limit}),),
        remedies=use_less(reading, limit.nbytes),
    )


def _vllm_too_large(reading: OomMessage) -> Judgement | None:
    if reading.limit is None or reading.limit.nbytes >= 0:
        return None
    less = "Use less: a quantized model, --max-num-batched-tokens, --tensor-parallel-size over more GPUs."
    return too_large.conclude(
        "likely",
        f"Weights and activations exceed vLLM's share by {say(-reading.limit.nbytes)}, more than the"
        " rest of the GPU has.",
        remedies=(change(less), BIGGER),
    )


def _more_than_share(reading: OomMessage) -> Judgement | None:
    """CatBoost's share is nearly the whole GPU, unless it was set lower or others held the rest."""
    asked, left = reading.asked, reading.idle
    if not (asked and left) or asked.nbytes <= left.nbytes:
        return None
    return too_large.conclude(
        "likely",
        f"CatBoost takes its share of the GPU at the start: by default 95% (gpu_ram_part) of what is free"
        f" then. Of that {say(left)} was left.",
        workings=(calculate("missing", {"asked": asked}, {"left of its share": left}),),
        remedies=(run_why(reading), *use_less(reading, None)),
    )


def _since_start(reading: OomMessage, worked: Sums) -> Judgement | None:
    """llama.cpp prints what was free when it began; all that was taken since is its own."""
    asked, free = reading.asked, reading.free
    if (
        not (asked and free)
        or asked.nbytes <= free.nbytes
        or (worked.unnamed or 0) - DRIVER > asked.nbytes - free.nbytes + worked.slack
    ):
        return None
    return too_large.conclude(
        "likely",
        "The memory that was free at the start is not enough for the model, its cache and this buffer.",
        workings=(calculate("missing", {"asked": asked}, {"left of what was free at the start": free}),),
        remedies=use_less(reading, None),
    )


# More than this of a GPU cannot be used: a context and activations need the rest.
_MAX_STATIC = 0.95
# What JAX takes of a GPU by default.
_JAX_FRACTION = 0.75


@kind("limit", "a configured limit")
def limit(reading: OomMessage, worked: Sums) -> Judgement | None:
    """limit: a configured limit is reached, below the size of the GPU

    What it is:
    torch.cuda.set_per_process_memory_fraction, CuPy's pool limit, RMM's maximum_pool_size, vLLM's
    gpu_memory_utilization and max_model_len, SGLang's mem_fraction_static, text-generation-inference's
    batches, JAX's memory fraction, PyTorch's watermark on Apple GPUs: each makes an allocation fail although
    the GPU may have room.

    How it is recognised:
    The message names the limit, and in use + asked exceed it.

    Remedies:
    Raise the limit if the GPU has room, or use less.
    """
    if reading.dialect in ("vllm", "sglang", "tgi"):
        return _server_limit(reading)
    if reading.dialect == "llama.cpp" and reading.wording == "layout":
        return _layers(reading)
    if "pool-maximum" in reading.signs or "arena-limit" in reading.signs:
        return _limit(reading, "fact", _pool_cause(reading), _raise_limit(reading))
    if reading.limit is None or reading.asked is None or reading.dialect in ("tensorflow", "bfc"):
        return None
    held = (
        (worked.reserved or 0) if reading.dialect != "xla" else (reading.live.nbytes if reading.live else 0)
    )
    if held + reading.asked.nbytes <= reading.limit.nbytes:
        return None
    if reading.dialect == "xla":
        return _jax_limit(reading, held)
    if reading.total and reading.limit.nbytes >= reading.total.nbytes - reading.total.slack:
        return None
    cause = (
        f"This program may use {say(reading.limit)}: a limit below the size of the GPU was set, and it"
        " is reached."
    )
    return _limit(reading, "fact", cause, _raise_limit(reading), held)


def _jax_limit(reading: OomMessage, held: int) -> Judgement | None:
    assert reading.limit is not None
    assert reading.asked is not None
    whole = reading.limit.nbytes / _JAX_FRACTION
    if held + reading.asked.nbytes > whole:
        return None
    cause = (
        f"JAX's pool may grow to {say(reading.limit)}, {_JAX_FRACTION:.0%} of the GPU unless"
        " XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise. It needs a little more than that."
    )
    share = min(0.95, (held + reading.asked.nbytes) / whole + 0.02)
    text = "Raise the fraction, if nobody else needs the GPU."
    remedy = change(text, f"export XLA_PYTHON_CLIENT_MEM_FRACTION={share:.2f}")
    return _limit(reading, "likely", cause, (run_why(reading), remedy), held)


def _server_limit(reading: OomMessage) -> Judgement | None:
    if reading.dialect == "sglang":
        judges = {"kv cache": _sglang_cache, "static": _sglang_share}
        return judges[reading.wording](reading) if reading.wording in judges else None
    return _tgi_tokens(reading) if reading.dialect == "tgi" else _vllm_limit(reading)


def _sglang_cache(reading: OomMessage) -> Judgement:
    wanted, left = reading.tokens_wanted, reading.tokens_fitting
    figures = f": {wanted} tokens were needed and {left} were left" if wanted and left is not None else ""
    cause = (
        f"SGLang's cache of tokens is full{figures}. It was allocated at the start; the GPU may have more."
    )
    advice = (
        change("Take in fewer or shorter requests: --max-running-requests, --context-length."),
        change(
            "Take requests in more carefully: a larger --schedule-conservativeness (1.3), a smaller"
            " --chunked-prefill-size."
        ),
        change("Or make the cache larger, if the GPU has room: a larger --mem-fraction-static."),
    )
    return _limit(reading, "fact", cause, advice)


def _sglang_share(reading: OomMessage) -> Judgement:
    """The share must hold the weights and the cache: free memory less what is outside the share is left."""
    share, free, weights = reading.utilization, reading.free, reading.live
    cause = "The weights fill SGLang's share of the GPU: nothing of it is left for the cache of tokens."
    more = change("Give it more of the GPU, if nobody else uses it: a larger --mem-fraction-static.")
    if share and free and weights:
        at_start = free.nbytes + weights.nbytes
        outside = round((1 - share) * at_start)
        cause = (
            f"The weights take {say(weights)} and leave {say(free)}. Of that SGLang keeps"
            f" {say(outside)} free (1 - {share} of {say(at_start)}): nothing is left for the cache."
        )
        least = 1 - free.nbytes / at_start
        if least + 0.03 <= _MAX_STATIC:
            more = change(
                f"Give it more of the GPU: --mem-fraction-static {least + 0.03:.2f} leaves a small cache."
            )
    advice = (
        run_why(reading),
        more,
        change("Or use less: a quantized model, --kv-cache-dtype fp8_e5m2, --tp-size over more GPUs."),
    )
    return _limit(reading, "fact" if share and free and weights else "likely", cause, advice)


def _tgi_tokens(reading: OomMessage) -> Judgement:
    tokens = reading.tokens_wanted or 0
    cause = (
        f"At its start text-generation-inference tried the largest batch that it may get, {tokens} tokens,"
        " and that did not fit beside the weights."
    )
    return _limit(reading, "likely", cause, (*options(reading), run_why(reading)))


def _layers(reading: OomMessage) -> Judgement:
    cause = (
        "Ollama found no place for the model: the layers that are to be on the GPU (num_gpu) need more than"
        " is free there, or the rest needs more host memory than there is."
    )
    first = change("Leave num_gpu out, so that Ollama chooses what fits, or make it smaller.")
    return _limit(reading, "likely", cause, (first, *options(reading), run_why(reading)))


def _vllm_limit(reading: OomMessage) -> Judgement | None:
    if reading.wording == "startup":
        return _vllm_startup(reading)
    if reading.wording == "warm up":
        return _warm_up(reading)
    if reading.wording == "kv cache":
        return _limit(reading, "fact", _cache_cause(reading), _cache_remedies(reading))
    share = reading.utilization or 0.9
    short = -reading.limit.nbytes if reading.limit and reading.limit.nbytes < 0 else None
    if short and reading.total and short > (0.97 - share) * reading.total.nbytes:
        return None
    cause = f"Weights and activations already fill vLLM's share of the GPU ({share:.2f} of it)."
    if short:
        cause += f" They exceed it by {size(short)}."
    return _limit(reading, "likely", cause, _room_remedies(reading, share))


def _warm_up(reading: OomMessage) -> Judgement:
    """Weights and cache are in place by then: what is tried out is beside them."""
    share = reading.utilization or 0.9
    cause = (
        f"vLLM had taken its share of the GPU ({share:.2f} of it), and the rest was too small for its"
        " warm-up with the maximum number of requests."
    )
    advice = (
        run_why(reading),
        change(f"Leave more room: --gpu-memory-utilization {share - 0.05:.2f}."),
        change("Or serve fewer requests at once: --max-num-seqs."),
    )
    return _limit(reading, "likely", cause, advice)


def _vllm_startup(reading: OomMessage) -> Judgement | None:
    """A share that no program can have: the GPU is empty but for contexts."""
    if reading.total is None or reading.free is None:
        return None
    if reading.total.nbytes - reading.free.nbytes > 2 * CONTEXT + reading.total.slack:
        return None
    cause = f"The requested share ({reading.utilization}) is more than an empty GPU has free."
    return _limit(reading, "fact", cause, utilization(reading))


def _cache_cause(reading: OomMessage) -> str:
    if reading.asked and reading.limit:
        return (
            f"One request of {reading.tokens_wanted} tokens needs {say(reading.asked)} of KV cache;"
            f" vLLM's share of the GPU leaves {say(reading.limit)} for it."
        )
    return (
        f"One request may have {reading.tokens_wanted} tokens; the KV cache that fits vLLM's share of"
        f" the GPU holds {reading.tokens_fitting}."
    )


def _cache_remedies(reading: OomMessage) -> tuple[Remedy, ...]:
    fitting = reading.tokens_fitting
    if fitting is None and reading.asked and reading.limit and reading.tokens_wanted and reading.asked.nbytes:
        # A little less than it seems, since both figures are rounded; whole blocks of 16 tokens.
        fitting = int(0.99 * reading.tokens_wanted * reading.limit.nbytes / reading.asked.nbytes) // 16 * 16
    length = f"--max-model-len {fitting} fits" if fitting else "--max-model-len"
    shorter = change(f"Serve shorter requests: {length}.")
    return (shorter, *_room_remedies(reading, reading.utilization or 0.9))


def _room_remedies(reading: OomMessage, share: float) -> tuple[Remedy, ...]:
    more = min(0.97, round(share + 0.05, 2))
    advice = [run_why(reading)]
    if more > share:
        text = f"Give vLLM more of the GPU, if nobody else uses it: --gpu-memory-utilization {more:.2f}."
        advice.append(change(text))
    advice.append(
        change(
            "Or use less: --kv-cache-dtype fp8, --enforce-eager, --max-num-seqs, a quantized model,"
            " --tensor-parallel-size over more GPUs."
        )
    )
    return tuple(advice)


def _pool_cause(reading: OomMessage) -> str:
    if "arena-limit" in reading.signs:
        return f"ONNX Runtime's arena has {say(reading.idle)} left below its limit (gpu_mem_limit)."
    limit = f" of {say(reading.limit)}" if reading.limit else ""
    return f"RMM's pool has reached its maximum size{limit}; the GPU itself may have more."


def _raise_limit(reading: OomMessage) -> tuple[Remedy, ...]:
    words = {
        "pytorch": "Raise or remove torch.cuda.set_per_process_memory_fraction.",
        "pytorch-mps": "Let it use more; the machine may start to swap and become unresponsive.",
        "cupy": "Raise or remove the limit: cupy.get_default_memory_pool().set_limit(size=0),"
        " CUPY_GPU_MEMORY_LIMIT.",
        "rmm": "Raise maximum_pool_size (rmm.reinitialize, LocalCUDACluster(rmm_maximum_pool_size=...)).",
        "onnxruntime": "Raise gpu_mem_limit of the CUDA execution provider.",
        "paddle": "Raise FLAGS_gpu_memory_limit_mb, or unset it.",
    }
    text = words.get(reading.dialect, "Raise or remove the limit.")
    if reading.dialect == "rmm" and reading.language != "python":
        text = "Raise the maximum size of rmm::mr::pool_memory_resource."
    command = "export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0" if reading.dialect == "pytorch-mps" else ""
    advice = [] if reading.dialect == "pytorch-mps" else [run_why(reading, "Check whether the GPU has room.")]
    return (*advice, change(text, command), smaller(reading, reading.limit.nbytes if reading.limit else None))


def _limit(
    reading: OomMessage, certainty: Certainty, cause: str, advice: tuple[Remedy, ...], held: int | None = None
) -> Judgement:
    workings: tuple[Working, ...] = ()
    if reading.asked and reading.limit and reading.limit.nbytes >= 0:
        plus = {"held": held or None, "asked": reading.asked}
        over = calculate("beyond the limit", plus, {"limit": reading.limit})
        workings = (over,) if over.nbytes > 0 else ()
    return limit.conclude(certainty, cause, workings=workings, remedies=advice)
