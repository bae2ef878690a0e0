"""SGLang: release_memory_occupation, which it can with ``--enable-memory-saver``.

Its scheduler asserts that no request is in progress, that memory was released before it is resumed, and that
weights are its own where they are released (``--weight-cache-mode``); an assertion that fails there ends the
server. So all of it is known before anything is sent. Never by GET: the server takes these calls as GET, too.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

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


class _Info(Struct):
    enable_memory_saver: bool | None = None
    enable_weights_cpu_backup: bool | None = None
    weight_cache_mode: str = "off"
    version: str = ""


class _Load(Struct):
    num_running_reqs: int
    num_waiting_reqs: int


class _Loads(Struct):
    loads: Annotated[tuple[_Load, ...], Meta(min_length=1)]


class _OldLoad(Struct):
    num_reqs: int


class Sglang:
    name = "SGLang"
    held_to = (
        "docs/docs/advanced_features/sglang_for_rl.mdx, docs/docs/basic_usage/native_api.mdx,"
        " python/sglang/srt/entrypoints/http_server.py, v1_loads.py and"
        " managers/scheduler_components/weight_updater.py of sgl-project/sglang, commit cce0a12 (August"
        " 2026); the last three again in 0.5.23"
    )
    words = ("sglang",)
    loses = (
        "the KV cache; weights too move to host memory where it was started with"
        " --enable-weights-cpu-backup; it serves nothing until it resumes"
    )
    undone = "POST /resume_memory_occupation"
    has_undo = True

    def recognise(self, ask: Ask) -> str | None:
        if owner_of_models(ask) != "sglang":
            return None
        found = _info(ask)
        return found.version if found else ""

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        if by_us:
            raise NotReachable(
                "SGLang was asked to release its memory already", hint="`vram release --undo PID` resumes it"
            )
        info = self._require_ready(ask)
        return Requests(requests=(post("/release_memory_occupation", _regions(info)),))

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        if not by_us:
            # Resuming what was never released ends its scheduler.
            raise nothing_to_undo(
                "SGLang", "has its memory, or this user's vram did not ask it to release any"
            )
        info = _info(ask)
        if info is None:
            raise NotReachable("SGLang does not say how it was started: /server_info has no answer for us")
        return Requests(requests=(post("/resume_memory_occupation", _regions(info)),))

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        return status_complaint(answer)

    def _require_ready(self, ask: Ask) -> _Info:
        info = _info(ask)
        if info is None or info.enable_memory_saver is None:
            raise NotReachable("SGLang does not say how it was started: /server_info has no answer for us")
        if not info.enable_memory_saver:
            raise NotReachable("SGLang cannot release memory", hint="start it with --enable-memory-saver")
        if info.enable_weights_cpu_backup is None:
            # It may not know regions either, and would release weights that nobody has a copy of.
            raise NotReachable(
                "this SGLang is too old: it does not say whether it keeps a copy of its weights"
            )
        busy = _in_progress(ask)
        if busy is None:
            raise NotReachable(
                "SGLang does not say whether requests are in progress; releasing then would end it"
            )
        if busy:
            raise NotReachable(
                f"SGLang has {busy} requests in progress; releasing now would end it",
                hint="try again when it is idle",
            )
        return info


def _regions(info: _Info) -> dict[str, list[str]]:
    """All of its memory; only the KV cache where it has no copy of the weights, or others use them, too."""
    own = info.enable_weights_cpu_backup and info.weight_cache_mode == "off"
    return {} if own else {"tags": ["kv_cache"]}


def _info(ask: Ask) -> _Info | None:
    answer = ask(get("/server_info"))
    if answer.status == 404:
        answer = ask(get("/get_server_info"))  # its name before 2026
    found: _Info | None = answer.decode(_Info)
    return found


def _in_progress(ask: Ask) -> int | None:
    answer = ask(get("/v1/loads?include=core"))
    if answer.status == 404:
        old = ask(get("/get_load")).decode(tuple[_OldLoad, ...])
        return sum(each.num_reqs for each in old) if old else None
    found = answer.decode(_Loads)
    return sum(each.num_running_reqs + each.num_waiting_reqs for each in found.loads) if found else None
