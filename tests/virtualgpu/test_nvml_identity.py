"""Which GPU it is, how it is found, and how it is set up."""

from __future__ import annotations

import pytest

from tests.virtualgpu.conftest import ask
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 2, 3, 6, 7


def test_its_name_says_virtual(virtual_gpu: VirtualGpu) -> None:
    assert ask(virtual_gpu, "n.nvmlDeviceGetName(handle(0))") == "NVIDIA H200 (virtual)"


def test_a_gpu_is_found_by_all_its_names(two_virtual_gpus: VirtualGpu) -> None:
    found = ask(
        two_virtual_gpus,
        "[n.nvmlDeviceGetIndex(one) for one in ways]",
        "h = handle(1)",
        "pci = n.nvmlDeviceGetPciInfo(h)",
        "uuid = n.nvmlDeviceGetUUID(h)",
        "ways = [n.nvmlDeviceGetHandleByUUID(uuid),"
        " n.nvmlDeviceGetHandleByUUIDV(uuid.encode(), n.NVML_UUID_TYPE_ASCII),"
        " n.nvmlDeviceGetHandleByUUIDV(bytes.fromhex(uuid[4:].replace('-', '')), n.NVML_UUID_TYPE_BINARY),"
        " n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h)),"
        " n.nvmlDeviceGetHandleByPciBusId(pci.busId),"
        " n.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),"
        " n.nvmlDeviceGetHandleByPciBusId(f'{pci.bus:x}:0.0')]",
    )
    assert found == [1] * 7


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("n.nvmlDeviceGetHandleByIndex, 2", INVALID_ARGUMENT),
        ("n.nvmlDeviceGetHandleByIndex, 4294967295", INVALID_ARGUMENT),
        ("n.nvmlDeviceGetHandleByUUID, b'GPU-nobody'", NOT_FOUND),
        ("n.nvmlDeviceGetHandleBySerial, b'0'", NOT_FOUND),
        ("n.nvmlDeviceGetHandleByPciBusId, b'0000:7F:00.0'", NOT_FOUND),
        ("n.nvmlDeviceGetHandleByPciBusId, b'0000:01:00.0 and more'", NOT_FOUND),
        ("n.nvmlDeviceGetHandleByPciBusId, b'nonsense'", NOT_FOUND),
        ("n.nvmlDeviceGetName, n.c_nvmlDevice_t()", INVALID_ARGUMENT),
        ("n.nvmlDeviceGetName, ctypes.c_void_p(12345)", INVALID_ARGUMENT),
    ],
)
def test_what_names_no_gpu_is_refused(two_virtual_gpus: VirtualGpu, call: str, code: int) -> None:
    assert ask(two_virtual_gpus, f"code({call})") == code


def test_versions_of_driver_library_and_cuda(virtual_gpu: VirtualGpu) -> None:
    told = ask(
        virtual_gpu,
        "[n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(), n.nvmlSystemGetCudaDriverVersion()]",
    )
    assert told == ["580.159.04", "13.580.159.04", 13000]


def test_a_short_buffer_is_refused_and_left_alone(virtual_gpu: VirtualGpu) -> None:
    answer = ask(
        virtual_gpu,
        "[call(handle(0), room, ctypes.c_uint(8)), room.value.decode()]",
        "room = ctypes.create_string_buffer(b'before', 8)",
        "call = n._nvmlGetFunctionPointer('nvmlDeviceGetName')",
    )
    assert answer == [INSUFFICIENT_SIZE, "before"]


def test_settings_are_what_nvml_tells(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(
        ecc_enabled=False,
        persistence=False,
        compute_mode="exclusive_process",
        remapped_correctable=1,
        remapped_uncorrectable=2,
        remap_pending=True,
        utilization=37,
    )
    told = ask(
        virtual_gpu,
        "[n.nvmlDeviceGetEccMode(h), n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetMigMode(h),"
        " n.nvmlDeviceGetComputeMode(h), n.nvmlDeviceGetRemappedRows(h),"
        " n.nvmlDeviceGetUtilizationRates(h).gpu]",
        "h = handle(0)",
    )
    assert told == [[0, 0], 0, [0, 0], 3, [1, 2, 1, 0], 37]


@pytest.mark.parametrize(
    "call",
    [
        "n.nvmlDeviceGetFanSpeed, handle(0)",
        "n.nvmlDeviceGetDriverModel, handle(0)",
        "n.nvmlDeviceGetRetiredPages, handle(0), 0",
        "n.nvmlDeviceGetTotalEnergyConsumption, handle(0)",
        "n.nvmlDeviceSetPersistenceMode, handle(0), 1",
        "n.nvmlEventSetCreate",
    ],
)
def test_what_it_does_not_have_is_not_supported(virtual_gpu: VirtualGpu, call: str) -> None:
    assert ask(virtual_gpu, f"code({call})") == NOT_SUPPORTED


def test_each_field_value_says_for_itself_that_it_is_not_supported(virtual_gpu: VirtualGpu) -> None:
    fields = ask(virtual_gpu, "[f.nvmlReturn for f in n.nvmlDeviceGetFieldValues(handle(0), [1, 160])]")
    assert fields == [NOT_SUPPORTED, NOT_SUPPORTED]


def test_the_drivers_advice_is_answered_where_it_is_set(virtual_gpu: VirtualGpu) -> None:
    question = "[(f.nvmlReturn, f.value.uiVal) for f in n.nvmlDeviceGetFieldValues(handle(0), [230, 1])]"
    assert ask(virtual_gpu, question)[0][0] == NOT_SUPPORTED
    virtual_gpu.set(recovery_action=4)
    (status, advice), (other, _) = ask(virtual_gpu, question)
    assert (status, advice, other) == (0, 4, NOT_SUPPORTED)


def test_mig_switched_on_has_no_instances(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(mig_enabled=True)
    assert ask(virtual_gpu, "n.nvmlDeviceGetMaxMigDeviceCount(handle(0))") == 7
    assert ask(virtual_gpu, "code(n.nvmlDeviceGetMigDeviceHandleByIndex, handle(0), 0)") == NOT_FOUND


def test_gpus_share_a_node_and_no_board(two_virtual_gpus: VirtualGpu) -> None:
    told = ask(
        two_virtual_gpus,
        "[n.nvmlDeviceGetTopologyCommonAncestor(a, b), n.nvmlDeviceOnSameBoard(a, b),"
        " len(n.nvmlDeviceGetTopologyNearestGpus(a, 40)), len(n.nvmlSystemGetTopologyGpuSet(0))]",
        "a, b = handle(0), handle(1)",
    )
    assert told == [40, 0, 1, 2]


def test_a_process_is_named_by_its_first_word(virtual_gpu: VirtualGpu) -> None:
    told = ask(virtual_gpu, "[n.nvmlSystemGetProcessName(os.getpid()), sys.executable]", "import os")
    assert told[0] == told[1]
    assert ask(virtual_gpu, "code(n.nvmlSystemGetProcessName, 2**22 + 1)") == NOT_FOUND


def test_nvml_and_cuda_mean_the_same_gpu_by_a_bus_id(two_virtual_gpus: VirtualGpu) -> None:
    """Programs match the two libraries' numbers by it, since CUDA_VISIBLE_DEVICES changes one of them."""
    told = ask(
        two_virtual_gpus,
        "[text.value.decode(), n.nvmlDeviceGetPciInfo(handle(1)).busIdLegacy]",
        "cuda, text = ctypes.CDLL('libcuda.so.1'), ctypes.create_string_buffer(16)",
        "cuda.cuInit(0)",
        "cuda.cuDeviceGetPCIBusId(text, 16, 1)",
    )
    assert told[0] == told[1]


def test_a_chip_that_remaps_rows_retires_no_pages(virtual_gpu: VirtualGpu) -> None:
    pending = "code(n.nvmlDeviceGetRetiredPagesPendingStatus, handle(0))"
    assert ask(virtual_gpu, f"[code(n.nvmlDeviceGetRemappedRows, handle(0)), {pending}]") == [
        0,
        NOT_SUPPORTED,
    ]


def test_an_older_chip_retires_pages_and_remaps_no_rows(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(retires_pages=True, retired_pages=3, retired_pending=True)
    told = ask(
        virtual_gpu,
        "[n.nvmlDeviceGetRetiredPagesPendingStatus(h),"
        " [len(n.nvmlDeviceGetRetiredPages(h, cause)) for cause in (0, 1)],"
        " len(n.nvmlDeviceGetRetiredPages_v2(h, 1)), code(n.nvmlDeviceGetRemappedRows, h)]",
        "h = handle(0)",
    )
    assert told == [1, [0, 3], 3, NOT_SUPPORTED]


def test_uncorrected_errors_are_counted_where_ecc_is_on(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(ecc_uncorrected=5)
    count = "n.nvmlDeviceGetTotalEccErrors(handle(0), {}, 0)"
    assert ask(virtual_gpu, f"[{count.format(0)}, {count.format(1)}]") == [0, 5]
    virtual_gpu.set(ecc_enabled=False)
    assert ask(virtual_gpu, "code(n.nvmlDeviceGetTotalEccErrors, handle(0), 1, 0)") == NOT_SUPPORTED
