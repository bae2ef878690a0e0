"""Init and shutdown, and a library that is whole."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.virtualgpu.conftest import ask
from vram.virtualgpu import FOLDER_VARIABLE, VirtualGpu

pytestmark = pytest.mark.native

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, DRIVER_NOT_LOADED = 1, 2, 3, 9

COUNT = "code(n.nvmlDeviceGetCount)"


def test_nothing_answers_before_init_or_after_the_last_shutdown(virtual_gpu: VirtualGpu) -> None:
    """Each init is undone by its own shutdown: a library inside the program has one of its own."""
    codes = ask(
        virtual_gpu,
        "codes",
        f"codes = [{COUNT}]",
        "n.nvmlInit(); n.nvmlShutdown()",
        f"codes.append({COUNT})",
        "n.nvmlShutdown()",
        f"codes.append({COUNT})",
        "codes.append(code(n.nvmlShutdown))",
    )
    assert codes == [0, 0, UNINITIALIZED, UNINITIALIZED]


def test_an_unsupported_call_also_needs_init(virtual_gpu: VirtualGpu) -> None:
    assert ask(virtual_gpu, "code(n.nvmlEventSetCreate)", "n.nvmlShutdown()") == UNINITIALIZED


def test_without_a_folder_there_is_no_driver(virtual_gpu: VirtualGpu) -> None:
    program = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    for folder in ("", str(virtual_gpu.folder / "nowhere")):
        environment = virtual_gpu.environment() | {FOLDER_VARIABLE: folder}
        argv = [sys.executable, "-c", program]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert int(done.stdout) == DRIVER_NOT_LOADED


def test_every_function_that_nvidia_ml_py_looks_up_is_there(native_libraries: Path) -> None:
    """A missing symbol reads as an older driver: what we lack must say "not supported" instead."""
    source = Path(str(pynvml.__file__)).read_text()
    wanted = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source))
    library = ctypes.CDLL(str(native_libraries / "libnvidia-ml.so.1"))
    assert len(wanted) > 100
    assert {name for name in wanted if not hasattr(library, name)} == set()


def test_only_nvml_names_are_exported(native_libraries: Path) -> None:
    """A stray global name would meet a program's own."""
    library = ctypes.CDLL(str(native_libraries / "libnvidia-ml.so.1"))
    ours = ("store_walk", "store_config", "nvml_enter_device", "nvml_copy")
    assert [name for name in ours if hasattr(library, name)] == []


def test_error_words_are_known_before_init(native_libraries: Path) -> None:
    words = ctypes.CDLL(str(native_libraries / "libnvidia-ml.so.1")).nvmlErrorString
    words.restype = ctypes.c_char_p
    assert words(15) == b"GPU is lost"
    assert words(-1) == words(31) == words(999) == b"Unknown Error"


def test_no_function_trips_over_missing_arguments(virtual_gpu: VirtualGpu, native_libraries: Path) -> None:
    """Every function of the library is called with nothing where it wants to write."""
    source = Path(str(pynvml.__file__)).read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)))
    answers = ask(
        virtual_gpu,
        "answers",
        f"names = {names!r}",
        "finding = ('nvmlDeviceGetHandleBy', 'nvmlDeviceGetCount', 'nvmlShutdown', 'nvmlInit', 'nvmlError')",
        "names = [name for name in names if not name.startswith(finding)]",
        "first = lambda name: handle(0) if name.startswith('nvmlDevice') else None",
        "call = lambda name: n._nvmlGetFunctionPointer(name)(first(name), *[None] * 5)",
        "answers = {name: call(name) for name in names}",
    )
    refused = {name for name, code in answers.items() if code in (INVALID_ARGUMENT, NOT_SUPPORTED)}
    assert set(answers) - refused == set()
    assert answers["nvmlDeviceGetMemoryInfo"] == answers["nvmlSystemGetDriverVersion"] == INVALID_ARGUMENT
