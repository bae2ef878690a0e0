"""vLLM: sleep level 1, which moves the weights to host memory and discards the KV cache.

``POST /sleep`` aborts requests in progress (its ``mode`` is "abort" unless told otherwise), and a server that
was started without ``--enable-sleep-mode`` falls asleep and frees nothing: the bytes tell.
"""

from __future__ import annotations

import math

from msgspec import Struct

from vram.errors import NotReachable
from vram.reach.http import ServerAnswer, ServerRequest
from vram.reclaim.servers.server import (
    Ask,
    Requests,
    get,
    nothing_to_undo,
    owner_of_models,
    post,
    status_complaint,
)

_DEV_MODE = "start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
_COUNTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class _Sleeping(Struct, forbid_unknown_fields=True):
    is_sleeping: bool


class _Version(Struct):
    version: str


class Vllm:
    name = "vLLM"
    held_to = (
        "docs/features/sleep_mode.md, docs/usage/security.md, docs/design/metrics.md and"
        " vllm/entrypoints/serve/dev/sleep/api_router.py of vllm-project/vllm, commit a014e35 (0.26.1rc0)"
    )
    words = ("vllm",)
    loses = (
        "the KV cache, and requests in progress; it serves nothing until it is woken. Weights move to host"
        " memory, which must have room for them"
    )
    undone = "POST /wake_up"
    has_undo = True

    def recognise(self, ask: Ask) -> str | None:
        # With --api-key /v1 is closed, and /is_sleeping, in development mode, is not.
        if owner_of_models(ask) != "vllm" and ask(get("/is_sleeping")).decode(_Sleeping) is None:
            return None
        found = ask(get("/version")).decode(_Version)
        return found.version if found else ""

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        if self._is_sleeping(ask):
            raise NotReachable("vLLM is asleep already", hint="`vram release --undo PID` wakes it")
        # Where it keeps no metrics nobody knows, and what is lost says so.
        busy = _in_progress(ask(get("/metrics")))
        if busy:
            raise NotReachable(
                f"vLLM has {busy:g} requests in progress, which sleeping would abort",
                hint="try again when it is idle",
            )
        return Requests(requests=(post("/sleep?level=1"),))

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        if not self._is_sleeping(ask):
            raise nothing_to_undo("vLLM", "is awake")
        return Requests(requests=(post("/wake_up"),))

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        said = status_complaint(answer)
        return f"{said}; {_DEV_MODE}" if answer.status == 404 else said

    def _is_sleeping(self, ask: Ask) -> bool:
        answer = ask(get("/is_sleeping"))
        if answer.status == 404:
            raise NotReachable("vLLM does not offer sleep: it answers 404 to /is_sleeping", hint=_DEV_MODE)
        found = answer.decode(_Sleeping)
        if found is None:
            raise NotReachable(f"vLLM does not say whether it sleeps (HTTP {answer.status})")
        return bool(found.is_sleeping)


def _in_progress(answer: ServerAnswer) -> float | None:
    """How many requests its metrics say are in progress; None where they say nothing of that."""
    if answer.status != 200:
        return None
    total: float | None = None
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in _COUNTS:
            try:
                value = float(line.rpartition(" ")[2])
            except ValueError:
                continue
            if math.isfinite(value):
                total = (total or 0.0) + value
    return total
