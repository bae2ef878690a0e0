"""Servers that can release their GPU memory when they are asked: one module for each kind of server.

A module says how its server is recognised by its own answers, what is sent to it, what is lost by that, what
undoes it, and which document and source it was written from. None of them was run against the real server.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from vram.reclaim.servers.server import Server

SERVERS: dict[str, str] = {
    "vLLM": "vram.reclaim.servers.vllm:Vllm",
    "SGLang": "vram.reclaim.servers.sglang:Sglang",
    "llama.cpp": "vram.reclaim.servers.llamacpp:LlamaCpp",
    "ollama": "vram.reclaim.servers.ollama:Ollama",
    "ComfyUI": "vram.reclaim.servers.comfyui:ComfyUi",
    "Triton": "vram.reclaim.servers.triton:Triton",
}
"""In this order an unknown server is asked what it is."""


def server(name: str) -> Server:
    module, _, kind = SERVERS[name].partition(":")
    return cast("Server", getattr(import_module(module), kind)())


def servers() -> tuple[Server, ...]:
    return tuple(map(server, SERVERS))
