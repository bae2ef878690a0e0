"""The whole command on a virtual GPU, well and with every fault that the GPU can act out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.doctor.conftest import Clinic, Told, told
from tests.virtualgpu.conftest import HOLDER
from vram.report import schema
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

READY, NO_DRIVER, LIMITED, BROKEN = 0, 4, 7, 8
# Calls that hang take all of it; the others must have said their word by then, also on a busy machine.
LONG = "5"


def test_every_check_answers_and_fits_the_schema(clinic: Clinic) -> None:
    answer = clinic.ask()
    shipped = json.loads(schema.shipped("doctor").read_bytes())
    Draft202012Validator(shipped).validate(answer.raw)
    assert not [name for name, check in answer.checks.items() if check["state"] == "unknown"]
    assert answer.state("driver.cuda") == "ok"
    assert "it counts 1 GPU" in answer.checks["driver.cuda"]["details"]
    assert answer.seen("driver.nvml").startswith("NVML answers for 1 GPU")


def test_the_exit_code_is_the_verdict(clinic: Clinic) -> None:
    answer = clinic.ask()
    counted = {check["state"] for check in answer.checks.values() if not check["optional"]}
    expected = "ready" if counted <= {"ok", "not-applicable"} else "limited"
    assert (answer.verdict, answer.code) == (expected, {"ready": READY, "limited": LIMITED}[expected])


def test_asking_makes_no_context_and_no_file(clinic: Clinic) -> None:
    """Whoever tried to make a context, or to move somebody, would wait here for good."""
    for calls in ("cuCtxCreate*", "cuDevicePrimaryCtx*", "cuMem*", "cuCheckpointProcess*"):
        clinic.gpu.fail(calls, hang=True)
    answer = clinic.ask()
    assert answer.state("driver.cuda") == "ok"
    assert answer.state("parking.calls") == "ok"
    assert list(clinic.state.iterdir()) == []
    assert list(clinic.runtime.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "check", "state", "says"),
    [
        ({"mig": "3g.71gb"}, "gpu.mig", "limited", "MIG divides GPU 0"),
        ({"persistence": False}, "gpu.persistence", "limited", "persistence off on GPU 0"),
        ({"compute_mode": "exclusive_process"}, "gpu.compute-mode", "limited", "exclusive-process"),
        ({"compute_mode": "prohibited"}, "gpu.compute-mode", "limited", "prohibited"),
        ({"remap_pending": True}, "gpu.memory-health", "limited", "waits for a reset"),
        ({"remap_failure": True}, "gpu.memory-health", "broken", "could not be remapped"),
        ({"ecc_uncorrected": 3}, "gpu.memory-health", "limited", "3 uncorrected"),
        ({"bar1_bytes": 256 << 20, "bar1_base_bytes": 255 << 20}, "gpu.bar1", "limited", "BAR1"),
        ({"driver_version": "550.54.15"}, "parking.calls", "missing", "550.54.15 cannot park"),
    ],
)
def test_a_setting_of_the_gpu_is_told(
    clinic: Clinic, settings: dict[str, str | int | bool], check: str, state: str, says: str
) -> None:
    clinic.gpu.set(**settings)
    answer = clinic.ask()
    assert answer.state(check) == state
    assert says in answer.seen(check)
    assert answer.checks[check]["fix"]
    assert answer.checks[check]["means"]
    if not answer.checks[check]["optional"]:
        assert answer.code == (BROKEN if state == "broken" else LIMITED)


def test_mig_without_an_instance_leaves_cuda_nothing(clinic: Clinic) -> None:
    clinic.gpu.set(mig="none")
    answer = clinic.ask()
    assert answer.state("driver.cuda") == "broken"
    assert "gpu.mig" in answer.checks["driver.cuda"]["fix"]
    assert "without an instance" in answer.seen("gpu.mig")
    assert answer.code == BROKEN


def test_one_of_several_gpus_is_named(two_virtual_gpus: VirtualGpu, tmp_path: Path) -> None:
    two_virtual_gpus.set(gpu=1, mig="3g.71gb")
    assert Clinic(two_virtual_gpus, tmp_path).ask().seen("gpu.mig") == "MIG divides GPU 1 of 2"


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

    @pytest.mark.parametrize(
        ("code", "says"), [(802, "fabric manager"), (803, "driver.versions"), (719, "kernel's log")]
    )
    def test_cuda_does_not_start(self, clinic: Clinic, code: int, says: str) -> None:
        clinic.gpu.fail("cuInit", error=code)
        answer = clinic.ask()
        assert answer.state("driver.cuda") == "broken"
        assert f"CUDA error {code}" in answer.seen("driver.cuda")
        assert says in answer.checks["driver.cuda"]["fix"]
        assert answer.state("parking.calls") == "missing"
        assert answer.state("driver.nvml") == "ok"

    def test_cuda_hangs(self, clinic: Clinic) -> None:
        clinic.gpu.fail("cuInit", hang=True)
        answer = clinic.ask("--deadline", LONG)
        assert answer.code == BROKEN
        assert answer.seen("driver.cuda") == "cuInit did not answer in time"


class TestPythonProcesses:
    def test_one_that_nobody_prepared(self, clinic: Clinic) -> None:
        holder = clinic.holder(GIB)
        answer = clinic.ask()
        if sys.version_info >= (3, 14):
            pytest.skip("this Python can be asked by sys.remote_exec")
        assert answer.state("reaching.python") == "ok"
        (line,) = answer.checks["reaching.python"]["details"]
        assert line.startswith(f"pid {holder.pid} ")
        assert "by ptrace" in line
        assert "it has not called vram.agent()" in line

    def test_one_with_an_agent(self, clinic: Clinic) -> None:
        code = (
            "import ctypes, sys; sys.argv[1:] = ['0', '0']; import runpy, vram; vram.agent(); "
            f"runpy.run_path({str(HOLDER)!r}, run_name='__main__')"
        )
        holder = clinic.start([sys.executable, "-c", code])
        answer = clinic.ask()
        assert answer.state("reaching.python") == "ok"
        assert f"pid {holder.pid} " in answer.checks["reaching.python"]["details"][0]
        assert "by agent" in answer.checks["reaching.python"]["details"][0]

    def test_host_memory_is_compared_with_the_largest(self, clinic: Clinic) -> None:
        clinic.gpu.set(total_bytes=8 << 40)
        holder = clinic.holder(7 << 40)
        answer = clinic.ask()
        assert answer.state("parking.room") == "limited"
        assert answer.seen("parking.room").startswith(f"pid {holder.pid} has 7.0 TiB")

    def test_a_tool_for_tracing_is_named(self, clinic: Clinic) -> None:
        holder = clinic.holder(CUDA_INJECTION64_PATH="/opt/tool.so")
        answer = clinic.ask()
        assert answer.state("reaching.cupti") == "limited"
        assert f"pid {holder.pid}: " in answer.checks["reaching.cupti"]["details"][0]
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
    assert clinic.ask(CUDA_MPS_PIPE_DIRECTORY=str(folder)).state("gpu.mps") == "ok"


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

    def test_a_log_that_is_a_link(self, clinic: Clinic, tmp_path: Path) -> None:
        (clinic.state / "vram").mkdir(mode=0o700)
        (clinic.state / "vram" / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
        assert clinic.ask().state("vram.records") == "broken"

    def test_a_relative_state_home_is_not_used(self, clinic: Clinic) -> None:
        """As the standard says, and as the audit log does."""
        assert clinic.ask(XDG_STATE_HOME="here", HOME=str(clinic.state)).state("vram.records") == "ok"


class TestRoutes:
    def test_pythons_of_our_own_are_visited(self, clinic: Clinic) -> None:
        if sys.version_info >= (3, 14):
            pytest.skip("this Python is reached by sys.remote_exec")
        answer = clinic.ask("--for", "trim", "--deadline", LONG)
        assert answer.state("reaching.routes") == "ok", answer.checks["reaching.routes"]
        assert not list(clinic.runtime.glob("vram/visit-*"))


class TestNoDriver:
    @pytest.fixture
    def answer(self, no_driver: Callable[..., subprocess.CompletedProcess[str]]) -> Told:
        if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):
            pytest.skip("this machine has a driver")
        return told(no_driver("--json"))

    def test_it_says_so(self, answer: Told) -> None:
        assert (answer.verdict, answer.code) == ("no-driver", NO_DRIVER)
        assert answer.state("driver.present") == "missing"

    def test_what_needs_no_driver_is_told_all_the_same(self, answer: Told) -> None:
        assert answer.state("permissions.pidfd") == "ok"
        assert answer.state("vram.python") == "ok"

    def test_nothing_else_is_called_broken_for_it(self, answer: Told) -> None:
        """One cause, one complaint."""
        about_gpus = {
            name: check["state"] for name, check in answer.checks.items() if name.startswith("gpu.")
        }
        assert set(about_gpus.values()) == {"not-applicable"}
        assert answer.state("driver.cuda") == "not-applicable"
        assert answer.state("parking.calls") == "not-applicable"


def test_only_what_bears_on_one_command(clinic: Clinic) -> None:
    answer = clinic.ask("--for", "park")
    assert "parking.room" in answer.checks
    assert "driver.tool" not in answer.checks
    clinic.gpu.set(mig="3g.71gb")
    assert clinic.ask("--for", "park").code == LIMITED
    assert "gpu.mig" not in clinic.ask("--for", "kill").checks


def test_words_that_are_wrong(clinic: Clinic) -> None:
    done = clinic.run("--for", "fly")
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
    assert clinic.run("--deadline", "0").returncode == 2
