"""ComfyUI: ``POST /free`` sets two flags; its worker unloads the models when no prompt runs.

So the answer comes before anything is freed, and says nothing of it.
"""

from __future__ import annotations

from msgspec import Struct

from vram.reach.http import ServerAnswer, ServerRequest
from vram.reclaim.servers.server import Ask, Requests, get, nothing_to_undo, post, status_complaint


class _System(Struct):
    comfyui_version: str


class _Stats(Struct):
    system: _System


class ComfyUi:
    name = "ComfyUI"
    held_to = (
        "server.py (/system_stats, /free) and main.py of comfyanonymous/ComfyUI, commit acbf08c (v0.7.0)"
    )
    words = ("comfy",)
    loses = "the loaded models and the cached results of nodes; the next prompt loads and computes them again"
    undone = "the next prompt loads its models"
    has_undo = False

    def recognise(self, ask: Ask) -> str | None:
        found = ask(get("/system_stats")).decode(_Stats)
        version: str | None = found.system.comfyui_version if found else None
        return version

    def release(self, ask: Ask, *, by_us: bool) -> Requests:
        return Requests(requests=(post("/free", {"unload_models": True, "free_memory": True}),))

    def undo(self, ask: Ask, models: tuple[str, ...], *, by_us: bool) -> Requests:
        raise nothing_to_undo(self.name, "loads its models by itself at the next prompt")

    def complaint(self, request: ServerRequest, answer: ServerAnswer) -> str:
        return status_complaint(answer)
