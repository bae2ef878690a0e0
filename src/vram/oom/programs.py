"""Programs that people run and do not write: which one a message comes from, and its own options.

A user of ComfyUI cannot change its batch loop, but can start it with --lowvram. The options are those of the
programs' own documentation. For programs that people write, it says in which language advice should be.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from vram.model.oom import OomMessage
from vram.oom.passage import Passage


class ModelProgram(NamedTuple):
    """``marks`` are words of its logs; ``options`` what to change, the most likely to help first."""

    name: str
    marks: tuple[str, ...]
    options: tuple[str, ...]


# The particular before the general: SGLang's tracebacks have frames of vLLM, Ollama's logs llama.cpp's lines.
PROGRAMS = {
    "sglang": ModelProgram(
        "SGLang",
        ("sglang/", "sglang\\", "sglang.", "mem_fraction_static", "--mem-fraction-static"),
        (
            "Leave more room beside weights and cache: a smaller --mem-fraction-static, 0.05 less at a time.",
            "In prefill: --chunked-prefill-size 2048. In decode: fewer --max-running-requests. While graphs"
            " are captured: a smaller --cuda-graph-max-bs, or --disable-cuda-graph.",
            "Or use a quantized model, --kv-cache-dtype fp8_e5m2, or --tp-size over more GPUs.",
        ),
    ),
    "tgi": ModelProgram(
        "text-generation-inference",
        ("text_generation_server", "text_generation_launcher", "text-generation-launcher"),
        (
            "Allow smaller batches and shorter requests: --max-batch-prefill-tokens, --max-input-tokens,"
            " --max-total-tokens.",
            "Or use --quantize with a quantized model, or --num-shard over more GPUs; --cuda-graphs 0 runs"
            " without CUDA graphs.",
            "If --cuda-memory-fraction is set below 1.0, raise it.",
        ),
    ),
    "ollama": ModelProgram(
        "Ollama",
        ("ollama[", "ollama/", "ollama\\", "source=server.go", "source=sched.go", "llama runner"),
        (
            "Use a shorter context: num_ctx in the request or the Modelfile, or OLLAMA_CONTEXT_LENGTH.",
            "Keep fewer layers on the GPU: num_gpu. Leave memory for others: OLLAMA_GPU_OVERHEAD=BYTES.",
            "Load less at once: OLLAMA_NUM_PARALLEL=1 OLLAMA_MAX_LOADED_MODELS=1; `ollama ps` shows what is"
            " loaded, `ollama stop MODEL` unloads it.",
            "Shrink the cache: OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0; or use a smaller model.",
        ),
    ),
    "comfyui": ModelProgram(
        "ComfyUI",
        ("ComfyUI", "comfyui", "comfy/", "comfy\\", "unloading all loaded models"),
        (
            "Start it with --lowvram, and if that is not enough with --novram.",
            "Decode with VAE Decode (Tiled), make smaller or fewer images, or load an fp8 or GGUF model.",
            "If other programs need the GPU, too: --reserve-vram 1.0 leaves them that many GB.",
        ),
    ),
    "sd-webui": ModelProgram(
        "Stable Diffusion web UI",
        (
            *("stable-diffusion-webui", "sd-webui", "webui-user", "Stable diffusion model failed to load"),
            *("[GPU Setting] You will use", "[Low VRAM Warning]"),
        ),
        (
            "Start it with --medvram (--medvram-sdxl for SDXL alone), and if that is not enough with"
            " --lowvram: in COMMANDLINE_ARGS of webui-user.",
            "Make smaller or fewer images, upscale less, and use --xformers or --opt-sub-quad-attention.",
        ),
    ),
    "vllm": ModelProgram(
        "vLLM",
        ("vllm/", "vllm\\", "EngineCore", "VllmWorker"),
        (
            "Leave more room beside weights and cache: --gpu-memory-utilization, 0.05 less at a time.",
            "Run less at once: --max-num-seqs, --max-num-batched-tokens; --enforce-eager runs without CUDA"
            " graphs.",
            "Or use a quantized model, or --tensor-parallel-size over more GPUs.",
        ),
    ),
    "llama.cpp": ModelProgram(
        "llama.cpp",
        ("ggml_", "ggml-", "llama_model_load", "llama_context"),
        (
            "Keep fewer layers on the GPU (-ngl), or use a shorter context (-c) or a smaller batch (-ub).",
            "Shrink the cache (--cache-type-k q8_0 --cache-type-v q8_0 with -fa on), or keep it in host"
            " memory (--no-kv-offload).",
            "Or use a smaller quantization, or spread it over more GPUs (--tensor-split).",
        ),
    ),
    "tensorrt-llm": ModelProgram(
        "TensorRT-LLM",
        ("[TRT-LLM]", "[TensorRT-LLM]", "tensorrt_llm/"),
        (
            "Give the KV cache less of what is free: kv_cache_config.free_gpu_memory_fraction.",
            "Serve less at once: max_batch_size, max_num_tokens, max_seq_len.",
            "Or use a quantized model, or tp_size over more GPUs.",
        ),
    ),
    "blender": ModelProgram(
        "Blender",
        ("intern/cycles", "intern\\cycles", "System is out of GPU", "blender.org/", ".blend"),
        (
            "Render with less: smaller textures and fewer subdivisions (Render Properties > Simplify).",
            "Turn Persistent Data off, and Use Tiling on (Render Properties > Performance).",
            "Or render on the CPU, which has the host's memory: Render Properties > Device.",
        ),
    ),
    "catboost": ModelProgram(
        "CatBoost",
        (),
        (
            "Use less: a smaller depth, a smaller border_count, max_ctr_complexity=1, boosting_type='Plain'.",
            "Keep categorical features in host memory: gpu_cat_features_storage='CpuPinnedMemory'.",
            "Or train on several GPUs (devices='0:1'), or raise gpu_ram_part if it is set below 0.95.",
        ),
    ),
    "paddle": ModelProgram(
        "PaddlePaddle",
        (),
        (
            "Use less: a smaller batch, shorter sequences, mixed precision (paddle.amp).",
            "Let its pool grow as needed: FLAGS_allocator_strategy=auto_growth. With naive_best_fit it takes"
            " FLAGS_fraction_of_gpu_memory_to_use of the GPU at the start.",
        ),
    ),
}
_MARKS = tuple((name, mark) for name, program in PROGRAMS.items() for mark in program.marks)
# How far behind a message its program may be named.
_AFTER = 2000


def program_of(reading: OomMessage, passage: Passage, end: int) -> str | None:
    """The program whose log this is; None where nothing around the message, up to its *end*, names one."""
    if reading.where not in ("device", "host") or reading.dialect in ("host", "cuda-error", "xid"):
        return None
    near = f"{passage.before}\n{passage.text[: end + _AFTER]}"
    named = set(map(_named_in, near.split("\n")))
    return next(
        (name for name in PROGRAMS if name in named), reading.dialect if reading.dialect in PROGRAMS else None
    )


# A line is near many messages where they are close together.
@lru_cache(maxsize=512)
def _named_in(line: str) -> str | None:
    """The first program that has a mark in *line*."""
    for name, mark in _MARKS:
        if mark in line:
            return name
    return None


# Messages of CUDA and its C++ libraries, whichever language called them.
_ANY_LANGUAGE = ("cuda", "cuda-library", "nccl", "rmm", "host")
_PYTHON = re.compile(
    r"Traceback \(most recent|File \"[^\"\n]+\", line \d|\.py\b|[Pp]ython"
    r"|\b(?:Runtime|Memory|CudaAPI|Accelerator)Error\b"
    r"|\b(?:py)?torch\b|tensorflow|\bjax|\bcupy|numba|\bcudf\b|XGBoost|xgboost|lightning|bitsandbytes|mxnet|openmm\.|onnxruntime\.capi"
)
_CPP = re.compile(
    r"terminate called|what\(\):|\b[\w-]+\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|fpp|f90)\b|::\w+|GPUassert"
    r"|\b(?:cuda|cu)(?:Malloc|Mem|Host|Ctx|Device)\w*|CUDA error 2\b|Failed to allocate device|cudaSuccess"
    r"|OpenCV|Accelerator Fatal Error|CudaCustomAllocator"
)
_NEAR = 1500


def language_of(reading: OomMessage, passage: Passage, end: int) -> Literal["python", "c++"] | None:
    """What the program is written in, by the message and the lines around it; None where they do not say."""
    if reading.dialect == "cuda.jl":
        return None  # Julia
    if reading.dialect not in _ANY_LANGUAGE or reading.program:
        return "python"
    line = passage.text.find("\n", end)
    near = f"{passage.before[-_NEAR:]}\n{passage.text[: line if line >= 0 else None]}"
    if _PYTHON.search(near):
        return "python"
    return "c++" if _CPP.search(near) else None
