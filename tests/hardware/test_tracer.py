"""The tracer on real hardware: planted leaks are found at their lines, and none is invented.

python -m pytest --real-gpu -s tests/hardware/test_tracer.py
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.tracer import overhead, programs
from tests.hardware.tracer.programs import Started
from tests.needs import needs, skip_without
from tests.search_path import search_path
from vram.model.trace import TraceView
from vram.units import MIB

pytestmark = pytest.mark.gpu

EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}

# By name: the program, the module that it needs, what is set for it.
PYTHON_PROGRAMS: dict[str, tuple[str, str, dict[str, str]]] = {
    "PyTorch": ("torch_program.py", "torch", {}),
    "PyTorch, expandable segments": ("torch_program.py", "torch", EXPANDABLE),
    "CuPy": ("cupy_program.py", "cupy", {}),
    "JAX": ("jax_program.py", "jax", {}),
    "Numba": ("numba_program.py", "numba.cuda", {}),
    "Triton": ("triton_program.py", "triton", {}),
    "PyCUDA": ("pycuda_program.py", "pycuda", {}),
    "the driver": ("driver_program.py", "ctypes", {}),
    "a forked child": ("fork_program.py", "os", {}),
}

# What is missing where one of them was not started; the others are frameworks. Triton comes with PyTorch.
MISSING = {
    "PyTorch": "torch",
    "PyTorch, expandable segments": "torch",
    "Triton": "torch",
    "Numba": "numba",
    "PyCUDA": "pycuda",
    "C++ with the static runtime": "cuda-toolkit",
}


def is_there(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Every program, at once: importing a framework takes seconds, and there are cores enough."""
    folder = tmp_path_factory.mktemp("tracer")
    running: dict[str, Started] = {}
    for name, (program, module, variables) in PYTHON_PROGRAMS.items():
        if is_there(module):
            running[name] = programs.start([program], folder / name.replace(" ", "-"), **variables)
    if is_there("torch"):
        running["the profiler"] = programs.start(["profiler_program.py"], folder / "profiler")
    for name, begin in NATIVE_PROGRAMS.items():
        made = begin(folder)
        if made is not None:
            running[name] = made
    yield running
    for each in running.values():
        each.process.kill()
        each.process.communicate()


def begin_static(folder: Path) -> Started | None:
    """nvcc links the runtime statically unless it is told otherwise."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return None
    program = folder / "static_program"
    source = str(programs.HERE / "static_program.cu")
    subprocess.run([nvcc, "-O1", "-Xcompiler", "-rdynamic", "-o", str(program), source], check=True)
    return programs.start([str(program)], folder / "static")


def begin_native(folder: Path) -> Started | None:
    library = programs.build("leaky.c", folder / "libleaky.so", "-shared", "-fPIC")
    flags = (str(library), f"-Wl,-rpath,{folder}")
    program = folder / "native_program"
    line = ["cc", "-O1", str(programs.HERE / "native_program.c"), *flags, "-o", str(program)]
    subprocess.run(line, check=True)
    return programs.start([str(program)], folder / "native")


def begin_library(folder: Path) -> Started | None:
    library = programs.build("leaky.c", folder / "libcalled.so", "-shared", "-fPIC")
    return programs.start(["library_program.py", str(library)], folder / "library", stacks="native")


NATIVE_PROGRAMS: dict[str, Callable[[Path], Started | None]] = {
    "C++ with the static runtime": begin_static,
    "C with a library": begin_native,
    "Python with a library": begin_library,
}


def check_jax(view: TraceView) -> None:
    """JAX allocates in threads of its own: its profile names the line; no other line may be accused."""
    expected = programs.planted("jax_program.py")
    (use,) = (each for each in view.frameworks if each.framework == "jax")
    counted: dict[int, int] = {}
    for site in use.sites:
        lines = [
            frame.line for frame in view.stacks[site.stack].frames if frame.file.endswith("jax_program.py")
        ]
        if lines and lines[0] in expected:
            counted[lines[0]] = counted.get(lines[0], 0) + site.count
    assert counted == expected
    for row in programs.leaks(view):
        frames = view.stacks[row.site.stack].frames
        lines = [frame.line for frame in frames if frame.file.endswith("jax_program.py")]
        assert not lines or set(lines) & set(expected), row


CHECKS: dict[str, Callable[[TraceView], None]] = {
    **{
        name: partial(programs.check_lines, program=program)
        for name, (program, _, _) in PYTHON_PROGRAMS.items()
    },
    "JAX": check_jax,
    "C++ with the static runtime": partial(
        programs.check_functions,
        # In C++ what is not freed at the end is a leak, too.
        expected={("static_program", "planted_leak"): 12, ("static_program", "load_model"): 6},
    ),
    "C with a library": partial(programs.check_functions, expected={("libleaky.so", "library_cache"): 12}),
    "Python with a library": partial(programs.check_lines, program="library_program.py"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_planted_leaks_are_found_and_none_is_invented(
    name: str, started: dict[str, Started], record: Record
) -> None:
    if name not in started:
        skip_without(MISSING.get(name, "frameworks"), f"{name} is not installed")
    started[name].finish()
    view = started[name].view()
    assert not view.damage
    record(program=name, events=view.events, leaks=len(programs.leaks(view)))
    CHECKS[name](view)


def test_the_library_that_leaks_is_named(started: dict[str, Started]) -> None:
    started["Python with a library"].finish()
    view = started["Python with a library"].view()
    (row,) = programs.leaks(view)
    assert ("libcalled.so", "library_cache") in programs.native_functions(view.stacks[row.site.stack])


def test_pytorchs_profiler_still_sees_the_gpu(started: dict[str, Started], record: Record) -> None:
    if "the profiler" not in started:
        skip_without("torch", "PyTorch is not installed")
    on_gpu, kept = map(int, started["the profiler"].finish().split())
    view = started["the profiler"].view()
    record(events_on_gpu=on_gpu)
    assert on_gpu >= 1
    blocks = [row for row in view.leaks if row.site.kind == "torch block"]
    assert sum(row.site.count for row in blocks if row.site.nbytes == 9 * MIB) == kept == 3


def test_a_killed_program_leaves_what_it_did(tmp_path: Path) -> None:
    running = programs.start(["driver_program.py", "wait"], tmp_path)
    programs.wait_for(running.process, "ready")
    running.process.send_signal(signal.SIGKILL)
    running.process.communicate()
    view = running.view()
    assert view.processes[0].end == "cut"
    programs.check_lines(view, "driver_program.py")


@needs("torch")
def test_attached_to_pytorch_that_runs(tmp_path: Path, record: Record) -> None:
    """From the moment of attaching on everything is seen; what was before is said by PyTorch itself."""
    trace = tmp_path / "attached.vram"
    variables = {"PYTHONPATH": search_path(), **os.environ}
    words = [sys.executable, str(programs.HERE / "attach_program.py")]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    vram = [sys.executable, "-m", "vram"]
    try:
        programs.wait_for(process, "ready")
        began = time.monotonic()
        attach = [*vram, "attach", str(process.pid), "--framework", "torch", "-o", str(trace)]
        subprocess.run(attach, env=variables, check=True)
        attached_s = time.monotonic() - began
        time.sleep(2.0)  # what is seen is what happens meanwhile
        subprocess.run([*vram, "attach", str(process.pid), "--stop"], env=variables, check=True)
        remembered = int(process.communicate("\n", timeout=30)[0])
    finally:
        process.kill()
        process.communicate()
    with programs.open_trace([trace]) as opened:
        view = programs.with_frameworks(opened.view(), opened)
    assert view.before
    (row,) = programs.leaks(view)
    functions = [frame.function for frame in view.stacks[row.site.stack].frames]
    assert "remember" in functions
    assert 3 <= row.site.count < remembered
    record(attached_s=round(attached_s, 2), remembered=remembered, seen=row.site.count)


# ---- what it costs ----


@pytest.fixture(scope="module")
def costs() -> dict[str, Any]:
    """Every figure, from one run."""
    return overhead.everything()


def test_an_event_costs_less_than_promised(costs: dict[str, Any], record: Record) -> None:
    """Promised: 0.35 and 1 µs where an unrecorded pair takes 1 µs. Hosts of one card differ by half."""
    record(**costs)
    added, pair = costs["added to an event"], costs["python, 20 frames"]["async_pairs"]["off"]
    assert added["none"] <= 0.35 * pair
    assert added["python"] <= pair


def test_kernel_launches_cost_the_same(costs: dict[str, Any]) -> None:
    launches = costs["python, 20 frames"]["launches"]
    assert launches["python"] <= 1.05 * launches["off"]


def test_compute_sanitizer_costs_more(costs: dict[str, Any]) -> None:
    """At least four times as much for pairs of allocation and free, ten times for launches."""
    theirs = costs["program"].get("compute-sanitizer")
    if theirs is None or "failed" in theirs:
        skip_without("cuda-toolkit", f"no compute-sanitizer here: {theirs}")
    alone, ours = costs["program"]["alone"], costs["python, 20 frames"]
    assert theirs["async"] - alone["async"] >= 4 * (
        ours["async_pairs"]["python"] - ours["async_pairs"]["off"]
    )
    assert theirs["launch"] - alone["launch"] >= 10 * (ours["launches"]["python"] - ours["launches"]["off"])


@needs("torch")
def test_a_training_step_takes_as_long_as_without(costs: dict[str, Any]) -> None:
    assert costs["PyTorch"]["training step"]["ratio"] <= 1.005
    empty = costs["PyTorch"]["torch.empty"]
    assert empty["recorded with --framework torch"] < empty["PyTorch's own history"]
