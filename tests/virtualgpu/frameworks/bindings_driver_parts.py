"""cuda.bindings.driver."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver
from program import MIB, PTX, main, part, used


def call(name: str, *arguments: Any) -> Any:
    """What a driver call returns after its error code, which must be success."""
    code, *values = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


def primary_context() -> Any:
    call("cuInit", 0)
    context = call("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", context)
    return context


@part
def plain_memory() -> None:
    """`cuMemAlloc`, `cuMemAllocPitch`, `cuMemsetD8`, `cuMemcpyDtoH`, `cuMemGetInfo`, `cuMemFree`"""
    primary_context()
    before = used()
    memory = call("cuMemAlloc", 64 * MIB)
    assert used() - before == 64 * MIB
    call("cuMemsetD8", memory, 5, MIB)
    received = ctypes.create_string_buffer(MIB)
    call("cuMemcpyDtoH", ctypes.addressof(received), memory, MIB)
    assert received.raw == b"\5" * MIB
    free, total = call("cuMemGetInfo")
    assert 0 < free < total
    pitched, pitch = call("cuMemAllocPitch", 1000, 1000, 4)
    assert pitch >= 1000
    call("cuMemFree", pitched)
    call("cuMemFree", memory)
    assert used() == before


@part
def pools() -> None:
    """`cuMemAllocAsync`, `cuMemFreeAsync`, `cuMemPoolGetAttribute`, `cuMemPoolTrimTo`"""
    primary_context()
    before = used()
    stream = call("cuStreamCreate", 0)
    memory = call("cuMemAllocAsync", 64 * MIB, stream)
    assert used() - before == 64 * MIB
    call("cuMemFreeAsync", memory, stream)
    call("cuStreamSynchronize", stream)
    pool = call("cuDeviceGetDefaultMemPool", 0)
    in_use = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    assert int(call("cuMemPoolGetAttribute", pool, in_use)) == 0
    call("cuMemPoolTrimTo", pool, 0)
    assert used() == before


@part
def virtual_memory() -> None:
    """`cuMemCreate`, `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`, export to a descriptor"""
    primary_context()
    before = used()
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    posix = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    prop.requestedHandleTypes = posix
    handle = call("cuMemCreate", 64 * MIB, prop, 0)
    address = call("cuMemAddressReserve", 64 * MIB, 0, 0, 0)
    call("cuMemMap", address, 64 * MIB, 0, handle, 0)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call("cuMemSetAccess", address, 64 * MIB, [access], 1)
    call("cuMemsetD8", address, 1, MIB)
    assert call("cuMemExportToShareableHandle", handle, posix, 0) >= 0
    assert used() - before == 64 * MIB
    call("cuMemUnmap", address, 64 * MIB)
    call("cuMemAddressFree", address, 64 * MIB)
    call("cuMemRelease", handle)


@part
def host_and_managed() -> None:
    """`cuMemHostAlloc`, `cuMemAllocManaged`, `cuMemPrefetchAsync`"""
    primary_context()
    call("cuMemFreeHost", call("cuMemHostAlloc", MIB, 0))
    before = used()
    managed = call("cuMemAllocManaged", 128 * MIB, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value)
    assert used() == before
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    call("cuMemPrefetchAsync", managed, 128 * MIB, location, 0, 0)
    call("cuCtxSynchronize")
    assert used() - before == 128 * MIB
    call("cuMemFree", managed)
    assert used() == before


@part
def contexts() -> None:
    """`cuDevicePrimaryCtxRetain`, `cuCtxSetCurrent`, `cuDevicePrimaryCtxReset`"""
    call("cuInit", 0)
    before = used()
    primary_context()
    call("cuMemAlloc", 64 * MIB)
    assert used() - before > 64 * MIB
    call("cuDevicePrimaryCtxReset", 0)
    assert used() - before <= 4 * MIB


@part
def checkpoints() -> None:
    """`cuCheckpointProcessLock`, `Checkpoint`, `Restore`, `Unlock` of another process"""
    import subprocess
    import sys

    program = (
        "import ctypes, sys; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); k = ctypes.c_void_p();"
        "c.cuDevicePrimaryCtxRetain(ctypes.byref(k), 0); c.cuCtxSetCurrent(k); p = ctypes.c_uint64();"
        f"c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t({64 * MIB})); print(flush=True); sys.stdin.read()"
    )
    call("cuInit", 0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as target:  # type: ignore[call-overload]
        target.stdout.readline()
        before = used()
        call("cuCheckpointProcessLock", target.pid, driver.CUcheckpointLockArgs())
        call("cuCheckpointProcessCheckpoint", target.pid, driver.CUcheckpointCheckpointArgs())
        assert before - used() > 64 * MIB
        call("cuCheckpointProcessRestore", target.pid, driver.CUcheckpointRestoreArgs())
        call("cuCheckpointProcessUnlock", target.pid, driver.CUcheckpointUnlockArgs())
        assert used() == before
        target.stdin.close()


@part
def kernels() -> None:
    """Kernels (`cuModuleLoadData`)"""
    primary_context()
    call("cuModuleLoadData", PTX)


if __name__ == "__main__":
    main()
