"""The driver's library, read where a deadline can end it: figures, failures, hangs, loss."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.needs import skip_without
from tests.patience import PATIENCE_S
from tests.probes.conftest import PROGRAM, facts, said, statuses, take
from vram.children import Inbox
from vram.host.local.nvml import LocalNvml, observation
from vram.host.local.nvml_child import Reader
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import Observation, Survey
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

# What a test waits for where a call hangs: long enough for all the others on a busy machine.
HUNG_S = "4"


def test_an_idle_gpu(virtual_gpu: VirtualGpu) -> None:
    survey = take(virtual_gpu)
    assert said(survey, "nvml.init") == [Observation(probe="nvml.init")]
    ((_, driver),) = facts(survey, DriverFacts)
    assert driver == DriverFacts("580.159.04", "580.159.04", None, "13.0", virtual=True)
    ((_, gpu),) = facts(survey, GpuFacts)
    assert (gpu.minor, gpu.virtual, gpu.compute_mode, gpu.mig_enabled) == (0, True, "default", False)
    ((_, memory),) = facts(survey, MemoryFacts)
    assert memory.used == 0
    assert memory.v1_used == memory.reserved
    assert memory.total == memory.free + memory.reserved
    assert facts(survey, ChargeFacts) == []


def test_charges_name_processes_for_good(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "contexts.one_by_one") as demo:
        demo.go()
        survey = take(virtual_gpu)
        (pid,) = set(demo.pids.values())
        ((charge, lists),) = facts(survey, ChargeFacts)
        assert (charge.process.pid, charge.nbytes, lists.lists) == (pid, 518 * 1024**2, ("compute",))
        assert charge.process.started_at is not None


@pytest.mark.fault(5)
def test_a_dead_pid_has_no_start(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan") as demo:
        demo.kill("parent")
        ((charge, _),) = facts(take(virtual_gpu), ChargeFacts)
        assert charge.process.pid == demo.pids["parent"]
        assert charge.process.started_at is None
        assert charge.nbytes > demo.nbytes


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"utilization": 100, "recovery_action": 1}, "gpu-reset"),
        ({"utilization": 100, "recovery_action": 0}, "none"),
        ({"utilization": 100, "recovery_action": 99}, None),  # of a newer driver
        ({"utilization": 100}, None),
        ({"recovery_action": 1}, "gpu-reset"),  # an idle one is asked, too
    ],
)
def test_the_drivers_advice_is_read(
    virtual_gpu: VirtualGpu, settings: dict[str, int], advice: str | None
) -> None:
    virtual_gpu.set(**settings)
    ((_, gpu),) = facts(take(virtual_gpu), GpuFacts)
    assert gpu.recovery_action == advice


@pytest.mark.parametrize("error", ["FUNCTION_NOT_FOUND", "NOT_SUPPORTED", "UNKNOWN"])
def test_a_driver_without_field_values_is_no_error(virtual_gpu: VirtualGpu, error: str) -> None:
    virtual_gpu.set(utilization=100, recovery_action=1)
    virtual_gpu.fail("nvmlDeviceGetFieldValues", error=error)
    survey = take(virtual_gpu)
    ((_, gpu),) = facts(survey, GpuFacts)
    assert (gpu.utilization, gpu.recovery_action) == (100, None)
    assert all(each.status == "ok" for each in said(survey, "nvml.gpu"))


@pytest.mark.parametrize("mode", [[], ["--thread"], ["--cuda"]], ids=["fork", "thread", "cuda"])
def test_every_way_to_start_a_reader_sees_the_same(two_virtual_gpus: VirtualGpu, mode: list[str]) -> None:
    survey = take(two_virtual_gpus, *mode)
    assert [observation.gpu for observation, _ in facts(survey, MemoryFacts)] == [0, 1]


def test_version_1_serves_where_version_2_is_unknown(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo_v2", error="FUNCTION_NOT_FOUND")
    ((_, memory),) = facts(take(virtual_gpu), MemoryFacts)
    assert memory.reserved is None
    assert memory.used == memory.v1_used > 0


class Listing:
    """A driver with one GPU, whose compute list names other pids each time that it is read."""

    def __init__(self, *lists: list[int]) -> None:
        self._lists = iter(lists)
        self.nvmlInit = self.nvmlDeviceGetGraphicsRunningProcesses = lambda *_: []
        self.nvmlDeviceGetMPSComputeRunningProcesses = lambda *_: []
        self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = self.nvmlDeviceGetUUID = str
        self.nvmlDeviceGetMemoryInfo = lambda *_: SimpleNamespace(total=9, free=4, used=5)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in next(self._lists)]


def statements(library: Listing) -> list[Observation]:
    ours, theirs = os.pipe()
    Reader(library, theirs).read(set())  # type: ignore[arg-type]
    os.close(theirs)
    with open(ours, "rb") as file:
        messages = Inbox().add(file.read())
    return [observation(message[1]) for message in messages if message[0] == "saw"]


def charges_told(*lists: list[int]) -> list[ChargeFacts]:
    told = statements(Listing(*lists))
    return [each.facts for each in told if isinstance(each.facts, ChargeFacts)]


def test_a_library_that_answers_zeros_and_lists_pids_that_are_none() -> None:
    """As the owner of a Jetson Orin reported: then the kernel's figures count, and the pids do not."""
    library = Listing([0, os.getpid(), 2**31 - 1])
    library.nvmlDeviceGetMemoryInfo = lambda *_, **__: SimpleNamespace(total=0, free=0, used=0, reserved=0)
    told = statements(library)
    (memory,) = [each.facts for each in told if isinstance(each.facts, MemoryFacts)]
    assert (memory.counted_by, memory.total > 0) == ("kernel", True)
    pids = [each.process.pid for each in told if isinstance(each.facts, ChargeFacts) and each.process]
    assert pids == [os.getpid()]


def test_a_total_below_that_of_version_1_is_a_limit_whatever_else_is_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Version 615 answers version 2 for the control group; how its parts are adjusted was not measured."""
    monkeypatch.setenv("VRAM_VIRTUAL_GPU", str(tmp_path))
    library = Listing([])
    library.nvmlSystemGetDriverVersion = lambda: "615.71.09"
    library.nvmlDeviceGetMemoryInfo = lambda _, version=0: SimpleNamespace(
        total=40 if version else 100, free=50, used=45, reserved=0
    )
    (memory,) = [each.facts for each in statements(library) if isinstance(each.facts, MemoryFacts)]
    assert (memory.total, memory.free, memory.used, memory.device_total) == (40, 40, 40, 100)
    assert (memory.limit, memory.v1_used) == (None, None)


@pytest.mark.fault(11)
def test_a_dead_pid_that_is_listed_no_more_ended_while_it_was_read() -> None:
    """One whose memory somebody keeps is listed again; the living are not asked about twice."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert [each.ended for each in charges_told([gone.pid], [])] == [True]
    assert [each.ended for each in charges_told([gone.pid], [gone.pid])] == [False]
    assert [each.ended for each in charges_told([os.getpid()])] == [False]


def test_older_process_lists_serve_where_newer_are_unknown(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGet*RunningProcesses_v3", error="FUNCTION_NOT_FOUND")
    with DemoProgram(virtual_gpu, "contexts.one_by_one") as demo:
        demo.go()
        ((charge, _),) = facts(take(virtual_gpu), ChargeFacts)
        assert charge.nbytes == 518 * 1024**2


@pytest.mark.fault(7)
@pytest.mark.parametrize(("code", "status"), [("UNKNOWN", "failed"), ("NO_PERMISSION", "denied")])
@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_one_list_that_fails_is_said(virtual_gpu: VirtualGpu, kind: str, code: str, status: str) -> None:
    """Whoever is on it only would look as if nobody charged it with anything."""
    virtual_gpu.fail(f"nvmlDeviceGet{kind}RunningProcesses*", error=code)
    survey = take(virtual_gpu)
    (lists,) = said(survey, "nvml.processes", gpu=0)
    assert (lists.status, lists.facts) == (status, None)
    assert kind.removesuffix("Compute").lower() in lists.message.lower()
    assert {run.name: run.status for run in survey.probes}["nvml"] == status


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])
def test_a_list_that_the_driver_does_not_have_is_no_gap(virtual_gpu: VirtualGpu, code: str) -> None:
    for kind in ("Graphics", "MPSCompute"):
        virtual_gpu.fail(f"nvmlDeviceGet{kind}RunningProcesses*", error=code)
    assert said(take(virtual_gpu), "nvml.processes", gpu=0) == []


def test_a_driver_without_any_list_says_so(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGet*RunningProcesses*", error="NOT_SUPPORTED")
    assert statuses(take(virtual_gpu), 0)["nvml.processes"] == "unsupported"


@pytest.mark.fault(7)
def test_what_is_not_supported_is_unknown(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetBAR1MemoryInfo", error="NOT_SUPPORTED")
    virtual_gpu.fail("nvmlDeviceGetEccMode", error="NO_PERMISSION")
    ((_, gpu),) = facts(take(virtual_gpu), GpuFacts)
    assert (gpu.bar1_total, gpu.bar1_used, gpu.ecc_enabled) == (None, None, None)


@pytest.mark.fault(7)
def test_a_sentinel_is_unknown_bytes(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", sentinel=True)
    with DemoProgram(virtual_gpu, "contexts.one_by_one") as demo:
        demo.go()
        ((charge, _),) = facts(take(virtual_gpu), ChargeFacts)
        assert charge.nbytes is None


@pytest.mark.fault(7)
def test_impossible_memory_is_refused(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.fail("nvmlDeviceGetMemoryInfo*", gpu=0, sentinel=True)
    survey = take(two_virtual_gpus)
    assert statuses(survey, 0)["nvml.memory"] == "failed"
    assert [observation.gpu for observation, _ in facts(survey, MemoryFacts)] == [1]


@pytest.mark.fault(1, 2)
@pytest.mark.parametrize("code", ["GPU_IS_LOST", "RESET_REQUIRED"])
@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetGraphics*"])
def test_a_gpu_lost_in_the_middle_costs_only_itself(
    two_virtual_gpus: VirtualGpu, call: str, code: str
) -> None:
    two_virtual_gpus.fail(call, gpu=0, error=code)
    survey = take(two_virtual_gpus)
    assert "lost" in statuses(survey, 0).values()
    assert set(statuses(survey, 1).values()) == {"ok"}
    assert {run.name: run.status for run in survey.probes}["nvml"] == "lost"


@pytest.mark.fault(8)
@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("DRIVER_NOT_LOADED", "unsupported", "driver is not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "failed", "different versions"),
        ("NO_PERMISSION", "denied", ""),
        ("UNKNOWN", "failed", ""),
    ],
)
def test_a_failing_init_says_why(virtual_gpu: VirtualGpu, code: str, status: str, words: str) -> None:
    virtual_gpu.fail("nvmlInit*", error=code)
    survey = take(virtual_gpu)
    (init,) = said(survey, "nvml.init")
    assert init.status == status
    assert words in init.message
    assert len(facts(survey, DriverFacts)) == 1
    assert facts(survey, GpuFacts) == []


def test_without_a_driver_the_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([sys.executable, PROGRAM], stdout=subprocess.PIPE, check=True)
    survey = msgspec.json.decode(done.stdout, type=Survey)
    (init,) = said(survey, "nvml.init")
    if init.status == "ok":
        skip_without("no-driver", "this machine has a driver")
    assert (init.status, "libnvidia-ml.so.1" in init.message) == ("unsupported", True)


@pytest.mark.fault(3)
def test_a_call_that_hangs_costs_only_its_gpu(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.fail("nvmlDeviceGetUUID", gpu=0, hang=True)
    survey = take(two_virtual_gpus, "--deadline", HUNG_S)
    (hung,) = said(survey, "nvml.gpu", gpu=0)
    assert hung.status == "timeout"
    assert "nvmlDeviceGetUUID" in hung.message
    assert set(statuses(survey, 1).values()) == {"ok"}


@pytest.mark.fault(3)
def test_memory_is_known_where_only_the_lists_hang(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", hang=True)
    survey = take(virtual_gpu, "--deadline", HUNG_S)
    assert statuses(survey, 0) == {"nvml.gpu": "ok", "nvml.memory": "ok", "nvml.processes": "timeout"}


@pytest.mark.fault(3)
def test_init_that_hangs_is_one_statement(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlInit*", hang=True)
    survey = take(virtual_gpu, "--deadline", HUNG_S)
    (init,) = said(survey, "nvml.init")
    assert init.status == "timeout"


def test_slow_is_not_hung(two_virtual_gpus: VirtualGpu) -> None:
    """A GPU that takes its time is told whole, and does not keep the next one waiting."""
    two_virtual_gpus.fail("nvmlDeviceGetName", gpu=0, slow_s=4)
    survey = take(two_virtual_gpus, "--deadline", str(PATIENCE_S))
    assert set(statuses(survey, 0).values()) == set(statuses(survey, 1).values()) == {"ok"}
    assert [observation.gpu for observation, _ in facts(survey, MemoryFacts)] == [1, 0]


@pytest.mark.fault(3)
def test_many_gpus_that_hang_end_by_the_deadline(native_libraries: object) -> None:
    with VirtualGpu.create(gpus=6) as gpu:
        gpu.fail("nvmlDeviceGetName", hang=True)
        survey = take(gpu, "--deadline", HUNG_S)
        assert [statuses(survey, index)["nvml.gpu"] for index in range(6)] == ["timeout"] * 6


def test_what_was_said_in_time_counts(virtual_gpu: VirtualGpu) -> None:
    """Whoever comes late to listen, because there were many files to look at, misses nothing."""
    code = (
        "import os, time; from vram.host.local.nvml import LocalNvml; nvml = LocalNvml();"
        f"reading = nvml.read({PATIENCE_S}); (pid,) = nvml.own_pids();"
        "os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT);"
        "now = time.monotonic; time.monotonic = lambda: now() + 1e6;"
        "print(*(each.probe for each in reading))"
    )
    done = virtual_gpu.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout.split() == [b"nvml.init", b"nvml.driver", b"nvml.gpu", b"nvml.memory"]


@pytest.mark.fault(3)
def test_no_reader_outlives_its_survey(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.fail("nvmlDeviceGetName", gpu=0, hang=True)
    with _rounds(two_virtual_gpus, "--deadline", HUNG_S, "--rounds", "2") as program:
        _next(program)
        children = f"/proc/{program.pid}/task/{program.pid}/children"
        with open(children) as file:
            assert file.read() == ""
        program.kill()


@pytest.mark.fault(3)
def test_a_reader_that_cannot_die_is_not_joined_by_others(two_virtual_gpus: VirtualGpu) -> None:
    """Nothing piles up on a GPU that swallows its readers; when its calls return, it is read again."""
    two_virtual_gpus.fail("nvmlDeviceGetUUID", gpu=0, hang=True)
    options = ("--deadline", HUNG_S, "--rounds", "4", "--unkillable")
    with _rounds(two_virtual_gpus, *options) as program:
        first = _next(program)
        assert statuses(first, 0) == {"nvml.gpu": "timeout"}
        for _ in range(2):
            survey = _next(program, b"\n")
            (stuck,) = said(survey, "nvml.gpu", gpu=0)
            assert (stuck.status, "still hangs" in stuck.message) == ("timeout", True)
            assert set(statuses(survey, 1).values()) == {"ok"}
            # It is not waited for again: nobody spends a deadline on what is known to hang.
            assert {run.name: run.duration_s < 0.8 * float(HUNG_S) for run in survey.probes}["nvml"]
        two_virtual_gpus.clear_faults()
        assert set(statuses(_next(program, b"release\n"), 0).values()) == {"ok"}


def _rounds(gpu: VirtualGpu, *options: str) -> subprocess.Popen[bytes]:
    return gpu.popen([sys.executable, str(PROGRAM), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _next(program: subprocess.Popen[bytes], line: bytes = b"") -> Survey:
    program.stdin.write(line)
    program.stdin.flush()
    return msgspec.json.decode(program.stdout.readline(), type=Survey)


def test_a_reader_keeps_nothing_of_ours_open() -> None:
    """A reader that hangs for good must not hold our pipes or files."""
    inherited, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    reading = LocalNvml().read(30.0)
    os.close(write_end)
    assert os.read(inherited, 1) == b""  # would wait for as long as anybody has the other end
    list(reading)
    os.close(inherited)
