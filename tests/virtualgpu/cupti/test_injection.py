"""CUDA_INJECTION64_PATH: cuInit loads a tool, which can subscribe before anything happens (injected.c)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.virtualgpu.cupti.programs import HERE, compiled, result
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

WORK = "start(); tell(allocate()[0])"
TOLD = [
    *("injected", "subscribe 0", "resource 5"),
    *("enter cuDevicePrimaryCtxRetain", "resource 1", "exit cuDevicePrimaryCtxRetain"),
    *("enter cuCtxSetCurrent", "exit cuCtxSetCurrent"),
    *("enter cuMemAlloc_v2", "exit cuMemAlloc_v2"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("injection")
    return compiled(HERE / "injected.c", folder / "injected.so", "-shared", "-fPIC")


def variables(library: Path | str, log: Path, **more: str) -> dict[str, str]:
    return {
        "CUDA_INJECTION64_PATH": str(library),
        "INJECTED_CUPTI": "libcupti.so.13",
        "INJECTED_LOG": str(log),
        **more,
    }


def test_the_tool_is_told_everything_after_initialisation(
    virtual_gpu: VirtualGpu, library: Path, tmp_path: Path
) -> None:
    assert result(virtual_gpu, WORK, **variables(library, tmp_path / "log")) == 0
    assert (tmp_path / "log").read_text().splitlines() == TOLD


def test_it_is_loaded_once_in_each_process(virtual_gpu: VirtualGpu, library: Path, tmp_path: Path) -> None:
    program = """
        import subprocess
        threads = [threading.Thread(target=lambda: cuda.cuInit(0)) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if "again" not in os.environ:
            subprocess.run([sys.executable, "-c", "import subscriber; subscriber.start()"], check=True)
        tell(cuda.cuInit(0))
    """
    assert result(virtual_gpu, program, **variables(library, tmp_path / "log")) == 0
    assert (tmp_path / "log").read_text().splitlines().count("injected") == 2


def test_it_may_initialise_the_driver_itself(virtual_gpu: VirtualGpu, library: Path, tmp_path: Path) -> None:
    extra = {"INJECTED_INIT": "1"}
    assert result(virtual_gpu, WORK, **variables(library, tmp_path / "log", **extra)) == 0
    told = (tmp_path / "log").read_text().splitlines()
    assert [line for line in told if "cuInit" in line] == ["enter cuInit", "exit cuInit", "cuInit 0"]
    assert told[-8:] == TOLD[-8:]


def test_its_answer_does_not_matter(virtual_gpu: VirtualGpu, library: Path, tmp_path: Path) -> None:
    extra = {"INJECTED_RESULT": "0"}
    assert result(virtual_gpu, WORK, **variables(library, tmp_path / "log", **extra)) == 0
    assert (tmp_path / "log").read_text().splitlines() == TOLD


@pytest.mark.parametrize("kind", ["missing", "no library", "no function", "empty"])
def test_what_cannot_be_loaded_leaves_the_program_alone(
    virtual_gpu: VirtualGpu, tmp_path: Path, kind: str
) -> None:
    """As on an H200 with driver 580.159.04: cuInit succeeds, and nothing is printed."""
    (tmp_path / "text").write_text("no library\n")
    (tmp_path / "empty.c").write_text("int unrelated;\n")
    paths = {
        "missing": tmp_path / "missing.so",
        "no library": tmp_path / "text",
        "no function": compiled(tmp_path / "empty.c", tmp_path / "empty.so", "-shared", "-fPIC"),
        "empty": "",
    }
    assert result(virtual_gpu, WORK, **variables(paths[kind], tmp_path / "log")) == 0
    assert not (tmp_path / "log").exists()


def test_nothing_is_loaded_where_the_driver_is_not_initialised(
    virtual_gpu: VirtualGpu, library: Path, tmp_path: Path
) -> None:
    program = "tell(cuda.cuInit(0))"
    asked = variables(library, tmp_path / "log", VRAM_VIRTUAL_FAULTS="cuInit error=100")
    assert result(virtual_gpu, program, **asked) == 100
    assert not (tmp_path / "log").exists()
