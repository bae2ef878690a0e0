"""Triton: every model that is ready is unloaded; it takes that only with ``--model-control-mode=explicit``.

What comes back depends on the backend: one with a cache of its own can keep it in the server's process.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from msgspec import Meta, Struct

from vram.errors import NotReachable
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


class _Metadata(Struct):
    name: str
    version: str = ""
    extensions: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class _Indexed(Struct):
    name: Name
    state: str = ""


class Triton:
    name = "Triton"
    held_to = (
        "docs/protocol/extension_model_repository.md, docs/user_guide/model_management.md and"
        " src/http_server.cc of triton-inference-server/server, commit e1db8a6 (2.73.0dev)"
    )
    words = ("tritonserver", "triton")
    loses = "the loaded models: requests for one fail until it is loaded again"
    undone = "POST /v2/repository/models/NAME/load"
    has_undo = True

    def recognise(self, ask: Ask) -> str | None:
        found = ask(get("/v2")).decode(_Metadata)
        if found is None or found.name != "triton" or "model_repository" not in found.extensions:
            return None
        version: str = found.version
        return version

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        models = require_models(self._ready(ask), self.name)
        return Requests(requests=tuple(_change(each, "unload") for each in models))

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        there = set(self._ready(ask))
        missing = tuple(each for each in models if each not in there)
        if not missing:
            raise nothing_to_undo(self.name, "has every model that this user's vram unloaded")
        return Requests(requests=tuple(_change(each, "load") for each in missing))

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        said = status_complaint(answer)
        return f"{said} (it must be started with --model-control-mode=explicit)" if said else ""

    def _ready(self, ask: Ask) -> tuple[str, ...]:
        """The models that are ready. The index is a POST that changes nothing."""
        answer = ask(post("/v2/repository/index", {"ready": True}))
        found = answer.decode(tuple[_Indexed, ...])
        if found is None:
            raise NotReachable(
                f"Triton does not list its models ({status_complaint(answer) or 'unreadable'})"
            )
        return tuple(each.name for each in found if each.state in ("READY", ""))


def _change(model: str, verb: str) -> ServerRequest:
    return post(f"/v2/repository/models/{quote(model, safe='')}/{verb}", model=model)
