"""Which Windows this Linux runs under, if any: told from files that a test can lay out."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import skip_without
from vram.host.local.identity import virtual_wsl_facts, wsl_facts
from vram.model.windows import WslFacts
from vram.payloads import libcuda

SECOND = "5.15.167.4-microsoft-standard-WSL2"
FIRST = "4.4.0-22621-Microsoft"
PLAIN = "6.8.0-45-generic"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An empty machine: the roots of its files and of its /proc."""
    (tmp_path / "proc/sys/fs/binfmt_misc").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    return tmp_path


def look(machine: Path, release: str) -> WslFacts | None:
    return wsl_facts(release, str(machine / "proc"), str(machine))


def make(machine: Path, path: str, text: str = "") -> None:
    place = machine / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_an_ordinary_machine_is_not_under_windows(machine: Path) -> None:
    assert look(machine, PLAIN) is None


def test_a_whole_wsl2(machine: Path) -> None:
    make(machine, "dev/dxg")
    make(machine, "usr/lib/wsl/lib/libcuda.so.1")
    make(machine, "proc/sys/fs/binfmt_misc/WSLInterop", "enabled\ninterpreter /init\nflags: PF\n")
    assert look(machine, SECOND) == WslFacts(
        version=2, gpu_device=True, libraries="/usr/lib/wsl/lib", interop=True
    )


def test_wsl1_has_no_gpu_and_is_told_apart(machine: Path) -> None:
    make(machine, "proc/version", f"Linux version {FIRST} (Microsoft@Microsoft.com) #2506-Microsoft")
    assert look(machine, FIRST) == WslFacts(version=1)


def test_wsl2_without_a_gpu_is_wsl2_still(machine: Path) -> None:
    assert look(machine, SECOND) == WslFacts(version=2)


def test_a_kernel_of_ones_own_is_told_by_its_device(machine: Path) -> None:
    """Whoever builds the kernel may name it as they like."""
    make(machine, "dev/dxg")
    assert look(machine, "6.6.36-mine") == WslFacts(version=2, gpu_device=True)


def test_or_by_the_kernels_own_words(machine: Path) -> None:
    make(machine, "proc/version", "Linux version 6.6.36-mine (root@Microsoft-build) (gcc 11.2.0)")
    assert look(machine, "6.6.36-mine") == WslFacts(version=2)


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_a_container_inside_wsl2_is_told_apart(machine: Path, mark: str) -> None:
    make(machine, "dev/dxg")
    make(machine, mark)
    assert look(machine, SECOND) == WslFacts(version=2, gpu_device=True, container=True)


@pytest.mark.parametrize(
    ("name", "text", "there"),
    [
        ("WSLInterop", "disabled\ninterpreter /init\n", False),
        ("WSLInterop-late", "enabled\ninterpreter /init\n", True),
        ("python3.11", "enabled\n", False),
        ("WSLInterop", "", False),
    ],
)
def test_interop_can_be_off(machine: Path, name: str, text: str, there: bool) -> None:
    make(machine, f"proc/sys/fs/binfmt_misc/{name}", text)
    found = look(machine, SECOND)
    assert found is not None
    assert found.interop is there


def test_a_virtual_gpu_is_under_windows_only_where_its_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert virtual_wsl_facts(str(tmp_path)) is None
    (tmp_path / "dev/dxg").touch()
    found = virtual_wsl_facts(str(tmp_path))
    assert found is not None
    assert (found.version, found.gpu_device) == (2, True)


LENDING = """
import sys
import pynvml as binding
from vram.host.local.nvml_library import lend_library
try:
    binding.nvmlInit()
except binding.NVMLError as error:
    print(error.value, lend_library(binding, "/nowhere"), lend_library(binding, sys.argv[1]))
binding.nvmlInit()
print(binding.nvmlDeviceGetCount())
"""


def test_the_library_is_found_where_the_loader_does_not_look(native_libraries: Path, virtual_gpu) -> None:
    """Its folder is in the loader's configuration on most distributions, and not on all."""
    # Asked of another process: in this one a test before may have loaded the virtual GPU's.
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"]
    if subprocess.run(load, capture_output=True).returncode == 0:
        skip_without("no-driver", "the loader finds a library of this machine")
    environment = virtual_gpu.environment()
    environment["LD_LIBRARY_PATH"] = ""
    done = subprocess.run(
        [sys.executable, "-c", LENDING, str(virtual_gpu.folder / "lib")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["12 False True", "1"]


def test_a_library_that_is_nowhere_fails_as_the_loader_says(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"libvram-is-nowhere\.so: cannot open shared object file"):
        libcuda.open_library("libvram-is-nowhere.so", ctypes.CDLL, str(tmp_path))
