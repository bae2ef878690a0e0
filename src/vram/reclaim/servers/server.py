"""What a kind of server says about itself, and what all of them share: reading answers of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from vram.errors import NotReachable
from vram.reach.http import ServerAnswer, ServerRequest

Ask = Callable[[ServerRequest], ServerAnswer]
"""Sends a request to the server and returns its answer."""

Name = Annotated[str, Meta(min_length=1, max_length=400)]
MAX_MODELS = 256
_MAX_REASON_LENGTH = 200


class Requests(Struct, frozen=True, kw_only=True):
    """What is sent, in order. ``predicted_bytes``: what is on the GPU, where the server counts that."""

    requests: tuple[ServerRequest, ...]
    predicted_bytes: int | None = None


class Server(Protocol):
    """A kind of server.

    ``recognise`` only sends GETs that the server's documents call reads: an unknown server gets no others.
    ``release`` and ``undo`` read the server's state, change nothing, and return what is to be sent.
    """

    name: str
    held_to: str
    """The document and source, with their version, that this was written from."""
    words: tuple[str, ...]
    """What its command line, program or folder has in it: a hint where to ask, and never a proof."""
    loses: str
    undone: str
    """How it comes back."""
    has_undo: bool
    """Whether ``vram release --undo`` sends something; otherwise the next request to it loads the model."""

    def recognise(self, ask: Ask) -> str | None:
        """Its version, empty where it does not say; None where it is another server."""
        ...

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        """Raises NotReachable where the server cannot release its memory, or must not now.

        *by_us*: this user's vram asked it before, and has not undone that.
        """
        ...

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        """As ``release``; *models* are those that our last release unloaded."""
        ...

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        """Why *answer* does not say that *request* was done; empty where it does."""
        ...


def get(path: str) -> ServerRequest:
    return ServerRequest(method="GET", path=path)


def post(path: str, body: dict[str, Any] | None = None, model: str | None = None) -> ServerRequest:
    return ServerRequest(method="POST", path=path, body=body, model=model)


class _Model(Struct):
    owned_by: str = ""


class _Models(Struct):
    data: Annotated[tuple[_Model, ...], Meta(max_length=100_000)]


def owner_of_models(ask: Ask) -> str | None:
    """Whom ``GET /v1/models`` names as owner: vLLM, SGLang and llama.cpp name themselves."""
    found = ask(get("/v1/models")).decode(_Models)
    return found.data[0].owned_by if found is not None and found.data else None


def status_complaint(answer: ServerAnswer) -> str:
    """The HTTP status, unless it is 200, with the reason that the server gives."""
    if answer.status == 200:
        return ""
    reason = _reason(answer)
    return f"HTTP {answer.status}" + (f": {reason}" if reason else "")


class _Error(Struct):
    error: Any = None
    message: Any = None
    detail: Any = None


def _reason(answer: ServerAnswer) -> str:
    found = ServerAnswer(200, answer.body).decode(_Error)
    if found is None:
        return ""
    inner = found.error.get("message") if isinstance(found.error, dict) else found.error
    said = next((each for each in (inner, found.message, found.detail) if isinstance(each, str)), "")
    return " ".join(said.split())[:_MAX_REASON_LENGTH]


def require_models(models: tuple[str, ...], name: str) -> tuple[str, ...]:
    """*models*, each once. Raises where there is none, or more than anybody has."""
    distinct = tuple(dict.fromkeys(models))
    if not distinct:
        raise NotReachable(f"{name} has no model loaded: there is nothing to release")
    if len(distinct) > MAX_MODELS:
        raise NotReachable(f"{name} lists {len(distinct)} loaded models; vram asks for {MAX_MODELS} at most")
    return distinct


def nothing_to_undo(name: str, why: str) -> NotReachable:
    return NotReachable(f"there is nothing to undo: {name} {why}")
