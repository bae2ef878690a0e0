"""vLLM: a budget for the GPU (gpu_memory_utilization) and what has to fit into it."""

from __future__ import annotations

import re

from vram.model.oom import Amount, Reading
from vram.oom.sizes import SIZE, amount

NAME = "vllm"
NEEDLES: tuple[bytes, ...] = (
    b"desired GPU",
    b"cache blocks",
    b"KV cache is needed",
    b"in KV cache",
    b"when warming up",
)
START = re.compile(
    r"Free\s+memory\s+on\s+device\s+(?:\S+\s+)?\((?P<free>[\d.]+)/(?P<total>[\d.]+)\s+GiB\)\s+on\s+startup\s+is\s+"
    r"less\s+than\s+desired\s+GPU\s+memory\s+utilization\s+\((?P<share>[\d.]+),\s+(?P<desired>[\d.]+)\s+GiB\)"
    r"|CUDA\s+out\s+of\s+memory\s+(?P<warming>occurred\s+when\s+warming\s+up)[^\n]{0,80}?\bdummy\s+requests"
    r"|No\s+available\s+memory\s+for\s+the\s+cache\s+blocks"
    r"|To\s+serve\s+at\s+least\s+one\s+request\s+with\s+the\s+models?(?:'s)?\s+max\s+seq\s+len\s+\((?P<wanted>\d+)\),"
    r"\s+\(?(?P<needed>[\d.]+)\s+GiB\s+KV\s+cache\s+is\s+needed,\s+which\s+is\s+larger\s+than\s+the\s+available\s+"
    r"KV\s+cache\s+memory\s+\((?P<available>[\d.]+)\s+GiB\)"
    r"|max\s+seq\s+len\s+\((?P<length>\d+)\)\s+is\s+larger\s+than\s+the\s+maximum\s+number\s+of\s+tokens\s+that\s+"
    r"can\s+be\s+stored\s+in\s+KV\s+cache\s+\((?P<tokens>\d+)\)"
)
_ESTIMATE = re.compile(r"estimated\s+maximum\s+model\s+length\s+is\s+(\d+)")
_SHARE = re.compile(r"gpu[-_]memory[-_]utilization['\"]?[=:\s]+([\d.]*\d)")
_AVAILABLE = re.compile(r"Available\s+KV\s+cache\s+memory:\s+(-?[\d.]+)\s+GiB")
_CAPACITY = re.compile(rf"total_gpu_memory\s+\(({SIZE})\)")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    share = found["share"] or _last(_SHARE, before)
    estimate = _ESTIMATE.search(text, found.end(), found.end() + 400)
    fitting = found["tokens"] or (estimate.group(1) if estimate else None)
    wanted = found["wanted"] or found["length"]
    reading = Reading(
        dialect=NAME,
        wording=_wording(found),
        asked=amount(found["desired"] or found["needed"], "GiB"),
        total=amount(found["total"], "GiB") or amount(_last(_CAPACITY, before)),
        free=amount(found["free"], "GiB"),
        limit=amount(found["available"], "GiB") if found["available"] else _left(before, found),
        utilization=float(share) if share else None,
        tokens_wanted=int(wanted) if wanted else None,
        tokens_fitting=int(fitting) if fitting else None,
    )
    return reading, estimate.end() if estimate else found.end()


def _wording(found: re.Match[str]) -> str:
    if found["desired"]:
        return "startup"
    if found["warming"]:
        return "warm up"
    return "kv cache" if found["wanted"] or found["length"] else "no cache blocks"


def _left(before: str, found: re.Match[str]) -> Amount | None:
    """What the budget leaves for the cache; below zero where weights and activations overrun it."""
    words = None if found["desired"] else _last(_AVAILABLE, before)
    if words is None:
        return None
    sign = -1 if words.startswith("-") else 1
    left = amount(words.lstrip("-"), "GiB")
    return Amount(sign * left.nbytes, left.slack) if left else None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.findall(text)
    return found[-1] if found else None
