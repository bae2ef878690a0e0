"""Native frames of a view get the names of their functions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.trace_report.training_traces import training
from vram.model.trace import CallStack, Frame
from vram.trace.symbols import naming, with_names

SOURCE = """\
static __attribute__((noinline)) int hidden(int x) { return x * 3; }
int shown(int x) { return hidden(x) + 1; }
"""


BUILD = "00112233445566778899aabbccddeeff"


@pytest.fixture
def inside(tmp_path: Path) -> Frame:
    """A place in a function that its library does not export."""
    library = tmp_path / "libplace.so"
    line = ["cc", "-shared", "-fPIC", "-O1", f"-Wl,--build-id=0x{BUILD}", "-x", "c", "-", "-o", library]
    subprocess.run(line, input=SOURCE, text=True, check=True)
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    (at,) = [int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" t hidden")]
    os.utime(library, (0, 0))  # older than any recording
    return Frame("native", "", str(library), at + 1)


def test_functions_that_a_library_does_not_export_are_named(inside: Frame) -> None:
    mangled = Frame("native", "_ZN5place6methodEi", "/gone/libother.so", 7)
    unknown = Frame("native", "", "/gone/libother.so", 7)
    own = Frame("python", "step", "/p/train.py", 3)
    view = with_names(training(stacks=(CallStack((inside, mangled, unknown, own)),)), {})
    assert [frame.function for frame in view.stacks[0].frames] == ["hidden", "place::method", "", "step"]


@pytest.mark.parametrize(
    ("builds", "name"),
    [
        ({BUILD}, "hidden"),
        ({""}, "hidden"),  # it had none, so nothing can be compared
        ({"ffeeddccbbaa99887766554433221100"}, ""),
        ({BUILD, "ffeeddccbbaa99887766554433221100"}, ""),
        ({BUILD, ""}, ""),
        ({"\ufffd\x1b[31m"}, ""),
    ],
)
def test_a_library_of_another_build_names_nothing(inside: Frame, builds: set[str], name: str) -> None:
    view = with_names(training(stacks=(CallStack((inside,)),)), {inside.file: builds})
    assert view.stacks[0].frames[0].function == name


def test_a_library_without_a_build_id_names_nothing_once_it_is_changed(inside: Frame) -> None:
    """It may have been built again since: what its offsets meant is unknown."""
    os.utime(inside.file)
    view = training(stacks=(CallStack((inside,)),))
    assert with_names(view, {inside.file: {""}}).stacks[0].frames[0].function == ""
    assert with_names(view, {inside.file: {BUILD}}).stacks[0].frames[0].function == "hidden"


def test_a_trace_of_python_alone_stays_as_it_is() -> None:
    view = training(stacks=(CallStack((Frame("python", "step", "/p/train.py", 3),)),))
    assert naming(view, {}) is None
    assert with_names(view, {}) is view
