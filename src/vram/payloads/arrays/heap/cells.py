"""A notebook's own names: which cell a variable or a line of code comes from."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

CELLS_LOOKED_AT = 400
_TERMINAL_CELL = re.compile(r"<ipython-input-(\d+)-")
# Cell magics whose text is Python that runs in the notebook's own namespace.
_RUN_HERE = ("capture", "prun", "time", "vram")
_OUTPUT = re.compile(r"_(\d+)$")
LAST_OUTPUTS = {
    "_": "the last output (_)",
    "__": "the last output but one (__)",
    "___": "the output before (___)",
}


def shell() -> Any:
    """IPython's shell of this process; None where there is none."""
    ipython = sys.modules.get("IPython")
    get = getattr(ipython, "get_ipython", None)
    return get() if get is not None else None


def namespace(running: Any) -> dict[str, object] | None:
    found = getattr(running, "user_ns", None)
    return found if type(found) is dict else None


def forget_outputs() -> Iterator[str]:
    """Empty IPython's cache of outputs, Out and its underscores; yield that it was done."""
    running = shell()
    if running is None:
        return
    running.displayhook.flush()
    # IPython remembers the first value of these names besides, to know what a user has changed.
    hidden = running.user_ns_hidden
    hidden.update((name, running.user_ns.get(name)) for name in LAST_OUTPUTS if name in hidden)
    yield "the notebook's outputs (Out, _)"


def cell_of_code(running: Any, code: CodeType) -> int | None:
    """The number of the cell that *code* was compiled from."""
    typed = _TERMINAL_CELL.match(code.co_filename)
    if typed:
        return int(typed[1])
    known = getattr(getattr(running, "compile", None), "_filename_map", None)
    number = known.get(code.co_filename) if type(known) is dict else None
    return number if type(number) is int else None


class Cells:
    """Where variables were bound, by reading the history of inputs backwards, once."""

    def __init__(self, names: dict[str, object]) -> None:
        history = names.get("In")
        self._inputs = list(history) if type(history) is list else []
        self._found: dict[str, int] = {}
        self._next = len(self._inputs) - 1
        self._last = max(0, len(self._inputs) - CELLS_LOOKED_AT)

    def output(self, name: str) -> str | None:
        """What one of IPython's own names for an output means."""
        if name in ("Out", "_oh"):
            return "Out"
        numbered = _OUTPUT.match(name)
        return f"Out[{numbered[1]}]" if numbered else LAST_OUTPUTS.get(name)

    def binding(self, name: str) -> int | None:
        """The number of the last cell that binds *name*."""
        while name not in self._found and self._next > self._last:
            source = self._inputs[self._next]
            for bound in _names_bound(source) if type(source) is str else ():
                self._found.setdefault(bound, self._next)
            self._next -= 1
        return self._found.get(name)


def _names_bound(source: str) -> set[str]:
    import ast

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()  # no Python; what it binds is nobody's guess
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Call):
            found |= _names_bound(_text_run_by_magic(node))
    return found


def _text_run_by_magic(call: ast.Call) -> str:
    """The cell under a magic: the history has it as ``get_ipython().run_cell_magic('time', '', text)``."""
    if getattr(call.func, "attr", None) != "run_cell_magic":
        return ""
    name, _, text = (getattr(word, "value", None) for word in (*call.args, None, None, None)[:3])
    return text if name in _RUN_HERE and type(text) is str else ""
