"""A divided GPU: MIG devices through NVML, and programs that run inside one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.virtualgpu.conftest import HOLDER, Hold, Holder, ask
from vram.errors import UsageError
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.config import mig_devices, profiles

pytestmark = pytest.mark.native

TOTAL, RESERVED = 143771 * MIB, 615 * MIB + 64 * 1024
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
OUT_OF_MEMORY, NO_DEVICE = 2, 100

SETUP = """
def instances(gpu=0):
    found = []
    for at in range(n.nvmlDeviceGetMaxMigDeviceCount(handle(gpu))):
        try:
            found.append(n.nvmlDeviceGetMigDeviceHandleByIndex(handle(gpu), at))
        except n.NVMLError as error:
            assert error.value == 6
    return found

def used(device):
    return n.nvmlDeviceGetMemoryInfo(device).used

def pids(device):
    listed = n.nvmlDeviceGetComputeRunningProcesses_v3(device)
    return [[each.pid, each.usedGpuMemory, each.gpuInstanceId, each.computeInstanceId] for each in listed]
"""


@pytest.fixture
def divided(native_libraries: Path) -> Iterator[VirtualGpu]:
    """One instance of its own, and one that two compute instances share."""
    with VirtualGpu.create(mig="3g.71gb,1c.2g.35gb+1c.2g.35gb") as gpu:
        yield gpu


def uuids(gpu: VirtualGpu) -> list[str]:
    found: list[str] = ask(gpu, "[n.nvmlDeviceGetUUID(each) for each in instances()]", SETUP)
    return found


def inside(hold: Hold, gpu: VirtualGpu, uuid: str, nbytes: int) -> Holder:
    return hold(gpu, nbytes, 0, env={"CUDA_VISIBLE_DEVICES": uuid})


def answer(gpu: VirtualGpu, uuid: str | None, program: str) -> Any:
    """What *program* prints on a MIG device, with the driver loaded as ``cuda``."""
    lines = ("import ctypes, json", "cuda = ctypes.CDLL('libcuda.so.1')", program)
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if uuid is not None:
        env["CUDA_VISIBLE_DEVICES"] = uuid
    done = gpu.run([sys.executable, "-c", "\n".join(lines)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_profiles_are_named_as_the_chip_s_are() -> None:
    assert list(profiles(TOTAL)) == ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]
    assert list(profiles(40 * GIB)) == [
        "1g.5gb",
        "1g.10gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
        "7g.40gb",
    ]


@pytest.mark.parametrize(
    "spec",
    ["", "3g", "3g.70gb", "4g.71gb,4g.71gb", "8g.141gb", "3c.2g.35gb", "1c.2g.35gb+1g.18gb", "1g.18gb,"],
)
def test_what_no_gpu_can_be_divided_into_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        mig_devices(spec, TOTAL, RESERVED)


def test_instances_never_have_more_than_the_gpu() -> None:
    made = mig_devices(",".join(["1g.18gb"] * 7), TOTAL, RESERVED)
    assert sorted(each.gpu_instance for each in made) == list(range(7, 14))
    assert sum(each.nbytes for each in made) <= TOTAL - RESERVED


def test_mig_devices_are_found_from_their_gpu_and_back(divided: VirtualGpu) -> None:
    told = ask(
        divided,
        "[[n.nvmlDeviceGetName(d), n.nvmlDeviceGetGpuInstanceId(d), n.nvmlDeviceGetComputeInstanceId(d),"
        " n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)),"
        " n.nvmlDeviceIsMigDeviceHandle(d).value,"
        " n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(d))) == n.nvmlDeviceGetUUID(d)]"
        " for d in instances()]",
        SETUP,
    )
    assert told == [
        ["NVIDIA H200 (virtual) MIG 3g.71gb", 1, 0, 0, 1, True],
        ["NVIDIA H200 (virtual) MIG 1c.2g.35gb", 3, 0, 0, 1, True],
        ["NVIDIA H200 (virtual) MIG 1c.2g.35gb", 3, 1, 0, 1, True],
    ]
    assert len(set(uuids(divided))) == 3


def test_what_a_mig_device_does_not_answer(divided: VirtualGpu) -> None:
    told = ask(
        divided,
        "[code(n.nvmlDeviceGetPersistenceMode, instances()[0]),"
        " code(n.nvmlDeviceGetUtilizationRates, instances()[0]),"
        " code(n.nvmlDeviceGetUtilizationRates, handle(0)),"
        " code(n.nvmlDeviceGetProcessUtilization, handle(0), 0),"
        " code(n.nvmlDeviceGetMigDeviceHandleByIndex, handle(0), 7),"
        " code(n.nvmlDeviceGetMigDeviceHandleByIndex, instances()[0], 0),"
        " code(n.nvmlDeviceGetGpuInstanceId, handle(0)),"
        " code(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle(0))]",
        SETUP,
    )
    assert told == [*[NOT_SUPPORTED] * 4, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_SUPPORTED, INVALID_ARGUMENT]


def test_memory_of_the_instances_adds_up_to_their_gpu_s(divided: VirtualGpu, hold: Hold) -> None:
    first, second, third = uuids(divided)
    a = inside(hold, divided, first, 4 * GIB)
    b = inside(hold, divided, second, 1 * GIB)
    c = inside(hold, divided, third, 2 * GIB)
    whole, listed, *parts = ask(
        divided,
        "[n.nvmlDeviceGetMemoryInfo(handle(0), version=n.nvmlMemory_v2).used, pids(handle(0)),"
        " *([used(d), pids(d)] for d in instances())]",
        SETUP,
    )
    assert [used for used, _ in parts][1:] == [parts[1][0]] * 2, "one memory, two compute instances"
    assert whole == parts[0][0] + parts[1][0]
    charges = [[4 * GIB, 1, 0], [1 * GIB, 3, 0], [2 * GIB, 3, 1]]
    lines = [
        [holder.pid, nbytes + 518 * MIB, *place]
        for holder, (nbytes, *place) in zip((a, b, c), charges, strict=True)
    ]
    assert listed == lines
    assert [pids for _, pids in parts] == [[line] for line in lines]


def test_an_instance_s_memory_is_all_a_program_gets(divided: VirtualGpu) -> None:
    program = """
context, pointer, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
codes.append(cuda.cuCtxSetCurrent(context))
codes.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(30 << 30)))
codes.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(8 << 30)))
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(json.dumps([codes, total.value]))
"""
    second = uuids(divided)[1]
    codes, total = answer(divided, second, program)
    assert codes == [0, 0, 0, 0, OUT_OF_MEMORY]
    assert total == mig_devices("2g.35gb", TOTAL, RESERVED)[0].nbytes


NAMES = """
count, name = ctypes.c_int(), ctypes.create_string_buffer(100)
uuid, whole = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
code = cuda.cuInit(0)
if not code:
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDeviceGetName(name, 100, 0)
    cuda.cuDeviceGetUuid_v2(uuid, 0)
    cuda.cuDeviceGetUuid(whole, 0)
print(json.dumps([code, count.value, name.value.decode(), bytes(uuid).hex(), bytes(whole).hex()]))
"""


def test_a_process_sees_one_mig_device_and_no_gpu_beside_it(native_libraries: Path) -> None:
    with VirtualGpu.create(gpus=2) as gpu:
        gpu.set(gpu=1, mig="1g.18gb,1g.18gb")
        first, second = ask(gpu, "[n.nvmlDeviceGetUUID(each) for each in instances(1)]", SETUP)
        legacy = ask(gpu, "'MIG-' + n.nvmlDeviceGetUUID(handle(1)) + '/8/0'")
        for chosen in (None, "0,1", f"{first},{second}", "1"):
            code, count, name, uuid, whole = answer(gpu, chosen, NAMES)
            assert (code, count, name) == (0, 1, "NVIDIA H200 (virtual) MIG 1g.18gb"), chosen
            assert uuid == first[4:].replace("-", "")
            assert whole != uuid
        for chosen in (second, legacy):
            assert answer(gpu, chosen, NAMES)[3] == second[4:].replace("-", "")


def test_a_divided_gpu_without_instances_is_no_device(native_libraries: Path) -> None:
    with VirtualGpu.create(mig="none") as gpu:
        assert answer(gpu, None, NAMES)[0] == NO_DEVICE
        assert ask(gpu, "instances()", SETUP) == []
        assert ask(gpu, "n.nvmlDeviceGetMigMode(handle(0))") == [1, 1]


def test_the_pending_mode_is_told_apart(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(mig_pending=True)
    assert ask(virtual_gpu, "n.nvmlDeviceGetMigMode(handle(0))") == [0, 1]


def test_without_privileges_only_mig_devices_answer(divided: VirtualGpu) -> None:
    divided.set(mig_restricted=True)
    told = ask(
        divided,
        "[code(n.nvmlDeviceGetMemoryInfo, handle(0)),"
        " code(n.nvmlDeviceGetComputeRunningProcesses_v3, handle(0)), used(instances()[0])]",
        SETUP,
    )
    assert told == [NO_PERMISSION, NO_PERMISSION, 0]


def test_an_exported_allocation_stays_in_its_instance(divided: VirtualGpu, hold: Hold) -> None:
    """Another instance cannot import it, and the instance that it is in has its bytes used."""
    program = """
import os, struct, sys
sys.path.insert(0, FOLDER)
import libcuda as c
c.start()
handle = c.create(64 << 20)
fd = ctypes.c_int()
c.call('cuMemExportToShareableHandle', ctypes.byref(fd), handle, 1, 0)
os.set_inheritable(fd.value, True)
other = dict(os.environ, CUDA_VISIBLE_DEVICES=OTHER)
import subprocess
child = "import sys; sys.path.insert(0, %r); import libcuda as c, ctypes; c.call('cuInit', 0);" % FOLDER
child += "h = ctypes.byref(ctypes.c_uint64());"
child += "print(c.code('cuMemImportFromShareableHandle', h, %d, 1))" % fd.value
codes = []
for where in (os.environ['CUDA_VISIBLE_DEVICES'], OTHER):
    env = dict(os.environ, CUDA_VISIBLE_DEVICES=where)
    codes.append(int(subprocess.run([sys.executable, '-c', child], env=env, pass_fds=[fd.value],
                                    capture_output=True, check=True).stdout))
print(json.dumps(codes))
"""
    first, second, _ = uuids(divided)
    words = f"FOLDER = {str(Path(__file__).parent)!r}\nOTHER = {second!r}\n"
    same, other = answer(divided, first, words + program)
    assert (same, other) == (0, 101)


def test_the_command_divides_its_gpus(native_libraries: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "vram",
        "virtual",
        "--mig",
        "1g.18gb",
        "--",
        sys.executable,
        str(HOLDER),
        "0",
        "0",
    ]
    done = subprocess.run(argv, input="", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = subprocess.run([*argv[:4], "--mig", "9g.1gb", "--", "true"], capture_output=True, text=True)
    assert (wrong.returncode, "not a MIG profile" in wrong.stderr) == (2, True)
