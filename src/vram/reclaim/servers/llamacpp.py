"""llama.cpp's server: in router mode each loaded model is unloaded; a server of one model cannot do that.

The answer comes before the model's own process has ended.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from vram.errors import NotReachable
from vram.reach.http import ServerAnswer, ServerRequest
from vram.reclaim.servers.server import (
    Ask,
    Name,
    Requests,
    get,
    nothing_to_undo,
    owner_of_models,
    post,
    require_models,
    status_complaint,
)


class _Status(Struct):
    value: str = ""


class _Model(Struct):
    id: Name
    status: _Status | None = None


class _Models(Struct):
    data: Annotated[tuple[_Model, ...], Meta(max_length=100_000)]


class _Success(Struct):
    success: bool = False


class LlamaCpp:
    name = "llama.cpp"
    held_to = (
        "tools/server/README.md (Using multiple models: /models, /models/load, /models/unload) and"
        " tools/server/server-models.cpp of ggml-org/llama.cpp, b10586"
    )
    words = ("llama-server", "llama.cpp", "llama_server")
    loses = "the loaded models, their contexts and requests in progress"
    undone = "POST /models/load; unless --no-models-autoload, the next request does it too"
    has_undo = True

    def recognise(self, ask: Ask) -> str | None:
        return "" if owner_of_models(ask) == "llamacpp" else None

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        models = require_models(self._loaded(ask), self.name)
        return Requests(requests=tuple(post("/models/unload", {"model": each}, each) for each in models))

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        there = set(self._loaded(ask))
        missing = tuple(each for each in models if each not in there)
        if not missing:
            raise nothing_to_undo(self.name, "has every model that this user's vram unloaded")
        return Requests(requests=tuple(post("/models/load", {"model": each}, each) for each in missing))

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        found = answer.decode(_Success)
        if found is not None and found.success:
            return ""
        return status_complaint(answer) or "its answer does not say that it succeeded"

    def _loaded(self, ask: Ask) -> tuple[str, ...]:
        """The models that are loaded; one that is loading would be killed, and is left alone."""
        found = ask(get("/models")).decode(_Models)
        if found is None or any(each.status is None for each in found.data):
            raise NotReachable(
                "this llama.cpp server has one model for as long as it runs, and cannot unload it",
                hint="started without a model it is a router, which can; or --sleep-idle-seconds N",
            )
        return tuple(each.id for each in found.data if each.status and each.status.value == "loaded")
