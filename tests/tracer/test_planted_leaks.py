"""Programs with planted leaks, on the virtual GPU; tests/hardware/test_tracer.py has more of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware.tracer import programs
from tests.hardware.tracer.programs import Started
from tests.needs import is_installed, needs
from vram.virtualgpu import VirtualGpu, folder


@pytest.fixture
def base(virtual_gpu: VirtualGpu) -> dict[str, str]:
    return {**os.environ, **virtual_gpu.environment()}


@pytest.mark.parametrize(
    "program",
    [
        "driver_program.py",
        "fork_program.py",
        pytest.param("numba_program.py", marks=needs("numba.cuda")),
        pytest.param("pycuda_program.py", marks=needs("pycuda")),
    ],
)
def test_every_planted_leak_is_found_at_its_line(program: str, base: dict[str, str], tmp_path: Path) -> None:
    running = programs.start([program], tmp_path, base)
    running.finish()
    programs.check_lines(running.view(), program)


PYTHON_WITH_TORCH = os.environ.get("VRAM_PYTHON_WITH_TORCH") or (
    sys.executable if is_installed("torch") else None
)
"""An environment of its own may have it: $VRAM_PYTHON_WITH_TORCH names its interpreter."""


@needs("torch", there=PYTHON_WITH_TORCH is not None, detail="$VRAM_PYTHON_WITH_TORCH names no PyTorch")
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_pytorchs_tensors_are_found_at_their_line(
    settings: str, base: dict[str, str], tmp_path: Path
) -> None:
    # PyTorch brings NVIDIA's libcupti, which crashes on the virtual driver: ours takes its name first.
    ours = str(folder.BUILT / "libcupti.so.13")
    base["LD_PRELOAD"] = f"{ours}:{base.get('LD_PRELOAD', '')}"
    base["PYTORCH_CUDA_ALLOC_CONF"] = settings
    program = str(programs.HERE / "torch_program.py")
    running = programs.start([str(PYTHON_WITH_TORCH), program], tmp_path, base)
    running.finish()
    programs.check_lines(running.view(), "torch_program.py")


def test_a_program_without_python_is_told_by_function(base: dict[str, str], tmp_path: Path) -> None:
    library = programs.build("leaky.c", tmp_path / "libleaky.so", "-shared", "-fPIC")
    program = tmp_path / "native_program"
    words = ["cc", "-O1", str(programs.HERE / "native_program.c"), str(library), "-o", str(program)]
    subprocess.run([*words, f"-Wl,-rpath,{tmp_path}"], check=True)
    running = programs.start([str(program)], tmp_path, base)
    assert running.finish() == "done\n"
    programs.check_functions(running.view(), {("libleaky.so", "library_cache"): 12})


def test_a_library_that_leaks_is_named_beside_the_line_that_calls_it(
    base: dict[str, str], tmp_path: Path
) -> None:
    library = programs.build("leaky.c", tmp_path / "libcalled.so", "-shared", "-fPIC")
    running = programs.start(["library_program.py", str(library)], tmp_path, base, stacks="native")
    running.finish()
    view = running.view()
    programs.check_lines(view, "library_program.py")
    (row,) = programs.leaks(view)
    assert ("libcalled.so", "library_cache") in programs.native_functions(view.stacks[row.site.stack])


def test_a_killed_program_leaves_what_it_did(base: dict[str, str], tmp_path: Path) -> None:
    running = programs.start(["driver_program.py", "wait"], tmp_path, base)
    programs.wait_for(running.process, "ready")
    running.process.send_signal(signal.SIGKILL)
    running.process.communicate()
    view = running.view()
    assert view.processes[0].end == "cut"
    programs.check_lines(view, "driver_program.py")


# ---- what Python frees when it ends ----

OWNER = """
import sys, time
sys.path.insert(0, {folder!r})
import driver_program as driver
from pace import Pace

class Owner:
    def __init__(self):
        self.address = driver.alloc(1 << 20)  # kept by a list that grows
    def __del__(self):
        driver.call("cuMemFree_v2", self.address)

pace = Pace()
driver.begin()
kept = []
for number in pace.steps(24):
    driver.step()
    kept.append(Owner())
{end}
"""


def owners(base: dict[str, str], folder: Path, end: str) -> Started:
    program = folder / "owners.txt"
    program.write_text(OWNER.format(folder=str(programs.HERE), end=end))
    running = programs.start([sys.executable, str(program)], folder, base)
    running.finish()
    return running


def test_what_python_frees_at_its_own_end_does_not_hide_what_grew(
    base: dict[str, str], tmp_path: Path
) -> None:
    (row,) = programs.leaks(owners(base, tmp_path, "").view())
    assert (row.verdict, row.site.count, row.freed) == ("growing", 24, 0)


def test_what_the_program_frees_itself_is_no_leak(base: dict[str, str], tmp_path: Path) -> None:
    view = owners(base, tmp_path, "kept.clear()").view()
    assert programs.leaks(view) == ()
    assert view.processes[0].end == "exit"


def test_threads_that_still_work_when_the_main_thread_is_done_are_recorded(
    base: dict[str, str], tmp_path: Path
) -> None:
    end = "import threading\nthreading.Thread(target=lambda: (time.sleep(0.2), kept.clear())).start()"
    assert programs.leaks(owners(base, tmp_path, end).view()) == ()
