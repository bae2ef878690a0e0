"""The gate of the virtual driver: who may call, what a fork may not, and failures on request."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result, running
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

NOT_INITIALIZED, NO_DEVICE, OUT_OF_MEMORY, NOT_SUPPORTED = 3, 100, 2, 801


def test_nothing_works_before_initialisation(virtual_gpu: VirtualGpu) -> None:
    calls = "cuCtxSynchronize", "cuDeviceGetCount", "cuMemAlloc_v2", "cuStreamCreate", "cuLaunchKernel"
    program = f"cuda.tell([cuda.code(name, 0, 0, 0) for name in {calls!r}])"
    assert result(virtual_gpu, program) == [NOT_INITIALIZED] * len(calls)


def test_without_a_folder_there_is_no_device(virtual_gpu: VirtualGpu) -> None:
    """The library alone, outside `vram virtual`, never pretends to have a GPU."""
    program = "del os.environ['VRAM_VIRTUAL_GPU']; cuda.tell(cuda.code('cuInit', 0))"
    assert result(virtual_gpu, program) == NO_DEVICE


def test_a_forked_child_of_a_user_is_not_initialised(virtual_gpu: VirtualGpu) -> None:
    """It has the descriptors and the mappings, but every call and even cuInit answers 3."""
    program = """
        cuda.start()
        calls = [("cuInit", 0), ("cuCtxSynchronize",), ("cuDeviceGetCount", ctypes.c_void_p())]
        cuda.tell([cuda.forked(lambda call=call: cuda.code(*call)) for call in calls])
    """
    assert result(virtual_gpu, program) == [NOT_INITIALIZED] * 3


def test_a_child_forked_before_initialisation_is_free_to_begin(virtual_gpu: VirtualGpu) -> None:
    program = "cuda.tell(cuda.forked(lambda: cuda.start() == 0))"
    assert result(virtual_gpu, program) == 0


def test_forks_from_a_busy_threaded_program_do_not_deadlock(virtual_gpu: VirtualGpu) -> None:
    """Threads allocate all the while; each child must be able to ask and to leave."""
    program = """
        context = cuda.start()
        stop = threading.Event()
        def churn():
            cuda.call("cuCtxSetCurrent", context)
            while not stop.is_set():
                cuda.call("cuMemFree_v2", cuda.alloc(4 * MIB))
        threads = [threading.Thread(target=churn) for _ in range(3)]
        [thread.start() for thread in threads]
        answers = {cuda.forked(lambda: cuda.code("cuCtxSynchronize")) for _ in range(40)}
        stop.set()
        [thread.join() for thread in threads]
        cuda.tell([sorted(answers), cuda.used()])
    """
    answers, used = result(virtual_gpu, program)
    assert answers == [NOT_INITIALIZED]
    assert used < 600 * 1024**2


SECOND = "GPU-76697274-7561-6c00-8000-000000000001"


@pytest.mark.parametrize(("listed", "count"), [("1", 1), ("1,0", 2), ("", 0), ("0,7,1", 1), (SECOND, 1)])
def test_visible_devices_are_those_named(two_virtual_gpus: VirtualGpu, listed: str, count: int) -> None:
    program = f"""
        os.environ["CUDA_VISIBLE_DEVICES"] = {listed!r}
        if cuda.code("cuInit", 0):
            cuda.tell([0, ""])
        else:
            bus = ctypes.create_string_buffer(16)
            cuda.call("cuDeviceGetPCIBusId", bus, 16, 0)
            cuda.tell([cuda.out(ctypes.c_int, "cuDeviceGetCount"), bus.value.decode()])
    """
    first = "" if not count else "0000:01:00.0" if listed.startswith("0") else "0000:02:00.0"
    assert result(two_virtual_gpus, program) == [count, first]


def test_addresses_of_functions_follow_the_callers_version(virtual_gpu: VirtualGpu) -> None:
    """A program built for CUDA 12.4 gets the forms of 12.4, under the same name."""
    program = """
        def find(name, version):
            function, status = ctypes.c_void_p(), ctypes.c_int(-1)
            cuda.call("cuGetProcAddress_v2", name, ctypes.byref(function), version, 0, ctypes.byref(status))
            return function.value, status.value
        def same(found, symbol):
            return found == (ctypes.cast(getattr(cuda.lib, symbol), ctypes.c_void_p).value, 0)
        cuda.tell([
            same(find(b"cuMemAlloc", 13000), "cuMemAlloc_v2"),
            same(find(b"cuCtxCreate", 12040), "cuCtxCreate_v3"),
            same(find(b"cuCtxCreate", 13000), "cuCtxCreate_v4"),
            same(find(b"cuMemPrefetchAsync", 12010), "cuMemPrefetchAsync"),
            same(find(b"cuMemPrefetchAsync", 12020), "cuMemPrefetchAsync_v2"),
            same(find(b"cuLaunchKernel", 13000), "cuLaunchKernel"),
            find(b"cuCheckpointProcessLock", 12000)[1],
            find(b"cuNoSuchThing", 13000)[1],
            cuda.code("cuGetProcAddress", b"cuNoSuchThing", ctypes.byref(ctypes.c_void_p()), 13000, 0),
        ])
    """
    assert result(virtual_gpu, program) == [True] * 6 + [2, 1, 500]


def test_kernels_are_refused_in_the_open(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        cuda.tell([cuda.code(name) for name in ("cuLaunchKernel", "cuModuleLoadData", "cuGraphCreate")])
    """
    assert result(virtual_gpu, program) == [NOT_SUPPORTED] * 3


@pytest.mark.parametrize(
    ("fault", "answers"),
    [
        ("cuMemAlloc nth=3 error=2", [0, 0, OUT_OF_MEMORY, 0, 0]),
        ("cuMemAlloc* after=4 error=2", [0, 0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]),
        ("cuMem* gpu=1 error=2", [0, 0, 0, 0, 0]),
        ("cuMemAlloc gpu=0 error=999", [999] * 5),
    ],
)
def test_calls_fail_when_and_where_they_are_told_to(
    virtual_gpu: VirtualGpu, fault: str, answers: list[int]
) -> None:
    virtual_gpu.add_fault(fault)
    program = """
        cuda.start()
        where = ctypes.byref(ctypes.c_uint64())
        cuda.tell([cuda.code("cuMemAlloc_v2", where, MIB) for _ in range(5)])
    """
    assert result(virtual_gpu, program) == answers


def test_faults_are_switched_on_and_off_while_a_program_runs(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        while True:
            cuda.tell(cuda.code("cuCtxSynchronize"))
            cuda.heard()
    """
    with running(virtual_gpu, program) as running_program:
        seen = [running_program.told()]
        virtual_gpu.fail("cuCtxSynchronize", error=700)
        running_program.go()
        seen.append(running_program.told())
        virtual_gpu.clear_faults()
        running_program.go()
        seen.append(running_program.told())
    assert seen == [0, 700, 0]


def test_every_exported_function_is_in_the_table(virtual_gpu: VirtualGpu) -> None:
    """What the linker can find, cuGetProcAddress finds too."""
    program = """
        import re, subprocess
        path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line)
        data = open(path, "rb").read()
        names = {name.decode() for name in re.findall(rb"cu[A-Z][A-Za-z0-9_]+", data)}
        exported = [name for name in sorted(names) if hasattr(cuda.lib, name)]
        missing = []
        for name in exported:
            function = ctypes.c_void_p()
            if cuda.code("cuGetProcAddress", name.encode(), ctypes.byref(function), 13000, 0):
                missing.append(name)
        cuda.tell([len(exported), missing])
    """
    exported, missing = result(virtual_gpu, program)
    assert exported > 400
    assert missing == []
