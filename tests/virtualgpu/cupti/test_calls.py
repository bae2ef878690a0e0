"""Each driver call is reported once at its entry and once at its exit, with its parameters and its result."""

from __future__ import annotations

import pytest

from tests.virtualgpu.cupti.programs import result
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_SUPPORTED = 1, 2, 201, 801

# Every call that makes, frees, maps, shares or asks about memory, with arguments of the types that it has.
MEMORY = """
class Bytes64(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]

one = Subscriber()
one.subscribe(DRIVER)
context = start()
size, page, nothing = c_size_t(3 << 20), c_size_t(2 << 20), c_void_p()
address, handle, place, host, pool = c_uint64(), c_uint64(), c_uint64(), c_void_p(), c_void_p()
pitch, free, total, fd, flags = c_size_t(), c_size_t(), c_size_t(), c_int(), c_uint()
access = (c_int * 3)(1, 0, 3)
prop = (ctypes.c_ubyte * 32)(*bytes((c_int * 4)(1, 1, 1, 0)))
pool_props = (ctypes.c_ubyte * 88)(*bytes((c_int * 4)(1, 1, 1, 0)))
exported, shared = Bytes64(), Bytes64()
buffer = ctypes.create_string_buffer(1 << 16)
aligned = c_void_p(ctypes.addressof(buffer) + 4095 & ~4095)
location = Location(1, 0)
calls = []

def see(name, *arguments):
    code, told = one.watch(name, *arguments)
    calls.append([name, code, told])

see("cuMemAlloc_v2", byref(address), size)
see("cuMemGetAddressRange_v2", byref(place), byref(pitch), address)
see("cuIpcGetMemHandle", byref(exported), address)
see("cuIpcOpenMemHandle_v2", byref(place), exported, c_uint(1))
see("cuIpcCloseMemHandle", c_uint64(address.value))
see("cuMemFree_v2", c_uint64(address.value))
see("cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(1000), c_size_t(7), c_uint(4))
see("cuMemFree_v2", c_uint64(address.value))
see("cuMemAllocManaged", byref(address), size, c_uint(1))
see("cuMemPrefetchAsync_v2", c_uint64(address.value), size, location, c_uint(0), nothing)
see("cuMemAdvise_v2", c_uint64(address.value), size, c_int(1), location)
see("cuMemFree_v2", c_uint64(address.value))
see("cuMemAllocHost_v2", byref(host), size)
see("cuMemFreeHost", c_void_p(host.value))
see("cuMemHostAlloc", byref(host), size, c_uint(3))
see("cuMemHostGetDevicePointer_v2", byref(place), c_void_p(host.value), c_uint(0))
see("cuMemHostGetFlags", byref(flags), c_void_p(host.value))
see("cuMemFreeHost", c_void_p(host.value))
see("cuMemHostRegister_v2", aligned, c_size_t(8192), c_uint(0))
see("cuMemHostUnregister", aligned)
see("cuMemAllocAsync", byref(address), size, nothing)
see("cuMemFreeAsync", c_uint64(address.value), nothing)
see("cuMemAllocAsync_ptsz", byref(address), size, nothing)
see("cuMemFreeAsync_ptsz", c_uint64(address.value), nothing)
see("cuMemPoolCreate", byref(pool), byref(pool_props))
see("cuMemAllocFromPoolAsync", byref(address), size, pool, nothing)
see("cuMemPoolExportPointer", byref(shared), c_uint64(address.value))
see("cuMemFreeAsync", c_uint64(address.value), nothing)
see("cuMemAllocFromPoolAsync_ptsz", byref(address), size, pool, nothing)
see("cuMemFreeAsync", c_uint64(address.value), nothing)
see("cuMemPoolSetAttribute", pool, c_int(4), byref(c_uint64(1)))
see("cuMemPoolTrimTo", pool, c_size_t(0))
see("cuMemPoolDestroy", pool)
see("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
see("cuMemCreate", byref(handle), page, byref(prop), c_uint64(0))
see("cuMemAddressReserve", byref(address), page, c_size_t(0), c_uint64(0), c_uint64(0))
see("cuMemMap", c_uint64(address.value), page, c_size_t(0), handle, c_uint64(0))
see("cuMemSetAccess", c_uint64(address.value), page, byref(access), c_size_t(1))
see("cuMemExportToShareableHandle", byref(fd), handle, c_int(1), c_uint64(0))
see("cuMemImportFromShareableHandle", byref(place), c_void_p(fd.value), c_int(1))
see("cuMemRelease", c_uint64(place.value))
see("cuMemUnmap", c_uint64(address.value), page)
see("cuMemAddressFree", c_uint64(address.value), page)
see("cuMemRelease", c_uint64(handle.value))
see("cuMemGetInfo_v2", byref(free), byref(total))
tell(calls)
"""


@pytest.mark.parametrize("library", ["libcupti.so.12", "libcupti.so.13"])
def test_every_memory_call_is_reported_with_its_parameters(virtual_gpu: VirtualGpu, library: str) -> None:
    program = MEMORY.replace("Subscriber()", f"Subscriber({library!r})")
    calls = result(virtual_gpu, program)
    assert len(calls) == 45
    for name, code, told in calls:
        assert [event[:2] for event in told] == [["enter", name], ["exit", name]], name
        # An IPC handle of this process's own cannot be opened here: those calls are reported as failed.
        assert (code != 0) == (name in ("cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle")), (name, code)
        assert [event[3] for event in told] == [None, code], name
        assert [event[-1] for event in told] == [True, True], f"the parameters of {name}"
        assert told[0][6] == told[1][6], f"one correlation id for both ends of {name}"
        assert [event[4:6] for event in told] == [["a", 1]] * 2, f"the context of {name}"


def test_failing_calls_are_reported_with_their_result(virtual_gpu: VirtualGpu) -> None:
    program = """
        one = Subscriber()
        one.subscribe(DRIVER)
        place = c_uint64()
        cuda.cuInit(0)
        told = [one.watch("cuMemAlloc_v2", byref(place), c_size_t(4096))]
        start()
        told += [
            one.watch("cuMemAlloc_v2", byref(place), c_size_t(1 << 50)),
            one.watch("cuMemAlloc_v2", c_void_p(), c_size_t(4096)),
            one.watch("cuMemFree_v2", c_uint64(0x1234)),
            one.watch("cuArray3DCreate_v2", c_void_p(), c_void_p(7)),
            one.watch("cuModuleLoadData", c_void_p(1), c_void_p(2)),
            one.watch("cuGraphLaunch_ptsz", c_void_p(1), c_void_p(2)),
        ]
        tell(told)
    """
    expected = [INVALID_CONTEXT, OUT_OF_MEMORY, INVALID_VALUE, INVALID_VALUE, *[NOT_SUPPORTED] * 3]
    told = result(virtual_gpu, program)
    assert [code for code, _ in told] == expected
    for code, (enter, leave) in told:
        assert (enter[0], leave[0]) == ("enter", "exit")
        assert leave[3] == code
        assert enter[-1] is leave[-1] is True


def test_a_fault_on_request_is_reported_as_the_result(virtual_gpu: VirtualGpu) -> None:
    program = """
        one = Subscriber()
        one.subscribe(DRIVER)
        start()
        tell(one.watch("cuMemAlloc_v2", byref(c_uint64()), c_size_t(4096)))
    """
    code, told = result(virtual_gpu, program, VRAM_VIRTUAL_FAULTS="cuMemAlloc error=2")
    assert code == OUT_OF_MEMORY
    assert [event[3] for event in told] == [None, OUT_OF_MEMORY]


def test_functions_that_were_looked_up_are_reported(virtual_gpu: VirtualGpu) -> None:
    """cuGetProcAddress returns what is reported, with the form that the caller's version and streams mean."""
    program = """
        one = Subscriber()
        one.subscribe(DRIVER)
        start()
        found, names = c_void_p(), []
        for name, version, flags in ((b"cuMemAlloc", 12000, 0), (b"cuMemAllocAsync", 12000, 0),
                                     (b"cuMemAllocAsync", 12000, 2), (b"cuMemAlloc", 12000, 2)):
            cuda.cuGetProcAddress_v2(name, byref(found), version, c_uint64(flags), None)
            one.take()
            function = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p)(found.value)
            place = c_uint64()
            assert function(ctypes.addressof(place), 4096, None) == 0
            names.append([event[1] for event in one.take()])
        tell(names)
    """
    names = ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAlloc_v2"]
    assert result(virtual_gpu, program) == [[name, name] for name in names]


@pytest.mark.parametrize("major", [12, 13])
def test_calls_of_the_runtime_are_reported(virtual_gpu: VirtualGpu, major: int) -> None:
    program = f"""
        one = Subscriber("libcupti.so.{major}")
        one.subscribe(DRIVER)
        runtime = ctypes.CDLL("libcudart.so.{major}")
        place, size = c_void_p(), c_size_t(3 << 20)
        calls = [
            ("cudaMalloc", byref(place), size), ("cudaFree", place),
            ("cudaMalloc", byref(place), c_size_t(1 << 50)),
            ("cudaMallocManaged", byref(place), size, 1), ("cudaFree", place),
            ("cudaMallocHost", byref(place), size), ("cudaFreeHost", place),
            ("cudaMallocAsync", byref(place), size, None), ("cudaFreeAsync", place, None),
            ("cudaMallocAsync_ptsz", byref(place), size, None), ("cudaFreeAsync_ptsz", place, None),
        ]
        told = []
        for name, *arguments in calls:
            code = getattr(runtime, name)(*arguments)
            told.append([name, code, [event[:4] for event in one.take() if event[1].startswith("cuMem")]])
        tell(told)
    """
    driver = {
        "cudaMalloc": "cuMemAlloc_v2",
        "cudaFree": "cuMemFree_v2",
        "cudaMallocManaged": "cuMemAllocManaged",
        "cudaMallocHost": "cuMemHostAlloc",
        "cudaFreeHost": "cuMemFreeHost",
        "cudaMallocAsync": "cuMemAllocAsync",
        "cudaFreeAsync": "cuMemFreeAsync",
        "cudaMallocAsync_ptsz": "cuMemAllocAsync_ptsz",
        "cudaFreeAsync_ptsz": "cuMemFreeAsync_ptsz",
    }
    told = result(virtual_gpu, program)
    assert [code for _, code, _ in told] == [0, 0, OUT_OF_MEMORY, *[0] * 8]
    for name, code, ((site, function, _, before), (end, same, _, after)) in told:
        assert (site, function, before) == ("enter", driver[name], None)
        assert (end, same, after) == ("exit", driver[name], code)


def test_calls_that_nobody_asked_about_cost_what_they_did(virtual_gpu: VirtualGpu) -> None:
    """Neither a subscriber that was there before nor one that has turned nothing on makes calls slow.

    In CPU time, in turns, the best of many: what else the machine does cancels out.
    """
    program = """
        import time
        one = Subscriber()
        start()
        device, best = c_int(), {"before": 1e9, "silent": 1e9, "after": 1e9}

        def measure(name):
            begin = time.thread_time()
            for _ in range(500):
                cuda.cuCtxGetDevice(byref(device))
            best[name] = min(best[name], time.thread_time() - begin)

        for _ in range(20):
            measure("before")
        for _ in range(20):
            one.subscribe()
            measure("silent")
            one.unsubscribe()
            measure("after")
        tell([best["silent"] / best["before"], best["after"] / best["before"]])
    """
    assert max(result(virtual_gpu, program)) < 2
