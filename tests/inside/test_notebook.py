"""The inside of a notebook: arrays by the cells that made them, while a cell runs too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.reach.conftest import World, world
from tests.reach.test_jupyter import Notebook, notebook, plain_notebook
from vram.units import MIB

__all__ = ["notebook", "plain_notebook", "world"]

pytestmark = needs("numba.cuda")

IMPORTS = "import numpy as np\nfrom numba import cuda"
ARRAYS = "xs = [cuda.device_array(8 << 20, dtype=np.uint8) for _ in range(12)]"


def told(world: World, pid: int) -> dict[str, Any]:
    done = world.vram("inside", pid, "--json", "--via", "jupyter")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["inside"]
    return found


@pytest.mark.parametrize("kernel", ["notebook", "plain_notebook"])
def test_cells_are_named_and_nothing_shows(world: World, request: pytest.FixtureRequest, kernel: str) -> None:
    made: Notebook = request.getfixturevalue(kernel)
    made.run(IMPORTS)
    count = made.run(ARRAYS)["execution_count"]
    found = told(world, made.pid)
    (group,) = found["answer"]["groups"]
    assert (group["count"], group["nbytes"], group["held_by"], group["kind"]) == (
        12,
        96 * MIB,
        f"cell {count}: xs[0…11]",
        "cell",
    )
    assert made.run("pass")["execution_count"] == count + 1


def test_a_cell_that_runs_is_no_obstacle(world: World, notebook: Notebook) -> None:
    notebook.run(IMPORTS)
    notebook.client.execute(
        "import threading\ndef work():\n    batch = cuda.device_array(4 << 20, dtype=np.uint8)\n"
        "    print('ready', flush=True)\n    threading.Event().wait()\nwork()"
    )
    said = ""
    while "ready" not in said:
        said += notebook.client.get_iopub_msg(timeout=PATIENCE_S)["content"].get("text", "")
    (group,) = told(world, notebook.pid)["answer"]["groups"]
    assert "local 'batch' in work()" in group["held_by"]


def test_a_notebook_may_ask_about_itself(notebook: Notebook) -> None:
    """Whoever runs vram is never acted on; what a kernel offers itself may be used."""
    notebook.run(IMPORTS)
    notebook.run(ARRAYS)
    asked = notebook.client.execute(
        "import subprocess, sys, os, json\n"
        "words = [sys.executable, '-m', 'vram', 'inside', str(os.getpid()), '--json']\n"
        "done = subprocess.run(words, capture_output=True, text=True)",
        user_expressions={"said": "done.stdout if done.returncode == 0 else done.stderr"},
    )
    said = notebook.heard(asked)["user_expressions"]["said"]["data"]["text/plain"]
    assert "xs[0…11]" in said
