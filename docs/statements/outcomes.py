"""Which verdicts the code of an experiment can reach: read from its source, without running it.

An experiment whose answer is fixed before it measures anything decides nothing. So what it concludes from
must be a comparison, or a judgement of sizes, in which something that a worker or the device answered has a
part.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from msgspec import Struct

Outcomes = frozenset[bool | None]
EITHER: Outcomes = frozenset({True, False})
NONE: Outcomes = frozenset()

ASKS = {"call", "used", "read_device", "must_show", "grown", "kill", "state_of", "allocator", "holder"}
"""What an experiment asks of its workers and of the device."""

DECIDES_BY_SIZE = {"judge", "mostly"}


def outcomes(measure: Callable[..., Any]) -> Outcomes:
    """The verdicts that *measure* can conclude with, those of functions of its module that it calls included.

    A constant is one verdict; what depends on a measurement is both; None, "cannot tell", is left out.
    """
    return _Reading(measure).concluded() - {None}


class _Value(Struct, frozen=True):
    """What is known of an expression: whether something measured has a part in it, and its verdicts."""

    measured: bool = False
    verdicts: Outcomes = NONE

    def __or__(self, other: _Value) -> _Value:
        return _Value(self.measured or other.measured, self.verdicts | other.verdicts)


class _Reading:
    """One function, read: the value of each of its names, and of what it returns."""

    def __init__(self, function: Any, arguments: dict[str, _Value] | None = None) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self._globals = function.__globals__
        self._tree = tree
        self._names = dict(arguments or {})
        for _ in range(2):  # a loop may use what its end assigns
            self._assign()

    def concluded(self) -> Outcomes:
        return self.returned().verdicts

    def returned(self) -> _Value:
        value = _Value()
        chosen = self._chooses_by_measurement()
        for node in _own(self._tree):
            if isinstance(node, ast.Return) and node.value is not None:
                one = self._value(node.value)
                value |= one if one.measured or chosen else _Value()
        return value

    def _chooses_by_measurement(self) -> bool:
        """Whether what is returned follows from a test of something measured, or from a call that failed."""
        return any(
            isinstance(node, ast.ExceptHandler) or (isinstance(node, ast.If) and self._measured(node.test))
            for node in _own(self._tree)
            if any(isinstance(each, ast.Return) for each in ast.walk(node))
        )

    def _assign(self) -> None:
        for node in _own(self._tree):
            match node:
                case ast.Assign(targets=targets, value=value):
                    self._bind(targets, self._value(value))
                case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                    self._bind([target], self._value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind([target], self._value(value))
                case ast.ExceptHandler(name=str() as name):
                    self._names[name] = _Value(measured=True)

    def _bind(self, targets: list[ast.expr], value: _Value) -> None:
        for name in (each for target in targets for each in ast.walk(target)):
            if isinstance(name, ast.Name):
                self._names[name.id] = self._names.get(name.id, _Value()) | value

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=True | False | None as verdict):
                return _Value(verdicts=frozenset({verdict}))
            case ast.Name(id=name):
                return self._names.get(name, _Value())
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._measured(test)
                parts = [self._value(body), self._value(orelse)]
                verdicts = NONE.union(*(each.verdicts for each in parts if chosen or each.measured))
                return _Value(chosen or any(each.measured for each in parts), verdicts)
            case ast.Subscript(value=value):
                return self._value(value)
            case ast.Tuple(elts=elements):
                return functools.reduce(operator.or_, map(self._value, elements), _Value())
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                measured = self._parts(node).measured
                return _Value(measured, EITHER if measured else NONE)
            case ast.Attribute(value=value, attr="holds"):
                return self._value(value)
            case ast.Call():
                return self._of_call(node)
            case _:
                return _Value(self._parts(node).measured)

    def _of_call(self, node: ast.Call) -> _Value:
        arguments = [*node.args, *(each.value for each in node.keywords)]
        match node.func:
            case ast.Attribute(value=value, attr=name):
                given = self._value(value)
                measured = name in ASKS or given.measured or any(map(self._measured, arguments))
                # `answer.and_later(...)` concludes as the answer does.
                return _Value(measured, given.verdicts if name == "and_later" else NONE)
            case ast.Name(id="Conclusion"):
                holds = self._value(arguments[0])
                # A name or a call that is passed on: a flag that a worker answered.
                either = holds.measured and not holds.verdicts
                return _Value(holds.measured, EITHER if either else holds.verdicts)
            case ast.Name(id=name) if name in DECIDES_BY_SIZE or name == "bool":
                measured = self._measured(arguments[0])
                return _Value(measured, EITHER if measured else NONE)
            case ast.Name(id=name):
                return self._of_function(name, node, arguments)
        return _Value(any(map(self._measured, arguments)))

    def _of_function(self, name: str, node: ast.Call, arguments: list[ast.expr]) -> _Value:
        """What a call of a function of the lab gives: its own code is read with what it is given here."""
        local = next((each for each in _nested(self._tree) if each.name == name), None)
        if local is not None:
            return _Value(any(self._parts(each).measured for each in local.body))
        function = self._globals.get(name)
        known = isinstance(function, FunctionType) and (
            function.__module__ == self._globals["__name__"] or function.__module__.startswith("vram.lab.")
        )
        if not known:
            return _Value(any(map(self._measured, arguments)))
        given = dict(zip(inspect.signature(function).parameters, map(self._value, node.args), strict=False))
        given |= {each.arg: self._value(each.value) for each in node.keywords if each.arg}
        return _Reading(function, given).returned()

    def _measured(self, node: ast.expr) -> bool:
        return self._value(node).measured

    def _parts(self, node: ast.AST) -> _Value:
        """All that is directly below *node*, together."""
        value = _Value()
        for child in ast.iter_child_nodes(node):
            value |= self._value(child) if isinstance(child, ast.expr) else self._parts(child)
        return value


def _own(tree: ast.FunctionDef) -> list[ast.AST]:
    """The nodes of a function in the order of its text, without those of functions inside it."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.Lambda):
                continue
            found.append(child)
            visit(child)

    visit(tree)
    return found


def _nested(tree: ast.FunctionDef) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]
