"""Native frames of a view get the names of their functions."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.report.training_traces import training
from vram.model.trace import CallStack, Frame
from vram.trace.naming import naming, with_names

SOURCE = """\
static __attribute__((noinline)) int hidden(int x) { return x * 3; }
int shown(int x) { return hidden(x) + 1; }
"""


def test_functions_that_a_library_does_not_export_are_named(tmp_path: Path) -> None:
    library = tmp_path / "libplace.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library], input=SOURCE, text=True, check=True
    )
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    (at,) = [int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" t hidden")]
    inside = Frame("native", "", str(library), at + 1)
    mangled = Frame("native", "_ZN5place6methodEi", "/gone/libother.so", 7)
    unknown = Frame("native", "", "/gone/libother.so", 7)
    own = Frame("python", "step", "/p/train.py", 3)
    view = with_names(training(stacks=(CallStack((inside, mangled, unknown, own)),)))
    assert [frame.function for frame in view.stacks[0].frames] == ["hidden", "place::method(int)", "", "step"]


def test_a_trace_of_python_alone_stays_as_it_is() -> None:
    view = training(stacks=(CallStack((Frame("python", "step", "/p/train.py", 3),)),))
    assert naming(view) is None
    assert with_names(view) is view
