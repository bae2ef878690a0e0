"""The notebook extension, in a real IPython kernel on a virtual GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.guard.scoping import ROOT, environment, result
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.notebook import AWAITS
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = [needs("ipykernel"), needs("jupyter_client")]

BEGIN = """\
from tests.virtualgpu import libcuda as raw
from vram.units import MIB
raw.start()
%load_ext vram
"""

NUMBA = "import numpy\nfrom numba import cuda\ndef array(n): return cuda.device_array(n, numpy.uint8)\n"

Cell = Callable[[str], "Ran"]


class Ran:
    """What one cell showed: streams and displays as text and as HTML, tracebacks, and how it ended."""

    def __init__(self, client: Any, code: str) -> None:
        self.text, self.html = "", ""
        self.tracebacks: list[str] = []
        self.reply = client.execute_interactive(code, timeout=PATIENCE_S, output_hook=self._hear)["content"]

    def _hear(self, message: dict[str, Any]) -> None:
        content = message["content"]
        self.text += content.get("text", "")
        data = content.get("data", {})
        self.text += data.get("text/plain", "")
        self.html += data.get("text/html", "")
        if message["msg_type"] == "error":
            self.tracebacks.append("\n".join(content["traceback"]))


@pytest.fixture
def cell(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Cell]:
    """Run cells in one kernel, after the extension was loaded."""
    from jupyter_client.manager import KernelManager

    # Sockets in a folder: a port that is free when it is chosen may be another's when the kernel binds it.
    sockets = TemporaryDirectory()  # its path is short, as a socket's must be
    manager = KernelManager(
        connection_file=str(tmp_path / "connection.json"), transport="ipc", ip=f"{sockets.name}/kernel"
    )
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(env=environment(virtual_gpu), cwd=ROOT)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        begun = Ran(client, BEGIN)
        assert begun.reply["status"] == "ok", begun.reply
        yield lambda code: Ran(client, code)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        sockets.cleanup()


def test_a_cell_says_what_it_kept(cell: Cell) -> None:
    ran = cell("%%vram\nraw.alloc(64 * MIB)\nanswer = 42")
    assert "the cell kept 64.0 MiB of device memory" in ran.text
    assert "<table>" in ran.html
    assert cell("print(answer)").text == "42\n"


def test_a_cell_that_kept_nothing_says_so(cell: Cell) -> None:
    ran = cell('%%vram tidy\nraw.call("cuMemFree_v2", raw.alloc(64 * MIB))')
    assert "the cell kept nothing" in ran.text


def test_a_cell_that_fails_still_fails_and_is_told(cell: Cell) -> None:
    ran = cell("%%vram\nraw.alloc(8 * MIB)\n1 / 0")
    assert ran.reply["status"] == "error"
    assert ran.reply["ename"] == "ZeroDivisionError"
    assert "the cell kept 8.0 MiB" in ran.text
    (traceback,) = ran.tracebacks
    assert "notebook.py" not in traceback


def test_tracebacks_name_such_a_cell_by_its_own_number(cell: Cell) -> None:
    """Also later, where a function that it defined fails."""
    ran = cell("%%vram\ndef fails(): return 1 / 0\nfails()")
    number = ran.reply["execution_count"]
    assert ran.tracebacks[0].count(f"In[{number}]") == 2
    later = cell("fails()")
    assert later.reply["execution_count"] == number + 1
    assert [later.tracebacks[0].count(f"In[{each}]") for each in (number, number + 1)] == [1, 1]


def test_what_such_a_cell_shows_is_kept_under_its_own_number(cell: Cell) -> None:
    ran = cell("%%vram\n'shown'")
    assert "shown" in ran.text
    assert cell(f"Out[{ran.reply['execution_count']}]").text == "'shown'"


def test_a_cell_that_is_no_python_is_shown_once_and_without_our_steps(cell: Cell) -> None:
    ran = cell("%%vram\nbroken = (")
    assert ran.reply["ename"] in ("SyntaxError", "_IncompleteInputError")  # since Python 3.14
    (traceback,) = ran.tracebacks
    assert "notebook.py" not in traceback
    assert "interactiveshell.py" not in traceback


def test_a_cell_with_await_is_refused_before_anything_runs(cell: Cell) -> None:
    ran = cell("%%vram\nimport asyncio\nprint('begun')\nawait asyncio.sleep(0)")
    assert ran.reply["ename"] == "UsageError"
    assert ran.text == f"UsageError: {AWAITS}\n"
    assert ran.tracebacks == []


def test_a_name_that_such_a_cell_binds_is_told_by_its_number(cell: Cell) -> None:
    cell("import vram")
    ran = cell("%%vram\nhoard = [vram.Buffer(16 * MIB)]")
    number = ran.reply["execution_count"]
    assert f"cell {number}: hoard[0]" in ran.text
    assert f"cell {number}: hoard[0]" in cell("%vram").text


@needs("numba")
def test_the_line_shows_arrays_by_the_cell_that_keeps_them(cell: Cell) -> None:
    cell(NUMBA)
    cell("history = [array(64 * MIB)]")
    ran = cell("%vram")
    assert "64.0 MiB" in ran.text
    assert "history[0]" in ran.text
    assert "outside" in ran.text
    assert "  0 B  " not in ran.text
    assert "<table>" in ran.html


def test_each_byte_is_in_one_line(virtual_gpu: VirtualGpu) -> None:
    """Arrays that no framework counts are not part of what is outside; a pool's are the pool's."""
    program = """
        from vram.notebook import here
        kept = [vram.Buffer("64MiB"), vram.Buffer("32MiB", stream=0), vram.Buffer.managed("16MiB")]
        table = here()
        tell([table.title, table.rows, [row[0] for row in table.below.rows], vram.flush().outside])
    """
    title, rows, arrays, outside = result(virtual_gpu, program)
    assert title == "this process holds 614.0 MiB of GPU memory"
    assert sorted((row[0], row[2]) for row in rows if row[1] == "in use") == [
        ("32.0 MiB", "driver pools"),
        ("64.0 MiB", "vram.Buffer"),
    ]
    assert [row[0] for row in rows if row[1] != "in use"] == ["518.0 MiB"]
    assert arrays == ["64.0 MiB", "32.0 MiB", "16.0 MiB"]
    assert outside == 518 * MIB


@needs("numba")
def test_names_in_html_are_inert(cell: Cell) -> None:
    cell(NUMBA)
    cell("hoard = {'<script>alert(1)</script>': array(64 * MIB)}")
    ran = cell("%vram")
    assert "<script>" not in ran.html
    assert "&lt;script&gt;" in ran.html


@needs("numba")
def test_flush_drops_a_kept_traceback(cell: Cell) -> None:
    cell(NUMBA)
    cell("def fails():\n    big = array(64 * MIB)\n    raise ValueError\nfails()")
    assert "64.0 MiB" in cell("%vram").text
    ran = cell("%vram flush")
    assert ran.reply["status"] == "ok"
    assert "64.0 MiB" not in cell("%vram").text


def test_why_shows_the_machine(cell: Cell) -> None:
    assert "GPU 0 H200 (virtual)" in cell("%vram why").text


def test_an_unknown_word_is_refused(cell: Cell) -> None:
    ran = cell("%vram flsh")
    assert ran.reply["ename"] == "UsageError"
    assert ran.text == "UsageError: %vram: unknown option 'flsh'; it takes nothing, or one of flush, why\n"
    assert ran.tracebacks == []


def test_it_can_be_unloaded(cell: Cell) -> None:
    cell("%unload_ext vram")
    assert "not found" in cell("%vram").text


def test_a_shell_without_a_running_loop_awaits_in_a_cell(virtual_gpu: VirtualGpu) -> None:
    """In a terminal nothing stands in the way."""
    program = """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_cell("%load_ext vram")
        shell.run_cell("%%vram\\nimport asyncio\\nawaited = await asyncio.sleep(0, 'yes')")
        tell(shell.user_ns["awaited"])
    """
    assert result(virtual_gpu, program) == "yes"


def test_an_error_that_no_cell_can_carry_is_raised(virtual_gpu: VirtualGpu) -> None:
    """Where a program calls the magic itself, there is no cell around it that could fail."""
    program = """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_cell("%load_ext vram")
        try:
            shell.run_cell_magic("vram", "", "1 / 0")
        except ZeroDivisionError:
            tell("raised")
    """
    assert result(virtual_gpu, program) == "raised"


# ---- a recorded cell ----

TIMELINE = """%%vram timeline
import vram
def load():
    return raw.alloc(48 * MIB)
first = load()
vram.mark("loaded")
raw.call("cuMemFree_v2", first)
answer = 42
"""


def test_a_recorded_cell_draws_its_timeline(cell: Cell) -> None:
    ran = cell(TIMELINE)
    assert ran.reply["status"] == "ok", ran.tracebacks
    assert "<svg" in ran.html
    assert "48.0 MiB" in ran.html
    assert "load" in ran.html
    assert "48.0 MiB" in ran.text
    assert "loaded" in ran.text
    assert cell("print(answer)").text == "42\n"
    assert "48.0 MiB" in cell(TIMELINE).text, "it can be recorded again"


def test_an_error_in_a_recorded_cell_ends_it_as_usual(cell: Cell) -> None:
    ran = cell("%%vram timeline\nraw.alloc(MIB)\n1 / 0")
    assert ran.reply["ename"] == "ZeroDivisionError"
    assert len(ran.tracebacks) == 1
    assert "<svg" in ran.html


def test_a_cell_that_cannot_be_recorded_says_why(cell: Cell) -> None:
    cell("from vram.trace.here import RecordingHere\nother = RecordingHere()\nother.start()")
    ran = cell("%%vram timeline\nran_anyway = True")
    assert "%%vram timeline: this process cannot be recorded: recording already" in ran.text + "".join(
        ran.tracebacks
    )
    assert cell("print('ran_anyway' in globals())").text == "False\n"
    cell("other.stop()")
