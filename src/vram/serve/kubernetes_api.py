"""The cluster's API, as far as events need it: one request at a time, in the event loop, within limits.

A pod finds its API server in the environment, and its credentials in the folder of its service account. The
token is read for every request: the cluster replaces it while the pod runs.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import ssl
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal, NamedTuple, cast

import msgspec

from vram import untrusted
from vram.errors import ConfigError

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REQUEST_S = 10.0
_MAX_TOKEN, _MAX_CA, _MAX_ANSWER = 64 << 10, 1 << 20, 256 << 10
_MAX_MESSAGE = 300

Method = Literal["POST", "PATCH"]
_CONTENT: dict[Method, str] = {
    "POST": "application/json",
    "PATCH": "application/strategic-merge-patch+json",
}


class ApiUnreachable(Exception):
    """No answer came: the connection, its encryption, the credentials or the time failed."""


class ApiAnswer(NamedTuple):
    """What the server said: why it refused, and how long it wants us to wait before the next request."""

    status: int
    message: str = ""
    wait_s: float = 0.0


class _Status(msgspec.Struct):
    """The API's object for a failure."""

    message: str = ""


class ClusterApi:
    """The API server of the cluster that this pod runs in."""

    def __init__(self, host: str, port: int, account: str = ACCOUNT) -> None:
        self.host, self.port = host, port
        self._account = account
        self._ca = b""
        self._context: ssl.SSLContext | None = None

    @classmethod
    def of_this_pod(cls, account: str = ACCOUNT) -> ClusterApi:
        """Where the environment of a pod says; raises ConfigError where it does not."""
        host, port = (
            os.environ.get("KUBERNETES_SERVICE_HOST", ""),
            os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
        )
        try:
            return cls(str(ip_address(host)), int(port), account or ACCOUNT)
        except ValueError as error:
            raise ConfigError(
                "kubernetes.events is on, and KUBERNETES_SERVICE_HOST names no API server",
                hint="events are written from inside a pod; see docs/guides/kubernetes.md",
            ) from error

    async def send(self, method: Method, path: str, body: dict[str, Any]) -> ApiAnswer:
        """Send *body*; raises ApiUnreachable where nothing was answered in time."""
        try:
            request = self._request(method, path, msgspec.json.encode(body))
            exchange = asyncio.create_task(self._exchange(request))
            try:
                await asyncio.wait((exchange,), timeout=REQUEST_S)
                if exchange.done():
                    return _read_answer(exchange.result())
            finally:
                exchange.cancel()
        except untrusted.Rejected as error:
            raise ApiUnreachable(f"cannot read the service account in {self._account}: {error}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ApiUnreachable(f"{type(error).__name__}: {error}") from error
        raise ApiUnreachable(f"no answer within {REQUEST_S:.0f} s")

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self._encryption())
        try:
            writer.write(request)
            await writer.drain()
            return await _read_all(reader)
        finally:
            # Not closed politely: a server that does not end its side would hold us.
            writer.transport.abort()

    def _request(self, method: Method, path: str, body: bytes) -> bytes:
        host = f"[{self.host}]" if isinstance(ip_address(self.host), IPv6Address) else self.host
        token = self._read("token", _MAX_TOKEN).strip().decode("ascii")
        if not token.isprintable() or not token:
            raise ValueError("the token is not one")
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            f"Authorization: Bearer {token}",
            f"Content-Type: {_CONTENT[method]}",
            f"Content-Length: {len(body)}",
            "Accept: application/json",
            "User-Agent: vram",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode("ascii") + body

    def _encryption(self) -> ssl.SSLContext:
        """The cluster's own authority, and no other one; made anew when its file has changed."""
        ca = self._read("ca.crt", _MAX_CA)
        if self._context is None or ca != self._ca:
            self._context, self._ca = ssl.create_default_context(cadata=ca.decode("ascii")), ca
        return self._context

    def _read(self, name: str, most: int) -> bytes:
        return untrusted.read_file(os.path.join(self._account, name), nbytes=most, follow=True)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    parts, left = [], _MAX_ANSWER
    while left and (part := await reader.read(min(left, 64 << 10))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class _Received:
    """Bytes in the place of a socket: the standard library reads chunks and headers from it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _read_answer(data: bytes) -> ApiAnswer:
    answer = http.client.HTTPResponse(cast("Any", _Received(data)))
    answer.begin()
    if answer.status < 300:
        return ApiAnswer(answer.status)
    wait = answer.headers.get("Retry-After", "")
    return ApiAnswer(answer.status, _message(answer), float(wait) if wait.isdecimal() else 0.0)


def _message(answer: http.client.HTTPResponse) -> str:
    try:
        said = untrusted.decode(answer.read(_MAX_ANSWER), _Status).message
    except (untrusted.Rejected, http.client.HTTPException):
        said = ""
    return (said or answer.reason)[:_MAX_MESSAGE]
