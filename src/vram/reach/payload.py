"""A payload: what it is asked, its source as text that carries itself, and what it answers.

The text runs where no vram is, and leaves no module behind.
"""

from __future__ import annotations

import _thread
import ast
import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, TypeVar

from msgspec import Struct

from vram import untrusted
from vram.errors import NotReachable
from vram.model.inside import Seconds, Via

MAX_ANSWER_LENGTH = 16 << 20
MAX_ITEMS = 200_000  # of an answer: objects, lists and members together
# Of the reasons that a process gives.
_MAX_REASONS, _MAX_REASON_LENGTH = 5, 300

Shape = TypeVar("Shape")


class PayloadRequest(Struct, frozen=True):
    """Which payload answers (a module of ``vram/payloads``), and what it is asked: plain JSON data.

    ``files`` are those of the fields that are paths of files of ours. Their contents travel with the request
    to a process that sees other files.
    """

    payload: str
    fields: dict[str, Any]
    files: tuple[str, ...] = ()

    def read_files(self) -> tuple[tuple[str, bytes], ...]:
        """What they contain, by the name of the field."""
        found = []
        for name in self.files:
            if self.fields.get(name):
                with open(self.fields[name], "rb") as file:
                    found.append((name, file.read()))
        return tuple(found)

    def with_limits(self, pid: int, until: float, **more: Any) -> dict[str, Any]:
        """The fields with what the payload checks before it does anything."""
        return {**self.fields, **more, "pid": pid, "until": until}


class RawAnswer(Struct, frozen=True):
    """An answer as it came, one JSON object; for how long the process was stopped, where it was."""

    body: bytes
    stopped_s: float | None = None


class PayloadAnswer(Struct, frozen=True):
    """An answer whose payload says that it ran, by which injector, and what that cost the process.

    ``waited_s`` is the longest time for which another of its threads waited.
    """

    via: Via
    body: bytes
    stopped_s: float | None = None
    waited_s: float | None = None


class _Status(Struct):
    status: str
    notes: tuple[str, ...] = ()
    waited_s: Seconds | None = None


def require_done(pid: int, body: bytes) -> float | None:
    """Return for how long other threads waited; raise why the payload did not do what it was asked for."""
    answer = decoded(pid, body, _Status)
    notes = (note[:_MAX_REASON_LENGTH] for note in answer.notes[:_MAX_REASONS])
    reasons = "; ".join(notes) or "no reason given"
    if answer.status == "cancelled":
        raise NotReachable(f"pid {pid} declined: {reasons}")
    if answer.status != "done":
        raise NotReachable(f"pid {pid} could not answer: {reasons}")
    return answer.waited_s


def decoded(pid: int, body: bytes, kind: type[Shape]) -> Shape:
    """What *pid* answered, as *kind*; raises where it is anything else."""
    try:
        return untrusted.decode(body, kind, most_items=MAX_ITEMS)
    except untrusted.Rejected as error:
        raise NotReachable(
            f"pid {pid} sent an unreadable answer: {str(error)[:_MAX_REASON_LENGTH]}",
            hint="something in that process changes its output, or it exited in the middle",
        ) from error


# ---- its source ----

# Annotations are not evaluated in the program, and what only they need is not imported there. It may not
# have loaded these yet, and in Python 3.13.0 two threads that load collections.abc for the first time at once
# may both fail: we, or the program.
_FOR_ANNOTATIONS = ("typing", "collections.abc")
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "payloads")

# Modules are known to the interpreter only while they import each other, under a name that no other module
# has. Emptied afterwards, they do not wait for a collection that may never come.
_CARRIER = """\
def carry(package, sources, entry, call, request):
    import sys, time, types
    since = time.monotonic()
    modules = {}
    for name, _ in sources:
        full = package + name
        modules[name] = sys.modules[full] = types.ModuleType(full)
        parts = any(other.startswith(name + ".") for other, _ in sources)
        modules[name].__package__ = full if parts else full.rpartition(".")[0]
        if parts:
            modules[name].__path__ = []
    pace = None
    try:
        try:
            for name, text in sources:
                exec(compile(text, "<vram payload" + name + ">", "exec"), modules[name].__dict__)
                above, dot, last = name.rpartition(".")
                if dot:
                    setattr(modules[above], last, modules[name])
                if name == ".pace":
                    pace = modules[name].Pace().begin(since)
                elif pace is not None:
                    pace()
        finally:
            for name in modules:
                sys.modules.pop(package + name, None)
        return getattr(modules[".delivery"], call)(modules[entry].answer, request, pace)
    finally:
        if pace is not None:
            pace.end()
        for module in modules.values():
            module.__dict__.clear()
"""


def expression(
    payload: str, call: Literal["answered", "deliver"], request: dict[str, Any], extra: str | None = None
) -> str:
    """A Python expression that unpacks *payload* and has :mod:`vram.payloads.delivery` call it.

    *extra* is a variable where it is evaluated, which is added to the request under its name.
    """
    package = f"_vram_{payload.replace('.', '_')}_{os.urandom(8).hex()}"
    asked = f"{{**{request!r}, {extra!r}: {extra}}}" if extra else repr(request)
    arguments = f"{package!r}, {list(sources(payload))!r}, {'.' + payload!r}, {call!r}, {asked}"
    names = {"__name__": package}
    return f"(lambda n: (exec({_CARRIER!r}, n), n['carry']({arguments}), n.clear())[1])({names!r})"


def sources(payload: str) -> tuple[tuple[str, str], ...]:
    """The modules that *payload* needs, each after those that it imports; what measures comes first.

    They lie as in ``vram/payloads``, below a package without text, and may import from each other's
    packages, relatively. By one thread at a time: `vram free --caches` has 32, and ast is not safe in Python
    3.11, where two threads that use it at once may both fail with SystemError.
    """
    with _one_at_a_time:
        return _sources(payload)


_one_at_a_time = _thread.allocate_lock()


@cache
def _sources(payload: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {"": ""}
    begun = {""}
    for name in (".pace", ".delivery", f".{payload}"):
        _collect(name, found, begun)
    return tuple(found.items())


def _collect(name: str, found: dict[str, str], begun: set[str]) -> None:
    if name in begun:
        return
    begun.add(name)
    path = os.path.join(_FOLDER, *name[1:].split("."))
    is_package = os.path.isfile(os.path.join(path, "__init__.py"))
    with open(os.path.join(path, "__init__.py") if is_package else f"{path}.py", encoding="utf-8") as file:
        text = _strip_types(file.read())
    above = name.rpartition(".")[0]
    _collect(above, found, begun)
    for needed in _find_imports(text, name if is_package else above):
        _collect(needed, found, begun)
    found[name] = text


def _find_imports(text: str, package: str) -> Iterator[str]:
    """The payload modules that *text*, a module in *package*, imports as it is loaded."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package
            for _ in range(node.level - 1):
                above = above.rpartition(".")[0]
            names = [node.module] if node.module else [each.name for each in node.names]
            yield from (f"{above}.{each}" for each in names)


def _strip_types(text: str) -> str:
    """The module *text* without what only annotations need; every line keeps its number."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module in _FOR_ANNOTATIONS:
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = ["TYPE_CHECKING = False", *[""] * (end - node.lineno)]
    return "\n".join(lines) + "\n"
