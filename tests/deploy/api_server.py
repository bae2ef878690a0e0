"""A stand-in for a cluster's API server: real HTTPS, the API's own schemas, and refusals on demand.

It takes what the real one would take: create and patch of events, by a token, with the right content types.
Every object is validated strictly against the schemas of several versions of Kubernetes.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import kubernetes_validate

from tests.patience import until

VERSIONS = ("1.25", "1.29", "1.33", "1.37")
TOKEN = "a-token.of-the.account"


def make_certificate(folder: Path) -> None:
    """An authority and a server's certificate for 127.0.0.1, as a cluster has them."""
    run = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.crt")]
    subprocess.run([*run, *names, *files], check=True, capture_output=True)


class Answer(NamedTuple):
    """What the server says, and the event that there is afterwards, with its key."""

    status: int
    body: dict[str, Any]
    stored: tuple[tuple[str, str], dict[str, Any]] | None = None


class ApiServer:
    """Serves until it is closed. ``events`` are by namespace and name; ``requests`` in their order."""

    def __init__(self, folder: Path) -> None:
        self.account = folder
        make_certificate(folder)
        (folder / "token").write_text(TOKEN)
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.wrong: list[str] = []
        self.refuse: Callable[[str, str], tuple[int, dict[str, str]] | None] = lambda method, path: None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def environment(self) -> dict[str, str]:
        """What a pod's environment says of it."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "NODE_NAME": "node-7",
        }

    def until(self, what: Callable[[], Any]) -> Any:
        return until(what, lambda: (self.requests, self.wrong))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert not self.wrong, self.wrong

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what the API does ----

    def take(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return Answer(401, {"kind": "Status", "message": "Unauthorized"})
        found = re.fullmatch(r"/api/v1/namespaces/([a-z0-9-]+)/events(?:/([a-z0-9.-]+))?", path)
        if not found:
            return self._mistake(f"no such path: {path}")
        if method == "POST":
            return self._create(found[1], headers, json.loads(body))
        return self._patch(found[1], found[2], headers, json.loads(body))

    def _create(self, namespace: str, headers: Any, event: dict[str, Any]) -> Answer:
        if headers["Content-Type"] != "application/json":
            return self._mistake("wrong content type")
        key = namespace, event["metadata"]["name"]
        about = event["involvedObject"]
        if event["metadata"]["namespace"] != namespace or about.get("namespace", "default") != namespace:
            return self._mistake("an event lies in the namespace of its object")
        if key in self.events:
            return Answer(409, {"kind": "Status", "message": "already exists"})
        return self._store(key, event, 201)

    def _patch(self, namespace: str, name: str, headers: Any, body: dict[str, Any]) -> Answer:
        if headers["Content-Type"] != "application/strategic-merge-patch+json":
            return self._mistake("wrong content type")
        if (namespace, name) not in self.events:
            return Answer(404, {"kind": "Status", "message": f'events "{name}" not found'})
        return self._store((namespace, name), {**self.events[namespace, name], **body}, 200)

    def _store(self, key: tuple[str, str], event: dict[str, Any], status: int) -> Answer:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(event, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                return self._mistake(f"{version}: {error}")
        return Answer(status, event, (key, event))

    def _mistake(self, sentence: str) -> Answer:
        self.wrong.append(sentence)
        return Answer(422, {"kind": "Status", "message": sentence})


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused = server.refuse(self.command, self.path)
            more: dict[str, str] = {}
            if refused is not None:
                status, more = refused
                answer = Answer(status, {"kind": "Status", "message": "not now"})
            else:
                answer = server.take(self.command, self.path, self.headers, body)
            # The request, the event, the answer, in this order: who waits for one finds those before it.
            server.requests.append((self.command, self.path, answer.status))
            if answer.stored is not None:
                key, event = answer.stored
                server.events[key] = event
            said = json.dumps(answer.body).encode()
            with suppress(OSError):  # the client has gone
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **more}.items():
                    self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")  # as the real one does
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said))

        do_PATCH = do_POST

        def log_message(self, *words: object) -> None:
            pass

    return Handler
