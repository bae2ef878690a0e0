"""Making, entering and removing a virtual GPU from Python."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vram.errors import UsageError, VirtualGpuError
from vram.units import GIB, MIB
from vram.virtualgpu import FOLDER_VARIABLE, VirtualGpu, current, folder

pytestmark = pytest.mark.usefixtures("native_libraries")


def test_its_folder_is_private_and_goes_with_it() -> None:
    with VirtualGpu.create() as gpu:
        assert stat.S_IMODE(gpu.folder.stat().st_mode) == 0o700
        assert gpu.folder.stat().st_uid == os.geteuid()
    assert not gpu.folder.exists()
    gpu.close()


def test_two_have_nothing_in_common() -> None:
    with VirtualGpu.create() as one, VirtualGpu.create() as other:
        assert one.folder != other.folder


def test_a_chosen_folder_is_made_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "gpu"
    with VirtualGpu.create(folder=place) as gpu:
        assert gpu.folder == place
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert not place.exists()


def _open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


def _a_link(place: Path) -> None:
    private = place.with_name("elsewhere")
    private.mkdir(mode=0o700)
    place.symlink_to(private)


def _in_use(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / "diary").write_text("dear")


def _a_file(place: Path) -> None:
    place.write_text("")


@pytest.mark.parametrize("prepare", [_open_to_all, _a_link, _in_use, _a_file])
def test_a_folder_that_others_may_have_prepared_is_refused(tmp_path: Path, prepare) -> None:
    """And nothing in it is touched: refusing must not clean up what was never ours."""
    place = tmp_path / "gpu"
    prepare(place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(VirtualGpuError) as refused:
        VirtualGpu.create(folder=place)
    assert str(place) in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_where_no_folder_can_be_made_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(VirtualGpuError, match="cannot be made"):
        VirtualGpu.create(folder=tmp_path / "no" / "such" / "parent")


def test_libraries_that_are_not_built_are_missed_by_name(tmp_path: Path) -> None:
    with pytest.raises(VirtualGpuError, match=r"libcuda\.so\.1") as missed:
        folder.link_libraries(tmp_path / "lib", built=tmp_path)
    assert "native/build.py" in missed.value.hint


@pytest.mark.parametrize(
    ("said", "shown"),
    [("NVIDIA A100", "NVIDIA A100 (virtual)"), ("My Virtual Card", "My Virtual Card")],
)
def test_a_name_always_says_virtual(said: str, shown: str) -> None:
    with VirtualGpu.create(name=said) as gpu:
        assert f"name = {shown}\n" in (gpu.folder / "config").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": -1},
        {"gpus": 65},
        {"memory_bytes": 600 * MIB},
        {"memory_bytes": -1},
        {"name": "two\nlines = 1"},
        {"name": "x" * 60},
        {"name": " "},
        {"colour": "red"},
        {"utilization": "much"},
        {"compute_mode": "sometimes"},
    ],
)
def test_settings_that_make_no_sense_are_refused_and_leave_nothing(wrong, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(folder, "SHARED_MEMORY", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        VirtualGpu.create(**wrong)
    assert refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_its_libraries_are_found_before_any_other() -> None:
    with VirtualGpu.create() as gpu:
        environment = gpu.environment({"LD_LIBRARY_PATH": "/opt/lib:", "HOME": "/home"})
        assert environment == {
            "LD_LIBRARY_PATH": f"{gpu.folder}/lib:/opt/lib",
            "LD_PRELOAD": f"{folder.BUILT}/libcudart.so.13:{folder.BUILT}/libcudart.so.12",
            FOLDER_VARIABLE: str(gpu.folder),
            "HOME": "/home",
        }
        for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
            assert (gpu.folder / "lib" / name).exists()


def test_what_is_preloaded_already_stays_first() -> None:
    """A sanitizer's library must be the first; and a virtual GPU in a virtual GPU preloads nothing twice."""
    with VirtualGpu.create() as gpu:
        once = gpu.environment({"LD_PRELOAD": "/lib/libasan.so /lib/other.so"})
        ours = f"{folder.BUILT}/libcudart.so.13:{folder.BUILT}/libcudart.so.12"
        assert once["LD_PRELOAD"] == f"/lib/libasan.so:/lib/other.so:{ours}"
        assert gpu.environment(once)["LD_PRELOAD"] == once["LD_PRELOAD"]


def test_a_path_that_the_loader_would_split_is_left_to_the_search_path() -> None:
    assert folder.with_runtimes("", Path("/opt/my programs")) == "libcudart.so.13:libcudart.so.12"
    assert folder.with_runtimes("", Path("/opt/a:b")) == "libcudart.so.13:libcudart.so.12"


def test_a_process_knows_whether_it_runs_under_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert current() is None
    with pytest.raises(VirtualGpuError, match="does not run under"):
        VirtualGpu.inside()
    with VirtualGpu.create(memory_bytes=8 * GIB) as gpu:
        monkeypatch.setenv(FOLDER_VARIABLE, str(gpu.folder))
        assert current() == str(gpu.folder)
        assert VirtualGpu.inside().folder == gpu.folder


def test_a_folder_that_is_no_virtual_gpu_cannot_be_entered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(VirtualGpuError, match="not a virtual GPU's folder"):
        VirtualGpu.inside()


# ---- what a killed maker leaves behind ----

MAKE_AND_DIE = """
import os, signal, subprocess, sys
from pathlib import Path
from vram.virtualgpu import VirtualGpu, folder
folder.SHARED_MEMORY, folder.ROOM_WANTED = sys.argv[1], 0
gpu = VirtualGpu.create()
if "inside" in sys.argv:
    # Its environment can be read only some time after it was started: wait for its word.
    said, says = os.pipe()
    gpu.popen(["sh", "-c", f"echo >&{says}; exec {says}>&-; cat"], pass_fds=[says])
    os.read(said, 1)
if "keep" in sys.argv: gpu.keep()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(folder, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(folder, "ROOM_WANTED", 0)
    return tmp_path


def make_and_die(place: Path, *words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", MAKE_AND_DIE, str(place), *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.wait() == -signal.SIGKILL
    assert len(list(place.iterdir())) == 1
    return process


def test_a_folder_whose_maker_was_killed_is_removed_by_the_next(shared_memory: Path) -> None:
    with make_and_die(shared_memory), VirtualGpu.create() as next_one:
        assert list(shared_memory.iterdir()) == [next_one.folder]


def test_it_stays_while_somebody_runs_in_it(shared_memory: Path) -> None:
    with make_and_die(shared_memory, "inside") as survivor:
        with VirtualGpu.create():
            assert len(list(shared_memory.iterdir())) == 2
        assert survivor.stdin is not None
        assert survivor.stdout is not None
        survivor.stdin.close()
        assert survivor.stdout.read() == b""


def test_it_stays_where_it_was_meant_to(shared_memory: Path) -> None:
    with make_and_die(shared_memory, "keep"), VirtualGpu.create():
        assert len(list(shared_memory.iterdir())) == 2


def test_living_makers_keep_theirs(shared_memory: Path) -> None:
    with VirtualGpu.create() as one, VirtualGpu.create() as other:
        assert sorted(shared_memory.iterdir()) == sorted([one.folder, other.folder])


def test_only_its_maker_removes_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualGpu.create() as gpu:
        monkeypatch.setenv(FOLDER_VARIABLE, str(gpu.folder))
        VirtualGpu.inside().close()
        assert gpu.folder.exists()
