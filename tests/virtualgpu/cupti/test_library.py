"""The library itself: found by name, one subscriber in a process, errors on request, NVIDIA's names."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.virtualgpu.cupti.programs import HERE, result
from vram.virtualgpu import VirtualGpu, folder

pytestmark = pytest.mark.native

MULTIPLE_SUBSCRIBERS, UNKNOWN, NOT_SUPPORTED = 39, 999, 27


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("libcupti.so.12", "libcupti.so.12"),
        ("libcupti.so.13", "libcupti.so.13"),
        ("libcupti.so", "libcupti.so.13"),
    ],
)
def test_a_program_finds_it_by_its_name(virtual_gpu: VirtualGpu, name: str, target: str) -> None:
    program = f"""
        one = Subscriber({name!r})
        paths = {{line.split()[-1] for line in open("/proc/self/maps") if "libcupti" in line}}
        tell(sorted(paths))
    """
    assert result(virtual_gpu, program) == [str((folder.BUILT / target).resolve())]


def test_it_is_not_loaded_into_programs_that_do_not_ask(virtual_gpu: VirtualGpu) -> None:
    program = 'start(); tell([line for line in open("/proc/self/maps") if "libcupti" in line])'
    assert result(virtual_gpu, program) == []


def test_two_libraries_of_a_process_share_one_subscriber(virtual_gpu: VirtualGpu) -> None:
    program = """
        one, other = Subscriber("libcupti.so.12"), Subscriber("libcupti.so.13")
        codes = [one.subscribe(DRIVER), other.subscribe(), one.unsubscribe(), other.subscribe(DRIVER)]
        start()
        tell([*codes, len(one.take()), len(other.take()) > 0])
    """
    assert result(virtual_gpu, program) == [0, MULTIPLE_SUBSCRIBERS, 0, 0, 0, True]


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        ("39", [39, 1]),
        ("15", [15, 1]),
        ("cuptiEnableCallback=7", [0, 7]),
        ("cuptiEnableDomain=8", [0, 0]),
    ],
)
def test_errors_on_request(virtual_gpu: VirtualGpu, asked: str, codes: list[int]) -> None:
    program = "one = Subscriber(); tell([one.subscribe(), one.enable(243)])"
    assert result(virtual_gpu, program, VRAM_VIRTUAL_CUPTI_ERROR=asked) == codes


def test_without_a_driver_nobody_can_subscribe(tmp_path: Path, native_libraries: Path) -> None:
    """As NVIDIA's library answers on a machine that has none."""
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    program = f"""
import ctypes
cupti = ctypes.CDLL({str(native_libraries / "libcupti.so.13")!r})
print(cupti.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), None, None), cupti.cuptiFinalize())
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(UNKNOWN), "0"]


def test_what_is_not_there_says_so(virtual_gpu: VirtualGpu) -> None:
    """Activity records and counters: programs that mention them can be loaded, and are told."""
    program = """
        one = Subscriber()
        tell([one.cupti.cuptiActivityEnable(1), one.cupti.cuptiProfilerInitialize(None)])
    """
    assert result(virtual_gpu, program) == [NOT_SUPPORTED] * 2


@pytest.mark.parametrize("major", [12, 13])
def test_all_functions_of_nvidias_library_are_exported(native_libraries: Path, major: int) -> None:
    """And under the version that programs ask for; exported.txt has NVIDIA's names."""
    lines = [line.split() for line in (HERE / "exported.txt").read_text().splitlines()]
    wanted = [name for name, *majors in lines if str(major) in majors]
    assert len(wanted) > 150
    library = ctypes.CDLL(str(native_libraries / f"libcupti.so.{major}"))
    libc = ctypes.CDLL(None)
    libc.dlvsym.restype = ctypes.c_void_p
    version = f"libcupti.so.{major}".encode()
    handle = ctypes.c_void_p(library._handle)
    assert [name for name in wanted if not libc.dlvsym(handle, name.encode(), version)] == []
