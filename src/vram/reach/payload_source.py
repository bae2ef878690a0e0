"""A payload as text that carries itself: it runs where no vram is, and leaves no module behind."""

from __future__ import annotations

import os
from typing import Any, Literal

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "payloads")
_DELIVERY = os.path.join(_FOLDER, "delivery.py")

# Modules are known to the interpreter only while they import each other, under a name that
# nobody else has. Emptied afterwards, they do not wait for a collection that may never come.
_CARRIER = """\
def carry(package, sources, delivery, call, request):
    import sys, types
    modules = {}
    for name, _ in sources:
        full = package + name
        modules[name] = sys.modules[full] = types.ModuleType(full)
        parts = any(other.startswith(name + ".") for other, _ in sources)
        modules[name].__package__ = full if parts else full.rpartition(".")[0]
        if parts:
            modules[name].__path__ = []
    carrier = {"__name__": package + ".delivery"}
    try:
        try:
            for name, text in sources:
                exec(compile(text, "<vram payload" + name + ">", "exec"), modules[name].__dict__)
        finally:
            for name in modules:
                sys.modules.pop(package + name, None)
        exec(compile(delivery, "<vram delivery>", "exec"), carrier)
        return carrier[call](modules[""].answer, request)
    finally:
        carrier.clear()
        for module in modules.values():
            module.__dict__.clear()
"""


def expression(payload: str, call: Literal["answered", "deliver"], request: dict[str, Any]) -> str:
    """A Python expression that unpacks *payload* and has :mod:`vram.payloads.delivery` call it."""
    package = f"_vram_{payload}_{os.urandom(8).hex()}"
    arguments = f"{package!r}, {sources(payload)!r}, {_read(_DELIVERY)!r}, {call!r}, {request!r}"
    return f"(lambda n: (exec({_CARRIER!r}, n), n['carry']({arguments}), n.clear())[1])({{}})"


def sources(payload: str) -> list[tuple[str, str]]:
    """The payload's modules, each after those that it imports: leaves first, packages last."""
    root = os.path.join(_FOLDER, payload)
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        package = folder[len(root) :].replace(os.sep, ".")
        for file in sorted(files):
            if file.endswith(".py"):
                name = package if file == "__init__.py" else f"{package}.{file.removesuffix('.py')}"
                found.append((file == "__init__.py", name, os.path.join(folder, file)))
    leaves = [(name, path) for is_package, name, path in found if not is_package]
    packages = [(name, path) for is_package, name, path in reversed(found) if is_package]
    return [(name, _read(path)) for name, path in (*leaves, *packages)]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
