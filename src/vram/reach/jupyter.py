"""Ask through a Jupyter kernel's own messages, over the connection file that its command line names.

A kernel that offers subshells answers while a cell runs; another one answers between cells.
Nothing shows in the notebook: no history, no execution count, no output.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vram import untrusted
from vram.errors import NotReachable, TimedOut
from vram.model.inside import Via
from vram.reach.payload import MAX_ANSWER_LENGTH, MAX_ITEMS, PayloadRequest, RawAnswer, expression
from vram.reach.sockets import same_network
from vram.reach.target_process import TargetProcess, namespace_mismatch

NAME: Via = "jupyter"
MIME = "application/vnd.vram.answer+json"
SUBSHELLS = "kernel subshells"
SCHEMES = ("hmac-sha256", "hmac-sha512", "hmac-sha384", "hmac-sha1", "hmac-md5")
_MAX_FILE_LENGTH = 1 << 16
_MAX_REASON_LENGTH = 300

Shape = TypeVar("Shape")

# An expression, so that the user's namespace gains no name; a type of its own, so that no
# formatter the user has installed can change the answer.
_EXPRESSION = (
    "type('Answer', (), {{'_repr_mimebundle_': "
    "lambda self, *, answer={expression}, **_: {{{mime!r}: answer}}}})()"
)


class UntrustedConnectionFile(Exception):
    """A connection file that is not to be trusted, and why."""


def unavailable_reason(process: TargetProcess) -> str | None:
    path = connection_file(process.argv)
    if path is None:
        return "it is not a Jupyter kernel"
    if not process.is_ours:
        return "its connection file belongs to another user"
    if not same_network(process.pid):
        return "it is in another network namespace than vram (a container)"
    mismatch = namespace_mismatch(process.pid, same_files=True)
    if mismatch is not None:
        return mismatch
    try:
        read_connection(path, process.pid)
    except UntrustedConnectionFile as error:
        return str(error)
    from importlib.util import find_spec

    if find_spec("zmq") is None:
        from vram.installation import how_to_add

        return f"pyzmq is not installed here: {how_to_add('jupyter')}"
    return None


def connection_file(argv: Sequence[str]) -> str | None:
    """What a kernel's command line names as its connection file."""
    for at, word in enumerate(argv):
        if word == "-f" and at + 1 < len(argv):
            return argv[at + 1]
        for prefix in ("-f=", "--f="):
            if word.startswith(prefix):
                return word.removeprefix(prefix)
    return None


def read_connection(path: str, pid: int) -> dict[str, Any]:
    """The file's contents. Raises UntrustedConnectionFile unless it is ours, private, and of this machine."""
    try:
        if not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UntrustedConnectionFile(f"its connection file cannot be opened: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise UntrustedConnectionFile("its connection file is not a regular file of yours")
        if about.st_mode & 0o077:
            raise UntrustedConnectionFile(
                "its connection file is accessible to others (its mode is not 0600)"
            )
        text = stream.read(_MAX_FILE_LENGTH)
    return _parse_connection(text)


def _parse_connection(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        local = found["transport"] == "tcp" and _is_loopback(found["ip"])
        signed = bool(found["key"]) and found["signature_scheme"] in SCHEMES
        numbered = all(0 < int(found[f"{channel}_port"]) < 1 << 16 for channel in ("shell", "control"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UntrustedConnectionFile("its connection file is damaged") from None
    if not local:
        raise UntrustedConnectionFile("its connection file does not point to this machine's loopback")
    if not signed:
        raise UntrustedConnectionFile("its connection file has no signing key")
    if not numbered:
        raise UntrustedConnectionFile("its connection file is damaged")
    return dict(found)


def _is_loopback(ip: str) -> bool:
    try:
        import ipaddress

        return ip == "localhost" or ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def run(process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    until = time.monotonic() + deadline_s
    try:
        connection = read_connection(connection_file(process.argv) or "", process.pid)
    except UntrustedConnectionFile as error:
        raise NotReachable(f"pid {process.pid}: {error}") from error
    with KernelClient(connection, until) as kernel:
        source = expression(request.payload, "answered", request.with_limits(process.pid_inside, until))
        return RawAnswer(kernel.evaluate(_EXPRESSION.format(expression=source, mime=MIME), process.pid))


class _Language(Struct):
    name: str = ""


class _KernelInfo(Struct):
    language_info: _Language = msgspec.field(default_factory=_Language)
    supported_features: tuple[str, ...] = ()


class _Subshell(Struct):
    subshell_id: str | None = None


class _Evaluated(Struct):
    data: dict[str, Any] = {}
    evalue: str = ""


class _Executed(Struct):
    user_expressions: dict[str, _Evaluated] = {}


# jupyter_client speaks this protocol too; importing it takes longer than the whole run (160 ms), and every
# machine with a kernel has ZeroMQ.
_DELIMITER = b"<IDS|MSG>"
_PROTOCOL = "5.3"
# Closing waits at most this long for what was sent last: a kernel that has ended must not delay us.
_LINGER_MS = 500


class KernelClient:
    """The channels of a kernel (messaging protocol 5 over ZeroMQ): control, which always answers, and shell,
    where code runs. Replies must be signed."""

    def __init__(self, connection: dict[str, Any], until: float) -> None:
        import zmq

        self._until = until
        self._key = str(connection["key"]).encode()
        self._digest = str(connection["signature_scheme"]).removeprefix("hmac-")
        self._session = f"vram-{os.getpid()}-{os.urandom(8).hex()}"
        self._context = zmq.Context()
        self._control, self._shell = (self._connect(connection, name) for name in ("control", "shell"))
        self._subshell: str | None = None

    def _connect(self, connection: dict[str, Any], channel: str) -> Any:
        import zmq

        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWER_LENGTH)
        ip = str(connection["ip"])
        if ":" in ip:
            socket.setsockopt(zmq.IPV6, 1)
            ip = f"[{ip}]"
        socket.connect(f"tcp://{ip}:{int(connection[f'{channel}_port'])}")
        return socket

    def __enter__(self) -> KernelClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._subshell is not None:
            self._send(self._control, "delete_subshell_request", {"subshell_id": self._subshell})
        self._control.close()
        self._shell.close()
        self._context.term()

    def evaluate(self, expression: str, pid: int) -> bytes:
        info = self._ask(self._control, "kernel_info_request", {}, _KernelInfo)
        if info.language_info.name != "python":
            raise NotReachable(f"pid {pid} is not a Python kernel")
        if SUBSHELLS in info.supported_features:
            made = self._ask(self._control, "create_subshell_request", {}, _Subshell)
            self._subshell = made.subshell_id
        asked = {
            "code": "",
            "silent": True,
            "store_history": False,
            "user_expressions": {"vram": expression},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        header = {"subshell_id": self._subshell} if self._subshell is not None else {}
        answer = self._ask(self._shell, "execute_request", asked, _Executed, **header)
        evaluated = answer.user_expressions.get("vram", _Evaluated())
        if MIME not in evaluated.data:
            reason = evaluated.evalue[:_MAX_REASON_LENGTH] or "no reason given"
            raise NotReachable(f"the kernel did not run the request: {reason}")
        return msgspec.json.encode(evaluated.data[MIME])

    def _ask(
        self, channel: Any, kind: str, question: dict[str, Any], shape: type[Shape], **header: str
    ) -> Shape:
        """The content of the answer. Raises TimedOut."""
        number = self._send(channel, kind, question, **header)
        while (left := self._until - time.monotonic()) > 0 and channel.poll(int(left * 1000)):
            parent, content = self._parse(channel.recv_multipart())
            if parent.get("msg_id") != number:
                continue
            try:
                return msgspec.convert(content, shape)
            except msgspec.ValidationError as error:
                raise NotReachable(f"the kernel sent an unreadable answer: {error}") from error
        raise TimedOut(
            "the kernel did not answer in time; the request is cancelled",
            hint="it is busy with a cell: wait longer with --deadline; ipykernel 7 answers while busy",
        )

    def _send(self, channel: Any, kind: str, content: dict[str, Any], **header: str) -> str:
        number = os.urandom(16).hex()
        whole = {
            "msg_id": number,
            "msg_type": kind,
            "session": self._session,
            "username": "vram",
            "date": datetime.now(timezone.utc).isoformat(),
            "version": _PROTOCOL,
            **header,
        }
        parts = [json.dumps(part).encode() for part in (whole, {}, {}, content)]
        channel.send_multipart([_DELIMITER, self._sign(parts), *parts])
        return number

    def _parse(self, frames: list[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parent header and content; empty where the reply is malformed or not signed with the key."""
        at = frames.index(_DELIMITER) if _DELIMITER in frames else len(frames)
        signature, parts = frames[at + 1 : at + 2], frames[at + 2 : at + 6]
        if len(parts) < 4 or not hmac.compare_digest(signature[0], self._sign(parts)):
            return {}, {}
        try:
            parent, content = (
                untrusted.decode(parts[at], dict[str, Any], most_items=MAX_ITEMS) for at in (1, 3)
            )
        except untrusted.Rejected:
            return {}, {}
        return parent, content

    def _sign(self, parts: list[bytes]) -> bytes:
        signer = hmac.new(self._key, digestmod=getattr(hashlib, self._digest))
        for part in parts:
            signer.update(part)
        return signer.hexdigest().encode()
