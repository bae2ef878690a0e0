"""A stand-in for a server: memory on the virtual GPU, and the endpoints that its documents describe.

    server_program.py KIND [MODE ...] [unix=PATH] [address=ADDRESS]

KIND is vllm, sglang, ollama, comfyui, triton, llamacpp, unknown or not-http. With "front" the process that
listens holds nothing, and a child of it does, as vLLM's engine (with "both" they both do); with "runner" that
child ends with its model, as ollama's. The other modes are faults: see the tests. Prints its port, then each
request as a line. A mode that waits does so for a line on standard input.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

WEIGHTS, CACHE = 1 << 30, 1 << 29
VERSIONS = {"vllm": "0.26.0", "sglang": "0.5.9", "ollama": "0.33.0", "comfyui": "0.7.0", "triton": "2.73.0"}

kind, *modes = sys.argv[1:] if __name__ == "__main__" else [""]
options = dict(word.split("=", 1) for word in modes if "=" in word)


class Memory:
    """What is on the GPU: held here, or by a child that is told by lines."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self.child: subprocess.Popen[str] | None = None
        if "front" in modes or "runner" in modes:
            self.child = subprocess.Popen(
                [sys.executable, __file__, "holder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert self.child.stdout is not None
            self.child.stdout.readline()
        if self.child is None or "both" in modes:
            self.hold()

    def hold(self) -> None:
        import driver

        driver.context()
        for name, nbytes in (("weights", WEIGHTS), ("kv_cache", CACHE)):
            if name not in self.parts:
                self.parts[name] = driver.alloc(nbytes)

    def release(self, names: tuple[str, ...] = ("weights", "kv_cache")) -> None:
        if "frees-nothing" in modes:
            return
        if self.child is not None:
            if "runner" in modes:
                self.child.kill()
                self.child.wait()
            else:
                self.tell("release")
        if not self.parts:
            return
        import driver

        driver.context()
        for name in names:
            if name in self.parts:
                driver.free(self.parts.pop(name))

    def resume(self) -> None:
        self.tell("resume") if self.child is not None else self.hold()

    def tell(self, word: str) -> None:
        assert self.child is not None
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        self.child.stdout.readline()


def be_a_holder() -> None:
    """The child: does what the lines say."""
    memory = Memory()
    print("ready", flush=True)
    for line in sys.stdin:
        memory.release() if line.strip() == "release" else memory.resume()
        print("done", flush=True)


class State:
    sleeping = False
    models = {"ollama": ["llama3.2:latest", "mistral:latest"], "triton": ["first", "a model/with ?%"]}.get(
        kind, ["one.gguf"]
    )


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:  # a Unix socket has no address
        return "-"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        say(method="GET", path=self.path, host=self.headers["Host"])
        if "key" in modes and self.path.startswith("/v1"):
            return self.answer(401, {"error": "Unauthorized"})
        if "huge" in modes:
            return self.answer(200, b"[" + b"0," * (4 << 20) + b"0]")
        if "endless" in modes:
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b" " * 65536)
        if "lying" in modes:
            self.send_response(200)
            self.send_header("Content-Length", "99999999999999")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = True
            return None
        if "redirect" in modes:
            return self.answer(302, Location=f"http://127.0.0.1:{options['to']}{self.path}")
        if "silent" in modes:
            sys.stdin.readline()
        found = self.reads().get(self.path)
        return self.answer(404, {"detail": "Not Found"}) if found is None else self.answer(200, found)

    def reads(self) -> dict[str, Any]:
        busy = 3 if "busy" in modes else 0
        owner = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}.get(kind)
        found: dict[str, Any] = {}
        if owner:
            found["/v1/models"] = {
                "object": "list",
                "data": [{"id": "m", "object": "model", "owned_by": owner}],
            }
        if kind == "vllm":
            found["/version"] = {"version": VERSIONS[kind]}
            metrics = f'# HELP x y\nvllm:num_requests_running{{model_name="m"}} {busy}.0\n'
            if "no-metrics" not in modes:
                found["/metrics"] = metrics.encode()
            if "no-dev" not in modes:
                found["/is_sleeping"] = {"is_sleeping": State.sleeping}
        elif kind == "sglang":
            saver = {"enable_memory_saver": "no-saver" not in modes, "version": VERSIONS[kind]}
            backup = {} if "old" in modes else {"enable_weights_cpu_backup": "backup" in modes}
            cache = {"weight_cache_mode": "client"} if "weight-cache" in modes else {}
            found["/server_info"] = {**saver, **backup, **cache}
            if "no-loads" not in modes:
                found["/v1/loads?include=core"] = {
                    "version": "x",
                    "loads": [{"dp_rank": 0, "num_running_reqs": busy, "num_waiting_reqs": 0}],
                }
        elif kind == "ollama":
            found["/api/version"] = {"version": VERSIONS[kind]}
            loaded = [
                {"name": m, "model": m, "size": 9, "size_vram": (WEIGHTS + CACHE) // 2} for m in State.models
            ]
            found["/api/ps"] = {"models": loaded}
        elif kind == "comfyui":
            found["/system_stats"] = {"system": {"os": "linux", "comfyui_version": "0.7.0"}, "devices": []}
        elif kind == "triton":
            extensions = ["classification", "model_repository", "model_repository(unload_dependents)"]
            found["/v2"] = {"name": "triton", "version": VERSIONS[kind], "extensions": extensions}
        elif kind == "llamacpp":
            status = {"status": {"value": "loaded" if State.models else "unloaded"}}
            model = {"id": "one.gguf", "owned_by": "llamacpp", **({} if "single" in modes else status)}
            found["/models"] = found["/v1/models"] = {"data": [model]}
        return found

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null")
        say(method="POST", path=self.path, body=body)
        if self.path == "/v2/repository/index" and kind == "triton":
            return self.answer(200, [{"name": m, "version": "1", "state": "READY"} for m in State.models])
        if "dies" in modes:
            os._exit(9)
        if "slow" in modes:
            sys.stdin.readline()
        if "moved" in modes:
            return self.answer(307, Location=f"http://127.0.0.1:{options['to']}{self.path}")
        if "error" in modes:
            return self.answer(400, {"error": {"message": "not\x1b[31m now"}})
        return getattr(self, kind)(body)

    def vllm(self, body: Any) -> None:
        if self.path == "/sleep?level=1":
            memory.release()
            State.sleeping = True
        elif self.path == "/wake_up":
            memory.resume()
            State.sleeping = False
        else:
            return self.answer(404)
        return self.answer(200)

    def sglang(self, body: Any) -> None:
        if self.path == "/release_memory_occupation":
            if State.sleeping or ("weight-cache" in modes and "weights" in body.get("tags", ["weights"])):
                os._exit(7)  # the scheduler's assertions
            self.answer(200, b"null")  # before it is done, as the real one does
            self.wfile.flush()
            memory.release(tuple(body.get("tags", ("weights", "kv_cache"))))
            State.sleeping = True
        elif self.path == "/resume_memory_occupation":
            if not State.sleeping:
                os._exit(7)  # the scheduler's assertion
            memory.resume()
            State.sleeping = False
            self.answer(200, b"null")
        else:
            self.answer(404)

    def ollama(self, body: Any) -> None:
        if self.path != "/api/generate" or body["keep_alive"] != 0 or body["model"] not in State.models:
            return self.answer(404, {"error": "model not found"})
        State.models.remove(body["model"])
        if not State.models:
            memory.release()
        return self.answer(
            200, {"model": body["model"], "response": "", "done": True, "done_reason": "unload"}
        )

    def comfyui(self, body: Any) -> None:
        if self.path != "/free" or not (body["unload_models"] and body["free_memory"]):
            return self.answer(404)
        self.answer(200)
        return memory.release()

    def triton(self, body: Any) -> None:
        from urllib.parse import unquote

        *_, name, verb = self.path.split("/")
        if "no-explicit" in modes:
            text = f"explicit model load / unload is not allowed if polling is enabled ({verb})"
            return self.answer(400, {"error": text})
        if verb == "unload":
            State.models.remove(unquote(name))
            memory.release() if not State.models else None
        else:
            State.models.append(unquote(name))
            memory.resume()
        return self.answer(200)

    def llamacpp(self, body: Any) -> None:
        if self.path == "/models/unload" and State.models:
            State.models.clear()
            memory.release()
        elif self.path == "/models/load":
            State.models.append(body["model"])
            memory.resume()
        else:
            return self.answer(400, {"error": {"message": "model is not running"}})
        return self.answer(200, {"success": True})

    def unknown(self, body: Any) -> None:
        self.answer(200)


class UnixServer(socketserver.UnixStreamServer):
    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = super().get_request()
        return connection, ("local", 0)


class V4Server(HTTPServer):
    def server_bind(self) -> None:
        if "shared" in modes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


class V6Server(HTTPServer):
    address_family = socket.AF_INET6


def speak_no_http(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"\x16\x03\x01 hello\r\n")
            heard = connection.recv(65536)
            say(heard=len(heard))


def become(uid: int) -> None:
    """Another user's process, as if it had been started by that user: readable for it."""
    import ctypes

    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE


def main() -> None:
    global memory
    if kind == "holder":
        return be_a_holder()
    memory = Memory()
    address = options.get("address", "127.0.0.1")
    if kind == "not-http":
        listening = socket.create_server((address, 0))
        say(port=listening.getsockname()[1])
        return speak_no_http(listening)
    if "deaf" in modes:
        say(port=0)
        sys.stdin.readline()
        return None
    server: Any
    if "unix" in options:
        server = UnixServer(options["unix"], Handler)
        if "uid" in options:
            become(int(options["uid"]))
        say(port=0)
    else:
        server = (V6Server if ":" in address else V4Server)((address, 0), Handler)
        if "uid" in options:
            become(int(options["uid"]))
        say(port=server.server_address[1], child=memory.child.pid if memory.child else None)
    return server.serve_forever()


if __name__ == "__main__":
    main()
