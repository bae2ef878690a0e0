"""Answers as ollama's API document says: one model on the GPU, which is unloaded on request."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

import driver

driver.context()
loaded = {"llama3.2:latest": driver.alloc(2 << 30)}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def answer(self, found: object) -> None:
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def do_GET(self) -> None:
        models = [{"model": name, "size_vram": 2 << 30} for name in loaded]
        self.answer({"/api/version": {"version": "0.33.0"}, "/api/ps": {"models": models}}.get(self.path))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        driver.free(loaded.pop(asked["model"]))
        self.answer({"model": asked["model"], "done": True, "done_reason": "unload"})


server = HTTPServer(("127.0.0.1", 0), Handler)
print("ready", flush=True)
server.serve_forever()
