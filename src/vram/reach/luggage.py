"""The payload as text that carries itself: it runs where no vram is, and leaves no module behind."""

from __future__ import annotations

import os
from typing import Any

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "payloads", "trim")

# Modules are known to the interpreter only while they import each other, under a name that
# nobody else has.
_UNPACK = """\
def unpack(package, sources):
    import sys, types
    modules = {}
    for name, _ in sources:
        full = package + name
        modules[name] = sys.modules[full] = types.ModuleType(full)
        parts = any(other.startswith(name + ".") for other, _ in sources)
        modules[name].__package__ = full if parts else full.rpartition(".")[0]
        if parts:
            modules[name].__path__ = []
    try:
        for name, text in sources:
            exec(compile(text, "<vram trim" + name + ">", "exec"), modules[name].__dict__)
    finally:
        for name in modules:
            sys.modules.pop(package + name, None)
    return modules[""]
"""


def expression(call: str, request: dict[str, Any]) -> str:
    """A Python expression that unpacks the payload and does ``call(request)`` of it."""
    package = f"_vram_trim_{os.urandom(8).hex()}"
    return (
        f"(lambda n: (exec({_UNPACK!r}, n), n['unpack']({package!r}, {sources()!r}))[1])({{}})"
        f".{call}({request!r})"
    )


def sources() -> list[tuple[str, str]]:
    """The payload's modules, each after those that it imports: leaves first, packages last."""
    found = []
    for folder, folders, files in os.walk(_FOLDER):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        package = folder[len(_FOLDER) :].replace(os.sep, ".")
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
