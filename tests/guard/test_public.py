"""``import vram``: cheap, quiet, and everything that it promises is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vram

FRAMEWORKS = ("torch", "cupy", "jax", "numba", "numpy", "cuda", "pycuda", "rich", "msgspec", "ctypes")


def test_importing_it_loads_nothing() -> None:
    program = "import sys; before = set(sys.modules); import vram; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60)
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


@pytest.mark.parametrize(("value", "threads"), [("1", 2), ("0", 1), ("", 1)])
def test_the_environment_can_start_the_agent(tmp_path: Path, value: str, threads: int) -> None:
    import os

    program = "import threading, vram; print(threading.active_count())"
    environment = os.environ | {"VRAM_AGENT": value, "XDG_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(threads), done.stderr
