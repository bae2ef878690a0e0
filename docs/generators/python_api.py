"""docs/reference/python.md: everything that ``import vram`` offers, from signatures and docstrings.

Read from the source, so that it is the same whatever Python writes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import vram
from generators import Page

SOURCE = Path(vram.__file__).parent
HEADINGS = {
    "scopes": "Scopes, retries and threads",
    "who holds it": "Who holds it",
    "owner objects": "Memory with an owner",
    "let `vram trim` and `vram why --deep` in; plan as `vram free` does": "From inside and outside",
    "%load_ext vram": "Notebooks",
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Module(NamedTuple):
    """A module's source, with what it defines and imports."""

    tree: ast.Module

    def definition(self, name: str) -> Definition | None:
        """The last one: overloads stand before what is run."""
        found = [node for node in self.tree.body if isinstance(node, Definition) and node.name == name]
        return found[-1] if found else None

    def constant(self, name: str) -> str | None:
        """The text below the assignment to *name*, where it is one."""
        for node, below in pairwise(self.tree.body):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                text = below.value if isinstance(below, ast.Expr) else None
                return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
        return None

    def origin(self, name: str) -> tuple[str, str] | None:
        """The module and the name that *name* was imported from."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return node.module, alias.name
        return None


def pages() -> Iterator[Page]:
    yield Page("docs/reference/python.md", "\n".join(_page()) + "\n", ("src/vram/__init__.py",))


def _page() -> Iterator[str]:
    yield "# Python API\n"
    yield "What `import vram` offers. Importing does no work, loads no framework and touches no driver: each"
    yield "name is fetched when it is first used. The guides show them at work:"
    yield "[in your own program](../guides/index.md#in-your-own-program).\n"
    results: dict[str, tuple[str, ast.ClassDef]] = {}
    for heading, names in _groups():
        yield f"\n## {HEADINGS.get(heading, heading)}\n"
        for name in names:
            yield from _entry(name, results)
    if results:
        yield "\n## What they return\n"
    for name, (_, node) in sorted(results.items()):
        yield from _class(name, node, "")


def _groups() -> Iterator[tuple[str, list[str]]]:
    """The names of ``_PUBLIC``, under the comments that stand above them."""
    table = (SOURCE / "__init__.py").read_text().partition("_PUBLIC = {")[2].partition("\n}")[0]
    heading = ""
    names: list[str] = []
    for line in table.splitlines():
        if match := re.match(r"\s*# (.+)", line):
            if names:
                yield heading, names
            heading, names = match[1], []
        elif match := re.match(r'\s*"(\w+)":', line):
            names.append(match[1])
    yield heading, names


def _entry(name: str, results: dict[str, tuple[str, ast.ClassDef]]) -> Iterator[str]:
    home = vram._PUBLIC[name]
    module = _module(home)
    node = module.definition(name)
    if (constant := module.constant(name)) is not None:
        yield f"\n### vram.{name}\n"
        yield _text(constant)
    elif node is None:
        yield from _module_entry(name, module)
    elif isinstance(node, ast.ClassDef):
        yield from _class(name, node, "vram.")
    else:
        yield from _function(f"vram.{name}", node)
        _note_result(node, home, module, results)


def _module_entry(name: str, module: Module) -> Iterator[str]:
    yield f"\n### vram.{name}\n"
    yield _text(ast.get_docstring(module.tree))
    for each in _exported(module):
        node = module.definition(each)
        if node is not None and not isinstance(node, ast.ClassDef):
            yield from _function(f"vram.{name}.{each}", node, level="####")


def _function(title: str, node: ast.FunctionDef | ast.AsyncFunctionDef, level: str = "###") -> Iterator[str]:
    yield f"\n{level} {title}\n"
    yield f"```text\n{_signature(title, node)}\n```\n"
    yield _text(ast.get_docstring(node))


def _class(name: str, node: ast.ClassDef, prefix: str) -> Iterator[str]:
    yield f"\n### {prefix}{name}\n"
    members = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    made = next((each for each in members if each.name == "__init__"), None)
    if made is not None and prefix:
        yield f"```text\n{_signature(prefix + name, made, skip=1)}\n```\n"
    yield _text(ast.get_docstring(node))
    if made is not None and prefix:
        yield f"\n{_text(ast.get_docstring(made))}".rstrip()
    rows = [*_fields(node), *_methods(members)]
    if rows:
        yield "\n| member | |"
        yield "|---|---|"
        yield from rows


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
            yield f"| `{each.target.id}` | `{_cell(ast.unparse(each.annotation))}` |"


def _methods(members: list[ast.FunctionDef]) -> Iterator[str]:
    for each in members:
        if each.name.startswith("_") or any("setter" in ast.unparse(d) for d in each.decorator_list):
            continue
        told = ast.get_docstring(each)
        summary = _cell(_text(told).partition("\n\n")[0].replace("\n", " ")) if told else ""
        is_property = any(ast.unparse(d).endswith("property") for d in each.decorator_list)
        shown = each.name if is_property else f"{each.name}({_parameters(each, skip=1)})"
        yield f"| `{_cell(shown)}` | {summary} |"


def _note_result(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    home: str,
    module: Module,
    results: dict[str, tuple[str, ast.ClassDef]],
) -> None:
    """Remember the class that *node* returns, where it is one of ours."""
    returned = ast.unparse(node.returns) if node.returns else ""
    found, where = module.definition(returned), home
    origin = module.origin(returned)
    if found is None and origin is not None and origin[0].startswith("vram."):
        where = origin[0]
        found = _module(where).definition(origin[1])
    if isinstance(found, ast.ClassDef):
        results[returned] = (where, found)


def _signature(title: str, node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int = 0) -> str:
    parameters = _parameters(node, skip)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not skip else ""
    line = f"{title}({parameters}){returns}"
    if len(line) <= 100:
        return line
    inner = "".join(f"    {each},\n" for each in _split(parameters))
    return f"{title}(\n{inner}){returns}"


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int) -> str:
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]
    static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
    if skip and not static:
        del (arguments.posonlyargs or arguments.args)[0]
    return ", ".join(_spaced(each) for each in _split(ast.unparse(arguments)))


def _spaced(parameter: str) -> str:
    """A default behind an annotation, as people write it."""
    return re.sub(r"^(\w+: [^=]+)=(.+)$", r"\1 = \2", parameter)


def _split(parameters: str) -> Iterator[str]:
    """Parts at commas that are in no bracket."""
    depth, start = 0, 0
    for at, letter in enumerate(parameters):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield parameters[start:at].strip()
            start = at + 1
    yield parameters[start:].strip()


def _exported(module: Module) -> list[str]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _module(dotted: str) -> Module:
    path = SOURCE.joinpath(*dotted.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return Module(ast.parse(file.read_text()))


def _text(docstring: str | None) -> str:
    """A docstring as Markdown: its roles and double backquotes are only ever code."""
    text = cleandoc(docstring or "")
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
