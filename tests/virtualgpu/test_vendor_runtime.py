"""Programs with NVIDIA's own runtime library: told once, at once, which file it is in and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

NOT_SUPPORTED = 801
# What a program is left with that sets its own: nothing, or the sanitizer's library.
WITHOUT_OURS = os.environ.get("LD_PRELOAD", "")

# Every call of the runtime, in every thread, returns the same error.
PROGRAM = r"""
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
int cudaMalloc(void **, size_t);
int cudaGetDeviceCount(int *);
static void *call(void *result) {
    void *memory;
    *(int *)result = cudaMalloc(&memory, 1 << 20);
    return NULL;
}
int main(void) {
    int count, codes[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, call, &codes[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("%d %d %d %d %d\n", cudaGetDeviceCount(&count), codes[0], codes[1], codes[2], codes[3]);
    return 0;
}
"""
KERNEL = r"""
#include <cstdio>
__global__ void nothing() {}
int main() {
    nothing<<<1, 1>>>();
    int launched = cudaGetLastError();
    printf("%d %d\n", launched, (int)cudaDeviceSynchronize());
}
"""
WORKS = "0 0 0 0 0\n"
CODES = " ".join([str(NOT_SUPPORTED)] * 5) + "\n"

STATIC = """\
vram: {file} has NVIDIA's CUDA runtime linked in statically.
      It needs private tables of NVIDIA's driver, which the virtual GPU does not have:
      its calls return error 801 (not supported).
      Do not strip it, link it with `nvcc -cudart shared`, or use a real GPU.
"""
DYNAMIC = """\
vram: {file} is NVIDIA's CUDA runtime.
      It needs private tables of NVIDIA's driver, which the virtual GPU does not have:
      its calls return error 801 (not supported).
      {reason}
"""


def vendor_library(release: str, name: str) -> Path | None:
    """A file of NVIDIA's runtime wheel for CUDA *release*."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    inside = {"12": "cuda_runtime", "13": "cu13"}[release]
    candidates = [Path(folder) / inside / "lib" / name for folder in folders or ()]
    return next((path for path in candidates if path.exists()), None)


def dynamic_runtime() -> Path:
    found = vendor_library("13", "libcudart.so.13")
    if found is None:
        skip_without("clients", "nvidia-cuda-runtime is not installed")
    return found


def compile_program(folder: Path, *words: str | Path, name: str = "program") -> Path:
    source, program = folder / "program.c", folder / name
    source.write_text(PROGRAM)
    libraries = ["-ldl", "-lpthread", "-lrt", "-lm"]
    subprocess.run(["cc", "-o", program, source, *words, *libraries], check=True)
    return program


def run(gpu: VirtualGpu, *argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = gpu.environment() | variables
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def with_own_runtime(virtual_gpu: VirtualGpu) -> VirtualGpu:
    """A virtual GPU that has a runtime library of its own under the name that programs look for."""
    assert (virtual_gpu.folder / "lib" / "libcudart.so.13").exists()
    return virtual_gpu


# ---- linked in statically ----


def static_runtime(release: str = "13") -> Path:
    found = vendor_library(release, "libcudart_static.a")
    if found is None:
        skip_without("clients", f"the wheel of NVIDIA's runtime {release} is not installed")
    return found


@needs("x86-64")
@pytest.mark.parametrize("release", ["12", "13"])
@pytest.mark.parametrize("option", ["-pie", "-no-pie", "-Wl,-z,noseparate-code", "-Wl,--gc-sections"])
def test_a_static_runtime_is_carried(
    virtual_gpu: VirtualGpu, tmp_path: Path, release: str, option: str
) -> None:
    """Its calls come to the virtual GPU's own runtime, of the same version."""
    program = compile_program(tmp_path, static_runtime(release), option)
    done = run(virtual_gpu, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, WORKS, "")


@pytest.mark.parametrize("release", ["12", "13"])
def test_a_static_runtime_without_symbols_is_named_once(
    virtual_gpu: VirtualGpu, tmp_path: Path, release: str
) -> None:
    program = compile_program(tmp_path, static_runtime(release), "-s")
    done = run(virtual_gpu, program)
    assert (done.returncode, done.stdout) == (0, CODES)
    assert done.stderr == STATIC.format(file=program)


@needs("x86-64")
def test_a_stripped_program_is_told_before_it_starts(tmp_path: Path, native_libraries: Path) -> None:
    vram = Path(sys.executable).with_name("vram")
    static = static_runtime()
    said = [
        "has NVIDIA's CUDA runtime linked in and is stripped: its CUDA calls will fail (801)",
        "  hint: build it with `nvcc -cudart shared`, or do not strip it",
    ]
    for option, expected in (("-s", said), ("-g", [])):
        program = compile_program(tmp_path, static, option)
        done = subprocess.run(
            [vram, "virtual", "--", program], capture_output=True, text=True, timeout=PATIENCE_S
        )
        lines = done.stderr.splitlines()
        assert [line.removeprefix(f"vram: {program} ") for line in lines[:2]] == expected
        assert done.returncode == 0


@needs("nvcc", "x86-64")
def test_what_nvcc_builds_without_options_works(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    source, program = tmp_path / "kernel.cu", tmp_path / "kernel"
    source.write_text(KERNEL)
    # The compiler's parts cannot be loaded with what `make sanitize` preloads.
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(["nvcc", "-o", program, source], env=plain, check=True)
    done = run(virtual_gpu, program)
    assert (done.stdout, done.stderr) == ("0 0\n", "")
    assert virtual_gpu.launches() == 1


def test_a_name_that_a_terminal_would_obey_is_made_inert(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = compile_program(tmp_path, static_runtime(), "-s", name="red\x1b[31m\n\x9b1mprogram\u00e9")
    done = run(virtual_gpu, program)
    assert done.stderr == STATIC.format(file=tmp_path / "red?[31m???1mprogramé")


def test_a_program_found_on_path_is_named_with_its_folder(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = compile_program(tmp_path, static_runtime(), "-s", name="found-on-path")
    done = run(virtual_gpu, "sh", "-c", "found-on-path", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stderr == STATIC.format(file=program)


def test_with_stderr_closed_the_error_code_is_left(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = compile_program(tmp_path, static_runtime(), "-s")
    assert run(virtual_gpu, "sh", "-c", f"exec {program} 2>&-").stdout == CODES


@needs("cuda.bindings")
def test_the_runtime_inside_a_python_extension_is_named(virtual_gpu: VirtualGpu) -> None:
    program = "from cuda.bindings import runtime; print(int(runtime.cudaMalloc(1)[0]))"
    done = run(virtual_gpu, sys.executable, "-c", program)
    assert done.stdout == f"{NOT_SUPPORTED}\n"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("vram: ")]
    file = line.removeprefix("vram: ").removesuffix(" has NVIDIA's CUDA runtime linked in statically.")
    assert Path(file).name.startswith("runtime.")
    assert "cuda/bindings" in file


# ---- NVIDIA's libcudart.so beside ours ----


@pytest.mark.parametrize("release", ["12", "13"])
def test_rpath_to_the_vendors_library_leads_to_ours(
    virtual_gpu: VirtualGpu, tmp_path: Path, release: str
) -> None:
    """As in PyTorch's libraries. An RPATH is searched before LD_LIBRARY_PATH, but not before LD_PRELOAD."""
    library = vendor_library(release, f"libcudart.so.{release}")
    if library is None:
        skip_without("clients", f"the wheel of NVIDIA's runtime {release} is not installed")
    program = compile_program(tmp_path, library, f"-Wl,--disable-new-dtags,-rpath,{library.parent}")
    done = run(virtual_gpu, program)
    assert (done.stdout, done.stderr) == ("0 0 0 0 0\n", "")


def test_programs_that_outlive_the_virtual_gpu_start_without_complaints(virtual_gpu: VirtualGpu) -> None:
    """Its folder is gone then; what LD_PRELOAD names is not."""
    environment = virtual_gpu.environment()
    virtual_gpu.close()
    done = subprocess.run(["true"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- NVIDIA's libcudart.so instead of ours ----


def test_a_library_found_by_rpath(with_own_runtime: VirtualGpu, tmp_path: Path) -> None:
    library = dynamic_runtime()
    words = [library, f"-Wl,--disable-new-dtags,-rpath,{library.parent}"]
    program = compile_program(tmp_path, *words)
    done = run(with_own_runtime, program, LD_PRELOAD=WITHOUT_OURS)
    assert done.stdout == CODES
    ours = with_own_runtime.folder / "lib" / library.name
    reason = f"It was found first because of the RPATH in the program.\n      Start it with LD_PRELOAD={ours}"
    assert done.stderr == DYNAMIC.format(file=library, reason=reason)


def test_a_library_found_by_the_search_path(with_own_runtime: VirtualGpu, tmp_path: Path) -> None:
    library = dynamic_runtime()
    program = compile_program(tmp_path, library)
    ours = with_own_runtime.folder / "lib"
    done = run(with_own_runtime, program, LD_LIBRARY_PATH=f"{library.parent}:{ours}", LD_PRELOAD=WITHOUT_OURS)
    assert done.stdout == CODES
    reason = f"It was found first because its folder comes first in LD_LIBRARY_PATH. Put {ours} first."
    assert done.stderr == DYNAMIC.format(file=library, reason=reason)


def test_a_library_loaded_by_its_path(with_own_runtime: VirtualGpu) -> None:
    library = dynamic_runtime()
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).cudaFree(None))"
    done = run(with_own_runtime, sys.executable, "-c", program)
    assert done.stdout == f"{NOT_SUPPORTED}\n"
    reason = f"It was loaded by its path. Its name alone, {library.name}, finds the virtual GPU's own."
    assert done.stderr == DYNAMIC.format(file=library, reason=reason)


def test_a_release_that_the_virtual_gpu_has_not(virtual_gpu: VirtualGpu) -> None:
    library = dynamic_runtime()
    (virtual_gpu.folder / "lib" / library.name).unlink(missing_ok=True)
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).cudaFree(None))"
    done = run(virtual_gpu, sys.executable, "-c", program, LD_PRELOAD=WITHOUT_OURS)
    reason = f"The virtual GPU has no runtime of its own under the name {library.name}. Use a real GPU."
    assert done.stderr == DYNAMIC.format(file=library, reason=reason)


# ---- everybody else ----


def test_other_private_tables_are_absent_without_a_word(virtual_gpu: VirtualGpu) -> None:
    """NVIDIA's runtime asks for this one too, and goes on without."""
    program = """\
    import ctypes
    driver, table = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(1)
    codes = [driver.cuInit(0)]
    for name in ("f8cff95121468b4eb9e2fb469e7c0dd9", "00" * 16):
        codes.append(driver.cuGetExportTable(ctypes.byref(table), bytes.fromhex(name)))
    codes.append(driver.cuGetExportTable(None, None))
    print(codes, table.value)
    """
    done = run(virtual_gpu, sys.executable, "-c", textwrap.dedent(program))
    assert (done.stdout, done.stderr) == ("[0, 500, 500, 500] None\n", "")
