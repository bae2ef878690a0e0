"""``import vram``: cheap, quiet, and everything that it promises is there."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vram
from tests.docs.pages import DOCS, WRITTEN
from tests.patience import PATIENCE_S

FRAMEWORKS = ("torch", "cupy", "jax", "numba", "numpy", "cuda", "pycuda", "rich", "msgspec", "ctypes")


def test_importing_it_loads_nothing() -> None:
    program = "import sys; before = set(sys.modules); import vram; print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    loaded = set(done.stdout.split())
    assert "vram" in loaded
    assert not loaded.intersection(FRAMEWORKS)
    assert not [name for name in loaded if name.startswith("vram.")]


@pytest.mark.parametrize("name", sorted(vram._PUBLIC))
def test_every_name_of_the_table_is_there(name: str) -> None:
    assert getattr(vram, name) is not None
    assert name in dir(vram)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(vram.__file__)).read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(vram._PUBLIC)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flsh'"):
        vram.flsh  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["GiB", "MiB"])
def test_a_number_says_in_the_reference_what_it_is_for(name: str) -> None:
    reference = WRITTEN[DOCS / "reference" / "python.md"]
    assert f"### vram.{name}\n\nThe bytes of 1 {name}, for sizes" in reference


@pytest.mark.parametrize("name", sorted({*vram._PUBLIC} - {"GiB", "MiB"}))
def test_every_name_says_what_it_is_for(name: str) -> None:
    said = inspect.cleandoc(getattr(vram, name).__doc__ or "")
    inherited = [inspect.cleandoc(base.__doc__ or "") for base in _bases(getattr(vram, name))]
    assert len(said.split()) >= 4
    assert said not in inherited


def _bases(value: object) -> tuple[type, ...]:
    """A class without words of its own must not pass with those of the class above it."""
    return value.__mro__[1:] if isinstance(value, type) else (type(value),)


@pytest.mark.parametrize("name", sorted(vram._PUBLIC))
def test_every_name_stands_in_the_reference_and_in_a_guide(name: str) -> None:
    reference = WRITTEN[DOCS / "reference" / "python.md"]
    assert re.search(rf"^### vram\.{name}$", reference, re.MULTILINE)
    guides = [path.read_text() for path in (DOCS / "guides").glob("*.md")]
    assert any(re.search(rf"\b(?:vram\.)?{name}\b", code) for text in guides for code in _code(text))


def _code(markdown: str) -> list[str]:
    """What stands in backquotes or in a block of code: a word in prose explains no name."""
    return re.findall(r"```.*?```|`[^`\n]+`", markdown, re.DOTALL)


@pytest.mark.parametrize(("value", "threads"), [("1", 2), ("0", 1), ("", 1)])
def test_the_environment_can_start_the_agent(tmp_path: Path, value: str, threads: int) -> None:
    import os

    program = "import threading, vram; print(threading.active_count())"
    environment = os.environ | {"VRAM_AGENT": value, "XDG_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == str(threads), done.stderr
