"""Where every search begins: the namespaces of a program, each with the words a person has for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from . import cells
from .peek import attributes, inert
from .variables import Variables, running_frames
from .words import Words

KEPT = ("last_exc", "last_value", "last_traceback")


class Root(NamedTuple):
    """``names`` holds what is kept, by name. ``before`` and ``after`` stand around such a name."""

    names: dict[str, object]
    kind: str
    before: str = ""
    after: str = ""


class Roots:
    """All namespaces, those that a user looks into first in front.

    Of *unheld* types no local variable of a running function is kept: those that *is_wanted* are in
    ``direct``, by their ``id``, with the words for them.
    """

    def __init__(
        self,
        unheld: frozenset[type] = frozenset(),
        is_wanted: Callable[[object], bool] | None = None,
    ) -> None:
        self.variables = Variables()
        self.direct: dict[int, Words] = {}
        self._unheld, self._is_wanted = unheld, is_wanted
        self.attribute_names: dict[type, list[str]] = {}
        self._shell = cells.shell()
        self._notebook = cells.namespace(self._shell)
        self.cells = cells.Cells(self._notebook) if self._notebook is not None else None
        self._threads = _thread_names()
        main = self._main()
        found = [*main, *self._frames(), *self._exceptions(), *self._running(), *self._modules()]
        for root in main if self.direct else ():
            for key in map(id, root.names.values()):
                self.direct.pop(key, None)  # a variable of the program itself comes before a function's
        self.by_id = {id(root.names): root for root in reversed(found)}
        self.namespaces: list[object] = list({id(root.names): root.names for root in found}.values())

    def place(self, code: CodeType, line: int | None) -> str:
        """Where a line of code is, as one says it: ``train.py:88``, ``cell 12 line 3``."""
        number = cells.cell_of_code(self._shell, code)
        if number is not None:
            return f"cell {number} line {line}"
        return f"{inert(os.path.basename(code.co_filename))}:{line}"

    def let_go(self) -> None:
        self.by_id.clear()
        self.namespaces.clear()
        self.variables.let_go()

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

    def _frames(self) -> list[Root]:
        found = []
        for thread, frame in running_frames():
            variables = self.variables.of(frame)
            if variables:
                where = self.place(frame.f_code, frame.f_lineno)
                name = inert(frame.f_code.co_name)
                after = f" in {name}(){self._thread_words(thread)}"
                root = Root(variables, "frame", f"{where} local ", after)
                if self._is_wanted is not None:
                    self._take_out(root, self._is_wanted)
                found.append(root)
        if self._is_wanted is not None:
            self.variables.let_go()
        return found

    def _take_out(self, root: Root, is_wanted: Callable[[object], bool]) -> None:
        """A step of a training would wait for the memory of its last one while these were held."""
        for name in [name for name, value in root.names.items() if type(value) in self._unheld]:
            value = root.names.pop(name)
            if id(value) not in self.direct and is_wanted(value):
                self.direct[id(value)] = Words("frame", repr(inert(name)), root.before, root.after)

    def _thread_words(self, thread: int) -> str:
        if thread == threading.main_thread().ident:
            return ""
        return f" of thread {self._threads.get(thread, str(thread))!r}"

    def _exceptions(self) -> list[Root]:
        kept = {f"sys.{name}": getattr(sys, name) for name in KEPT if getattr(sys, name, None) is not None}
        found = [Root(kept, "exception")]
        raised: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
        for thread, error in raised.items():
            told = error[1] if type(error) is tuple else error
            if told is not None:
                words = "the exception being handled" + self._thread_words(thread)
                found.append(Root({words: told}, "exception"))
        return found

    def _running(self) -> list[Root]:
        active = _active_threads()
        return [Root({f"thread {name!r}": active[key]}, "thread") for key, name in self._threads.items()]

    def _modules(self) -> list[Root]:
        loaded = [(name, module) for name, module in list(sys.modules.items()) if type(name) is str]
        # Lazy modules import on any access: only their dict is looked at.
        plain = [(name, attributes(module)) for name, module in loaded]
        return [
            Root(names, "module", f"module {inert(name)}: ") for name, names in plain if names is not None
        ]


def _active_threads() -> dict[int, Any]:
    # threading.enumerate() takes a lock that the thread we interrupted may hold.
    return dict(getattr(threading, "_active", {}))


def _thread_names() -> dict[int, str]:
    named = {key: (attributes(thread) or {}).get("_name") for key, thread in _active_threads().items()}
    return {key: inert(name) for key, name in named.items() if type(name) is str}
