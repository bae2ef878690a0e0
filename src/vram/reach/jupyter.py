"""Through a Jupyter kernel's own door: the connection file that its command line names.

A kernel that offers subshells answers while a cell runs; another one answers between cells.
Nothing shows in the notebook: no history, no execution count, no output.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vram.errors import NotReachable
from vram.model.inside import Via
from vram.reach.jupyter_wire import Wire
from vram.reach.payload_source import expression
from vram.reach.python_process import PythonProcess, shares_our_world
from vram.reach.request import Raw, Request

NAME: Via = "jupyter"
MIME = "application/vnd.vram.answer+json"
SUBSHELLS = "kernel subshells"
SCHEMES = ("hmac-sha256", "hmac-sha512", "hmac-sha384", "hmac-sha1", "hmac-md5")
_LONGEST_FILE = 1 << 16
_LONGEST_REASON = 300

Shape = TypeVar("Shape")

# An expression, so that the user's namespace gains no name; a type of its own, so that no
# formatter the user has installed can change the answer.
_EXPRESSION = (
    "type('Answer', (), {{'_repr_mimebundle_': "
    "lambda self, *, told={expression}, **_: {{{mime!r}: told}}}})()"
)


class Unsafe(Exception):
    """A connection file that must not be believed, and why."""


def closed(process: PythonProcess) -> str | None:
    path = connection_file(process.argv)
    if path is None:
        return "it is no Jupyter kernel"
    if not process.is_ours:
        return "its connection file is somebody else's"
    try:
        read_connection(path, process.pid)
    except Unsafe as error:
        return str(error)
    from importlib.util import find_spec

    if find_spec("zmq") is None:
        return "pyzmq is not installed here: pip install 'vram[jupyter]'"
    return shares_our_world(process.pid)


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
    """The file's contents, believed only where it is our own, private, and leads to this machine."""
    try:
        if not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unsafe(f"its connection file cannot be opened: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise Unsafe("its connection file is not yours")
        if about.st_mode & 0o077:
            raise Unsafe("its connection file is open to others (its mode is not 0600)")
        text = stream.read(_LONGEST_FILE)
    return _checked(text)


def _checked(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        local = found["transport"] == "tcp" and _is_loopback(found["ip"])
        signed = bool(found["key"]) and found["signature_scheme"] in SCHEMES
        numbered = all(0 < int(found[f"{channel}_port"]) < 1 << 16 for channel in ("shell", "control"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unsafe("its connection file is broken") from None
    if not local:
        raise Unsafe("its connection file does not lead to this machine's loopback")
    if not signed:
        raise Unsafe("its connection file has no key to sign with")
    if not numbered:
        raise Unsafe("its connection file is broken")
    return dict(found)


def _is_loopback(ip: str) -> bool:
    try:
        import ipaddress

        return ip == "localhost" or ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def visit(process: PythonProcess, request: Request, deadline_s: float) -> Raw:
    until = time.monotonic() + deadline_s
    try:
        connection = read_connection(connection_file(process.argv) or "", process.pid)
    except Unsafe as error:
        raise NotReachable(f"pid {process.pid}: {error}") from error
    with Conversation(connection, until) as kernel:
        told = expression(request.payload, "answered", request.whole(process.pid_inside, until))
        return Raw(kernel.evaluate(_EXPRESSION.format(expression=told, mime=MIME), process.pid))


class Conversation:
    """A kernel's ways to be talked to: control, which always answers, and shell, where code runs."""

    def __init__(self, connection: dict[str, Any], until: float) -> None:
        self._until = until
        self._wires = {
            channel: Wire(connection, channel, until, f"vram-{os.getpid()}-{os.urandom(8).hex()}")
            for channel in ("control", "shell")
        }
        self._subshell: str | None = None

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._subshell is not None:
            self._wires["control"].send("delete_subshell_request", {"subshell_id": self._subshell})
        for wire in self._wires.values():
            wire.close()

    def evaluate(self, expression: str, pid: int) -> bytes:
        info = _shaped(self._wires["control"].ask("kernel_info_request", {}), _KernelInfo)
        if info.language_info.name != "python":
            raise NotReachable(f"pid {pid} is a kernel of another language than Python")
        if SUBSHELLS in info.supported_features:
            made = self._wires["control"].ask("create_subshell_request", {})
            self._subshell = _shaped(made, _Subshell).subshell_id
        asked = {
            "code": "",
            "silent": True,
            "store_history": False,
            "user_expressions": {"vram": expression},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        header = {"subshell_id": self._subshell} if self._subshell is not None else {}
        answer = self._wires["shell"].ask("execute_request", asked, **header)
        return _encoded(_shaped(answer, _Executed).user_expressions.get("vram", _Evaluated()))


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


def _shaped(told: dict[str, Any], kind: type[Shape]) -> Shape:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise NotReachable(f"the kernel gave an answer that cannot be read: {error}") from error


def _encoded(told: _Evaluated) -> bytes:
    if MIME not in told.data:
        reason = told.evalue[:_LONGEST_REASON] or "it gave no reason"
        raise NotReachable(f"the kernel did not run what it was sent: {reason}")
    return msgspec.json.encode(told.data[MIME])
