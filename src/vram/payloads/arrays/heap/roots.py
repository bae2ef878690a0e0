"""Where every search begins: the namespaces of a program, each with the text that stands before its names."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from ..record import Struct
from .introspection import Variables, attributes, inert, running_frames
from .references import PathText

if TYPE_CHECKING:
    from .walk import ByLineage

# ---- notebooks ----

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
    """Empty IPython's cache of outputs, Out and its underscores; yields what was dropped."""
    running = shell()
    if running is None:
        return
    running.displayhook.flush()
    # IPython also keeps the first value of these names, to know what a user has changed.
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
    """Which cell bound a variable: reads the history of inputs backwards, once."""

    def __init__(self, names: dict[str, object]) -> None:
        history = names.get("In")
        self._inputs = list(history) if type(history) is list else []
        self._found: dict[str, int] = {}
        self._next = len(self._inputs) - 1
        self._last = max(0, len(self._inputs) - CELLS_LOOKED_AT)

    def output(self, name: str) -> str | None:
        """The text for one of IPython's own names for an output; None for other names."""
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
    """The names that a cell binds; none where it is not Python.

    Not by ast: in Python 3.11 two threads that use it at once may both fail with SystemError (3.11.2, 3.11.7;
    a collection that calls Python code comes between), and the other thread is the notebook's.
    """
    import symtable

    try:
        # What a backslash means is the notebook's business: Python warns of those that mean nothing.
        text = re.sub(r"\\[^\r\n]", "__", source)
        # A cell may await; for symtable that is no Python since 3.14. It binds the same names without.
        text = re.sub(r"\b(?:await|async)\b[ \t]*", "", text)
        tables = [symtable.symtable(text, "<cell>", "exec")]
        text = _text_run_by_magic(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    found = {each.get_name() for each in tables[0].get_symbols() if each.is_assigned() or each.is_imported()}
    while tables:
        below = [table for above in tables for table in above.get_children()]
        inside = (each for table in below for each in table.get_symbols())
        found.update(each.get_name() for each in inside if each.is_declared_global() and each.is_assigned())
        tables = below
    return found | _names_bound(text) if text else found


def _text_run_by_magic(source: str) -> str:
    """The cell under a magic: the history has it as ``get_ipython().run_cell_magic('time', '', text)``."""
    if not source.startswith("get_ipython().run_cell_magic("):
        return ""
    code = compile(source, "<cell>", "exec")
    name, _, text = (*(each for each in code.co_consts if type(each) is str), "", "", "")[:3]
    return text if name in _RUN_HERE else ""


# ---- namespaces ----

KEPT = ("last_exc", "last_value", "last_traceback")


class Root(Struct, frozen=True):
    """A namespace. ``before`` and ``after`` are the text around each of its ``names``."""

    names: dict[str, object]
    kind: str
    before: str = ""
    after: str = ""


class Roots:
    """All namespaces, those that a user knows best first.

    Local variables of the classes *unheld* are not held here: they are added to *local*, and their paths to
    ``direct``, by ``id``. Nor are then those that lead to no other object.
    """

    def __init__(self, unheld: ByLineage | None = None, local: list[object] | None = None) -> None:
        self.variables = Variables()
        self.direct: dict[int, PathText] = {}
        self.attribute_names: dict[type, list[str]] = {}
        self._shell = shell()
        self._notebook = namespace(self._shell)
        self.cells = Cells(self._notebook) if self._notebook is not None else None
        self._threads = _thread_names()
        main = self._main()
        found = [*main, *self._frames(unheld, local), *self._exceptions(), *self._running(), *self._modules()]
        for root in main if self.direct else ():
            for key in map(id, root.names.values()):
                self.direct.pop(key, None)  # a global variable of the program comes before a local one
        self.by_id = {id(root.names): root for root in reversed(found)}
        self.namespaces: list[object] = list({id(root.names): root.names for root in found}.values())

    def location(self, code: CodeType, line: int | None) -> str:
        """Where a line of code is: ``train.py:88``, ``cell 12 line 3``."""
        number = cell_of_code(self._shell, code)
        if number is not None:
            return f"cell {number} line {line}"
        return f"{inert(os.path.basename(code.co_filename))}:{line}"

    def release(self) -> None:
        self.by_id.clear()
        self.namespaces.clear()
        self.variables.release()

    def _main(self) -> list[Root]:
        if self._notebook is not None:
            return [Root(self._notebook, "cell")]
        main = sys.modules.get("__main__")
        if type(main) is not ModuleType:
            return []
        names = vars(main)
        script = names.get("__file__")
        name = os.path.basename(script) if type(script) is str else "__main__"
        return [Root(names, "module", f"{inert(name)}: ")]

    def _frames(self, unheld: ByLineage | None, local: list[object] | None) -> list[Root]:
        found = []
        for thread, frame in running_frames():
            variables = self.variables.of(frame)
            if variables:
                where = self.location(frame.f_code, frame.f_lineno)
                name = inert(frame.f_code.co_name)
                after = f" in {name}(){self._thread_text(thread)}"
                root = Root(variables, "frame", f"{where} local ", after)
                if unheld is not None and local is not None:
                    self._take_out(root, unheld, local)
                found.append(root)
        if unheld is not None:
            self.variables.release()
        return found

    def _take_out(self, root: Root, unheld: ByLineage, local: list[object]) -> None:
        """Held here, these would be missing to the program, whose next step frees and reuses them.

        So would a NumPy array, which does not even resize itself where anything else refers to it.
        """
        for name, value in list(root.names.items()):
            if unheld[type(value)]:
                del root.names[name]
                if id(value) not in self.direct:
                    self.direct[id(value)] = PathText("frame", repr(inert(name)), root.before, root.after)
                    local.append(value)
            elif not gc.is_tracked(value) and type(value) not in (dict, tuple):
                del root.names[name]

    def _thread_text(self, thread: int) -> str:
        if thread == threading.main_thread().ident:
            return ""
        return f" of thread {self._threads.get(thread, str(thread))!r}"

    def _exceptions(self) -> list[Root]:
        kept = {f"sys.{name}": getattr(sys, name) for name in KEPT if getattr(sys, name, None) is not None}
        found = [Root(kept, "exception")]
        raised: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
        for thread, error in raised.items():
            handled = error[1] if type(error) is tuple else error
            if handled is not None:
                name = "the exception being handled" + self._thread_text(thread)
                found.append(Root({name: handled}, "exception"))
        return found

    def _running(self) -> list[Root]:
        active = _active_threads()
        return [Root({f"thread {name!r}": active[key]}, "thread") for key, name in self._threads.items()]

    def _modules(self) -> list[Root]:
        loaded = [(name, module) for name, module in list(sys.modules.items()) if type(name) is str]
        # Lazy modules import on any access: only their dict is read.
        plain = [(name, attributes(module)) for name, module in loaded]
        return [
            Root(names, "module", f"module {inert(name)}: ") for name, names in plain if names is not None
        ]


def _active_threads() -> dict[int, Any]:
    # threading.enumerate() takes a lock that the interrupted thread may hold.
    return dict(getattr(threading, "_active", {}))


def _thread_names() -> dict[int, str]:
    named = {key: (attributes(thread) or {}).get("_name") for key, thread in _active_threads().items()}
    return {key: inert(name) for key, name in named.items() if type(name) is str}
