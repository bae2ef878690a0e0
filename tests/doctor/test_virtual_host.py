"""The whole command on a virtual GPU, well and with every fault that the GPU can act out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.doctor.conftest import Clinic, Told, in_the_first_namespace, told
from tests.doctor.hosts import facts, with_host_files
from tests.needs import needs, require
from tests.virtualgpu.conftest import HOLDER
from vram.doctor.checks.gpu import check_mps
from vram.doctor.checks.installation import check_records
from vram.doctor.collect import read_records
from vram.host.local.system_info import LocalSystemInfo
from vram.report import schema
from vram.virtualgpu import VirtualGpu

READY, NO_DRIVER, LIMITED, BROKEN = 0, 4, 7, 8
# Calls that hang take all of it; the others must have said their word by then, also on a busy machine.
LONG = "5s"


@pytest.fixture(scope="module")
def sound(native_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    """Whoever tried to make a context there, or to move somebody, would wait for good."""
    with VirtualGpu.create() as gpu:
        for calls in ("cuCtxCreate*", "cuDevicePrimaryCtx*", "cuMem*", "cuCheckpointProcess*"):
            gpu.fail(calls, hang=True)
        yield Clinic(gpu, tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def answer(sound: Clinic) -> Told:
    return sound.ask("--deadline", LONG)


class TestASoundHost:
    """One run for all."""

    def test_every_check_answers_and_fits_the_schema(self, answer: Told) -> None:
        shipped = json.loads(schema.shipped("doctor").read_bytes())
        Draft202012Validator(shipped).validate(answer.raw)
        assert not [name for name, check in answer.checks.items() if check["state"] == "unknown"]
        assert answer.state("driver.cuda") == "ok"
        assert "it finds 1 GPU" in answer.checks["driver.cuda"]["details"]
        assert answer.seen("driver.nvml").startswith("NVML answers for 1 GPU")
        assert answer.state("place.namespace") == ("ok" if in_the_first_namespace() else "limited")

    def test_the_exit_code_is_the_verdict(self, answer: Told) -> None:
        counted = {check["state"] for check in answer.checks.values() if not check["optional"]}
        expected = "ready" if counted <= {"ok", "not-applicable"} else "limited"
        assert (answer.verdict, answer.code) == (expected, {"ready": READY, "limited": LIMITED}[expected])

    def test_asking_makes_no_context_and_no_file(self, answer: Told, sound: Clinic) -> None:
        assert answer.state("driver.cuda") == "ok"
        assert answer.state("parking.calls") == "ok"
        assert list(sound.state.iterdir()) == []
        assert list(sound.runtime.iterdir()) == []

    def test_it_attaches_to_pythons_of_its_own(self, answer: Told) -> None:
        require("older-python", detail="this Python is reached by sys.remote_exec")
        assert answer.state("reaching.routes") == "ok", answer.checks["reaching.routes"]


Expected = dict[str, tuple[str, str]]

SETTINGS: list[tuple[dict[str, str | int | bool], int, Expected]] = [
    (
        {"mig": "3g.71gb", "compute_mode": "prohibited", "ecc_uncorrected": 3},
        LIMITED,
        {
            "gpu.mig": ("limited", "MIG is on for GPU 0"),
            "gpu.compute-mode": ("limited", "prohibited"),
            "gpu.memory-health": ("limited", "3 uncorrected"),
        },
    ),
    (
        {
            "persistence": False,
            "compute_mode": "exclusive_process",
            "remap_pending": True,
            "bar1_bytes": 256 << 20,
            "bar1_base_bytes": 255 << 20,
            "driver_version": "550.54.15",
        },
        LIMITED,
        {
            "gpu.persistence": ("limited", "persistence off on GPU 0"),
            "gpu.compute-mode": ("limited", "exclusive-process"),
            "gpu.memory-health": ("limited", "is pending until a reset"),
            "gpu.bar1": ("limited", "BAR1"),
            "parking.calls": ("missing", "550.54.15 cannot park"),
        },
    ),
    ({"remap_failure": True}, BROKEN, {"gpu.memory-health": ("broken", "could not be remapped")}),
]


@pytest.mark.parametrize(("settings", "code", "expected"), SETTINGS)
def test_a_setting_of_the_gpu_is_reported(
    clinic: Clinic, settings: dict[str, str | int | bool], code: int, expected: Expected
) -> None:
    clinic.gpu.set(**settings)
    answer = clinic.ask()
    for check, (state, says) in expected.items():
        assert answer.state(check) == state
        assert says in answer.seen(check)
        assert answer.checks[check]["fix"]
        assert answer.checks[check]["means"]
    assert answer.code == code


def test_mig_without_an_instance_leaves_cuda_nothing(clinic: Clinic) -> None:
    clinic.gpu.set(mig="none")
    answer = clinic.ask()
    assert answer.state("driver.cuda") == "broken"
    assert "gpu.mig" in answer.checks["driver.cuda"]["fix"]
    assert "without an instance" in answer.seen("gpu.mig")
    assert answer.code == BROKEN


def test_one_of_several_gpus_is_named(two_virtual_gpus: VirtualGpu, tmp_path: Path) -> None:
    two_virtual_gpus.set(gpu=1, mig="3g.71gb")
    assert Clinic(two_virtual_gpus, tmp_path).ask().seen("gpu.mig") == "MIG is on for GPU 1 of 2"


class TestTheDriverIsInTrouble:
    def test_a_call_that_never_returns(self, clinic: Clinic) -> None:
        """The answer comes all the same, and names the call; what needs no driver is still told."""
        clinic.gpu.fail("nvmlInit*", hang=True)
        answer = clinic.ask("--deadline", LONG)
        assert (answer.verdict, answer.code) == ("broken", BROKEN)
        assert answer.state("driver.nvml") == "broken"
        assert "nvmlInit did not answer" in answer.seen("driver.nvml")
        assert answer.state("permissions.pidfd") == "ok"

    def test_one_gpu_hangs(self, two_virtual_gpus: VirtualGpu, tmp_path: Path) -> None:
        two_virtual_gpus.fail("nvmlDeviceGetMemoryInfo*", gpu=1, hang=True)
        answer = Clinic(two_virtual_gpus, tmp_path).ask("--deadline", LONG)
        assert answer.state("driver.nvml") == "broken"
        assert answer.seen("driver.nvml").startswith("GPU 1: timeout")

    def test_a_lost_gpu(self, clinic: Clinic) -> None:
        clinic.gpu.fail("nvmlDeviceGetMemoryInfo*", error="GPU_IS_LOST")
        answer = clinic.ask()
        assert answer.code == BROKEN
        assert answer.checks["driver.nvml"]["command"] == "vram reset 0"

    def test_versions_that_differ(self, clinic: Clinic) -> None:
        clinic.gpu.fail("nvmlInit*", error="LIB_RM_VERSION_MISMATCH")
        answer = clinic.ask()
        assert answer.state("driver.versions") == "broken"
        assert "driver.versions" in answer.checks["driver.nvml"]["fix"]

    def test_cuda_does_not_start(self, clinic: Clinic) -> None:
        clinic.gpu.fail("cuInit", error=802)
        answer = clinic.ask()
        assert answer.state("driver.cuda") == "broken"
        assert "CUDA error 802" in answer.seen("driver.cuda")
        assert "fabric manager" in answer.checks["driver.cuda"]["fix"]
        assert answer.state("parking.calls") == "missing"
        assert answer.state("driver.nvml") == "ok"

    def test_cuda_hangs(self, clinic: Clinic) -> None:
        clinic.gpu.fail("cuInit", hang=True)
        answer = clinic.ask("--deadline", LONG)
        assert answer.code == BROKEN
        assert answer.seen("driver.cuda") == "cuInit did not answer in time"


def test_target_processes(clinic: Clinic) -> None:
    """One that nobody prepared and that is larger than host memory, one with an agent, one under a tracer."""
    clinic.gpu.set(total_bytes=8 << 40)
    large = clinic.holder(7 << 40)
    code = (
        "import ctypes, sys; sys.argv[1:] = ['0', '0']; import runpy, vram; vram.agent(); "
        f"runpy.run_path({str(HOLDER)!r}, run_name='__main__')"
    )
    with_agent = clinic.start([sys.executable, "-c", code])
    traced = clinic.holder(CUDA_INJECTION64_PATH="/opt/tool.so")
    answer = clinic.ask()
    assert answer.state("reaching.python") == "ok"
    lines = {line.split()[1]: line for line in answer.checks["reaching.python"]["details"]}
    assert set(lines) == {str(each.pid) for each in (large, with_agent, traced)}
    assert "by agent" in lines[str(with_agent.pid)]
    if sys.version_info < (3, 14):  # that can be asked by sys.remote_exec
        assert "by ptrace" in lines[str(large.pid)]
        assert "it has not called vram.agent()" in lines[str(large.pid)]
    assert answer.state("parking.room") == "limited"
    assert answer.seen("parking.room").startswith(f"pid {large.pid} has 7.0 TiB")
    assert answer.state("reaching.cupti") == "limited"
    assert f"pid {traced.pid}: " in answer.checks["reaching.cupti"]["details"][0]
    assert "/opt/tool.so" in answer.checks["reaching.cupti"]["details"][0]


def test_mps_is_known_by_its_living_daemon(clinic: Clinic, tmp_path: Path) -> None:
    """A folder that an MPS left behind is no MPS."""
    folder = tmp_path / "mps"
    folder.mkdir()
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    answer = clinic.ask(CUDA_MPS_PIPE_DIRECTORY=str(folder))
    assert answer.seen("gpu.mps") == f"MPS daemon {os.getpid()} serves 0 clients"
    gone = subprocess.Popen(["true"])
    gone.wait()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{gone.pid}\n")
    files = LocalSystemInfo(environment={"CUDA_MPS_PIPE_DIRECTORY": str(folder)}).host_files()
    assert check_mps(with_host_files(mps=files.mps)).state == "ok"


def test_under_windows_driver(native_libraries: Path, tmp_path: Path) -> None:
    """As in WSL2: what cannot be had there is said, and nothing else is held against the host."""
    with VirtualGpu.create(wddm=True) as gpu:
        answer = Clinic(gpu, tmp_path).ask(PATH="/usr/bin:/bin")
    assert answer.state("place.wsl") == "limited"
    assert answer.state("parking.calls") == "missing"
    assert answer.state("driver.nvml") == "ok"
    assert answer.code == LIMITED


class TestRecords:
    def test_a_folder_that_is_open_to_others(self, clinic: Clinic) -> None:
        (clinic.state / "vram").mkdir()
        (clinic.state / "vram").chmod(0o777)
        answer = clinic.ask()
        assert (answer.state("vram.records"), answer.code) == ("broken", BROKEN)
        assert "not yours alone" in answer.seen("vram.records")

    def test_a_log_that_is_a_link(self, state_home: Path, tmp_path: Path) -> None:
        (state_home / "vram").mkdir(mode=0o700)
        (state_home / "vram" / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
        assert check_records(facts(records=read_records())).state == "broken"

    def test_a_relative_state_home_is_not_used(
        self, state_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the standard says, and as the audit log does."""
        monkeypatch.setenv("XDG_STATE_HOME", "here")
        monkeypatch.setenv("HOME", str(state_home))
        records = read_records()
        assert records.path.startswith(str(state_home))
        assert check_records(facts(records=records)).state == "ok"

    @needs("root", detail="only root can give it away")
    def test_a_folder_of_somebody_else(self, state_home: Path) -> None:
        (state_home / "vram").mkdir(mode=0o700)
        os.chown(state_home / "vram", 65534, 65534)
        assert check_records(facts(records=read_records())).state == "broken"

    @pytest.fixture
    def state_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        (tmp_path / "state").mkdir(mode=0o700)
        return tmp_path / "state"


@pytest.fixture(scope="module")
def without_driver(no_driver: Callable[..., subprocess.CompletedProcess[str]]) -> Told:
    require("no-driver")
    return told(no_driver("--json"))


class TestNoDriver:
    def test_it_says_so(self, without_driver: Told) -> None:
        assert (without_driver.verdict, without_driver.code) == ("no-driver", NO_DRIVER)
        assert without_driver.state("driver.present") == "missing"

    def test_what_needs_no_driver_is_told_all_the_same(self, without_driver: Told) -> None:
        assert without_driver.state("permissions.pidfd") == "ok"
        assert without_driver.state("vram.python") == "ok"

    def test_nothing_else_is_called_broken_for_it(self, without_driver: Told) -> None:
        """One cause, one complaint."""
        about_gpus = {
            name: check["state"] for name, check in without_driver.checks.items() if name.startswith("gpu.")
        }
        assert set(about_gpus.values()) == {"not-applicable"}
        assert without_driver.state("driver.cuda") == "not-applicable"
        assert without_driver.state("parking.calls") == "not-applicable"


def test_only_what_bears_on_one_command(clinic: Clinic) -> None:
    clinic.gpu.set(mig="3g.71gb")
    answer = clinic.ask("--for", "park")
    assert {"parking.room", "gpu.mig"} <= set(answer.checks)
    assert "driver.tool" not in answer.checks
    assert answer.code == LIMITED


def test_words_that_are_wrong(clinic: Clinic) -> None:
    done = clinic.run("--for", "fly")
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
    assert clinic.run("--deadline", "0s").returncode == 2
