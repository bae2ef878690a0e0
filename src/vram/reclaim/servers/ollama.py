"""ollama: every loaded model is unloaded by a generate request without a prompt and with ``keep_alive: 0``.

A model that answers somebody right now is unloaded when it is done with that.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from vram.reach.http import ServerAnswer, ServerRequest
from vram.reclaim.servers.server import (
    Ask,
    Name,
    Requests,
    get,
    nothing_to_undo,
    post,
    require_models,
    status_complaint,
)


class _Version(Struct):
    version: str


class _Loaded(Struct):
    model: Name
    size_vram: Annotated[int, Meta(ge=0, le=1 << 60)] = 0


class _Ps(Struct):
    models: Annotated[tuple[_Loaded, ...], Meta(max_length=10_000)]


class _Generated(Struct):
    done: bool = False
    done_reason: str = ""


class Ollama:
    name = "ollama"
    held_to = (
        "docs/api.md (List Running Models, Unload a model, Version), docs/faq.mdx and server/routes.go of"
        " ollama/ollama, v0.33.0-rc2"
    )
    words = ("ollama",)
    loses = "the loaded models and their contexts; the next request to one loads it again"
    undone = "the next request for a model loads it"
    has_undo = False

    def recognise(self, ask: Ask) -> str | None:
        found = ask(get("/api/version")).decode(_Version)
        if found is None or ask(get("/api/ps")).decode(_Ps) is None:
            return None
        version: str = found.version
        return version

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        found = ask(get("/api/ps")).decode(_Ps)
        loaded = found.models if found else ()
        models = require_models(tuple(each.model for each in loaded), self.name)
        return Requests(
            requests=tuple(post("/api/generate", {"model": each, "keep_alive": 0}, each) for each in models),
            predicted_bytes=sum(each.size_vram for each in loaded),
        )

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        raise nothing_to_undo(self.name, "loads a model by itself at the next request for it")

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        said = status_complaint(answer)
        found = answer.decode(_Generated)
        if said or (found is not None and found.done and found.done_reason == "unload"):
            return said
        return "its answer does not say that the model is unloaded"
