"""The virtual GPU's CUDA runtime: it answers as NVIDIA's did on an H200 (tests/virtualgpu/runtime)."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S
from tests.virtualgpu.conftest import ask
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

HERE = Path(__file__).with_name("runtime")
MAJORS = (12, 13)

# Where NVIDIA's library ends the process, ours returns this.
INSTEAD_OF_A_CRASH = {
    "handle of memory to null": 1,
    "function without a name": 1,
    "wait for a destroyed stream": 400,
    "destroy a stream twice": 400,
}

# The memory of a freed pointer is not mapped: the program ends, with NVIDIA's library and with ours.
ENDS = "copy by default from a freed pointer"

# Numbers of the machine (PCI), and what needs kernels, arrays or fabrics: those are not there.
OTHER_ATTRIBUTES = {
    *(33, 34, 139, 140),
    *(95, 96, 107, 112, 114, 119, 120, 121, 122, 123, 127, 128, 129, 141, 145),
}


@pytest.fixture(scope="module")
def gpu() -> Iterator[VirtualGpu]:
    with VirtualGpu.create() as gpu:
        yield gpu


def runtime(gpu: VirtualGpu, major: int) -> str:
    return str(gpu.folder / "lib" / f"libcudart.so.{major}")


def recorded(major: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"h200-{major}.json").read_text())
    return found


@pytest.fixture(scope="module")
def answers(gpu: VirtualGpu) -> dict[int, dict[str, Any]]:
    return {major: asked(gpu, major, *(name for name in recorded(major) if name != ENDS)) for major in MAJORS}


def asked(gpu: VirtualGpu, major: int, *sections: str) -> dict[str, Any]:
    other = os.environ | {"OTHER_LIBCUDART": runtime(gpu, 25 - major)}
    command = [sys.executable, str(HERE / "answers.py"), runtime(gpu, major), *sections]
    done = gpu.run(command, env=other, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs("no-sanitizers", detail="the sanitizers would report the crash that is wanted")
def test_a_freed_pointer_read_as_host_memory_ends_the_program(gpu: VirtualGpu) -> None:
    for major in MAJORS:
        assert asked(gpu, major, ENDS) == {ENDS: recorded(major)[ENDS]} == {ENDS: {"then": "SIGSEGV"}}


@pytest.mark.parametrize("major", MAJORS)
def test_every_call_answers_as_the_vendors(answers: dict[int, dict[str, Any]], major: int) -> None:
    expected = recorded(major)
    del expected[ENDS]
    assert answers[major].keys() == expected.keys()
    for name, code in INSTEAD_OF_A_CRASH.items():
        assert expected.pop(name) == {"then": "SIGSEGV"}
        assert answers[major][name] == {"answer": [code, code]}
    differing = {
        f"{section}: {call}": (answer, answers[major][section].get(call))
        for section, calls in expected.items()
        if section != "properties"
        for call, answer in calls.items()
        if answers[major][section].get(call) != answer
    }
    assert differing == {}


@pytest.mark.parametrize("major", MAJORS)
def test_properties_have_the_vendors_layout(answers: dict[int, dict[str, Any]], major: int) -> None:
    """Every word of the structure that is an attribute has its value where the vendor's has it."""
    ours, theirs = answers[major]["properties"], recorded(major)["properties"]
    assert ours["touched"] == theirs["touched"]
    different = {
        int(number) for number, value in theirs["attributes"].items() if ours["attributes"][number] != value
    }
    assert different == OTHER_ATTRIBUTES
    first = 296 // 4  # what follows name, UUID and the size of memory
    moved = [
        index
        for index in range(first, theirs["touched"] // 4)
        if ours["words"][index] != theirs["words"][index]
    ]
    assert len(moved) <= len(OTHER_ATTRIBUTES)


def test_both_versions_have_every_name_of_the_vendors(gpu: VirtualGpu) -> None:
    """A program may mention any function, and is loaded only if all of them are there."""
    names = (HERE / "exported.txt").read_text().split("\n")
    for major in MAJORS:
        library = ctypes.CDLL(runtime(gpu, major))
        wanted = [line.split()[0] for line in names if line and str(major) in line.split()[1:]]
        assert len(wanted) > 400
        assert [name for name in wanted if not hasattr(library, name)] == []


# ---- kernels ----

REGISTERED = """
import ctypes, json, sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
library = ctypes.CDLL(sys.argv[1])

class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]

library.__getattr__("__cudaRegisterFatBinary").restype = c_void_p
register = library.__getattr__("__cudaRegisterFunction")
module = c_void_p(library.__getattr__("__cudaRegisterFatBinary")(ctypes.create_string_buffer(16)))
kernel = ctypes.create_string_buffer(8)
register(module, kernel, None, c_char_p(b"kernel"), c_int(-1), None, None, None, None, None)
variable = ctypes.create_string_buffer(8)
library.__getattr__("__cudaRegisterVar")(
    module, variable, None, c_char_p(b"variable"), c_int(0), c_size_t(1024), c_int(0), c_int(0))
library.__getattr__("__cudaRegisterFatBinaryEnd")(module)
launch = library.cudaLaunchKernel
launch.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]
one = Dim3(1, 1, 1)
"""


def registered(gpu: VirtualGpu, lines: str, major: int = 13, **options: Any) -> Any:
    """What *lines* leave in ``told``, in a process with a kernel and a variable registered by hand."""
    program = f"{REGISTERED}\ntold = []\n{lines}\nprint(json.dumps(told))"
    command = [sys.executable, "-c", program, runtime(gpu, major)]
    done = gpu.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("major", MAJORS)
def test_launches_compute_nothing_and_are_counted(major: int) -> None:
    with VirtualGpu.create() as gpu:
        assert gpu.launches() == 0
        lines = "told = [launch(ctypes.addressof(kernel), one, one, None, 0, None) for _ in range(7)]"
        assert registered(gpu, lines, major) == [0] * 7
        assert gpu.launches() == 7


def test_a_variable_is_memory_of_its_context(gpu: VirtualGpu) -> None:
    lines = """
words = (c_int * 256)(*range(256))
back = (c_int * 256)()
told.append(library.cudaMemcpyToSymbol(variable, words, c_size_t(1024), c_size_t(0), 1))
told.append(library.cudaMemcpyFromSymbol(back, variable, c_size_t(1024), c_size_t(0), 2))
told.append(list(back) == list(words))
told.append(library.cudaMemcpyToSymbol(variable, words, c_size_t(1024), c_size_t(4), 1))
told.append(library.cudaMemcpyToSymbol(kernel, words, c_size_t(4), c_size_t(0), 1))
told.append(library.cudaDeviceReset())
told.append(library.cudaMemcpyFromSymbol(back, variable, c_size_t(1024), c_size_t(0), 2))
told.append(set(back) == {0})
"""
    assert registered(gpu, lines) == [0, 0, True, 1, 13, 0, 0, True]


def test_a_kernel_that_breaks_the_context_is_told_by_the_next_calls(gpu: VirtualGpu) -> None:
    lines = """
told.append(launch(ctypes.addressof(kernel), one, one, None, 0, None))
told.append(library.cudaDeviceSynchronize())
told.append(library.cudaGetLastError())
told.append(library.cudaGetLastError())
told.append(library.cudaFree(None))
told.append(library.cudaDeviceReset())
told.append(library.cudaFree(None))
"""
    with VirtualGpu.create() as broken:
        broken.fail("cuLaunchKernel", sticky="ILLEGAL_ADDRESS")
        assert registered(broken, lines) == [0, 700, 700, 0, 700, 0, 46]


nvcc = os.environ.get("NVCC") or shutil.which("nvcc")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not nvcc:
        skip_without("cuda-toolkit", "there is no nvcc here: put it on PATH, or name it in $NVCC")
    program = tmp_path_factory.mktemp("launches") / "launches"
    line = [nvcc, "-cudart", "shared", "-arch=sm_90", "-o", str(program), str(HERE / "launches.cu")]
    # The compiler's parts cannot be loaded with what `make sanitize` preloads.
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(line, env=plain, check=True, capture_output=True, timeout=PATIENCE_S)
    return program


BREAKING = {"illegal address": 700, "trap": 719, "assert": 710, "misaligned": 716}


@pytest.mark.parametrize("scene", ["launches", "variables", *BREAKING])
def test_compiled_kernels_answer_as_on_hardware(launches: Path, scene: str) -> None:
    lines = (HERE / "h200-launches.txt").read_text().splitlines()
    expected = [line for line in lines if line.startswith(f"{scene} |")]
    assert expected
    with VirtualGpu.create() as gpu:
        if scene in BREAKING:
            gpu.fail("cuLaunchKernel", nth=1, sticky=BREAKING[scene])
        done = gpu.run([str(launches), scene], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.stdout.splitlines() == expected


# ---- where it is found, and what it holds ----


def test_a_program_that_only_links_it_is_no_gpu_process(gpu: VirtualGpu) -> None:
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"
    done = gpu.run([sys.executable, "-c", program, runtime(gpu, 13)], capture_output=True, text=True)
    assert "libcudart" in done.stdout
    assert "libcuda.so" not in done.stdout
    assert str(gpu.folder / "dev") not in done.stdout


def test_memory_shows_and_goes(gpu: VirtualGpu) -> None:
    program = """
import ctypes, sys
runtime, address = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
for call in (lambda: runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 30)),
             lambda: runtime.cudaFree(address), lambda: runtime.cudaDeviceReset()):
    assert call() == 0
    print(flush=True)
    sys.stdin.readline()
"""
    before = ask(gpu, "memory()")["v2"][3]
    steps = []
    with gpu.popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as process:
        for _ in range(3):
            process.stdout.readline()
            steps.append((ask(gpu, "memory()")["v2"][3] - before) >> 20)
            process.stdin.write("\n")
            process.stdin.flush()
    assert steps == [1550, 526, 3]


def test_without_the_virtual_driver_it_says_what_to_do(gpu: VirtualGpu, tmp_path: Path) -> None:
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudaFree(None))"
    done = subprocess.run(
        [sys.executable, "-c", program, runtime(gpu, 13)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "35"
    assert "vram virtual -- COMMAND" in done.stderr
