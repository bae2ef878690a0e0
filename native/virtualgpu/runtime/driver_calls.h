/* The driver functions that the runtime calls, with the types of their parameters. */
#ifndef VRAM_VIRTUALGPU_DRIVER_CALLS_H
#define VRAM_VIRTUALGPU_DRIVER_CALLS_H

#include "../driver/api.h"

/* clang-format off */
#define DRIVER_CALLS(X) \
    X(cuInit, unsigned) \
    X(cuDriverGetVersion, int *) \
    X(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *) \
    X(cuDeviceGetCount, int *) \
    X(cuDeviceGetName, char *, int, int) \
    X(cuDeviceGetUuid_v2, struct uuid *, int) \
    X(cuDeviceTotalMem_v2, size_t *, int) \
    X(cuDeviceGetAttribute, int *, int, int) \
    X(cuDeviceGetPCIBusId, char *, int, int) \
    X(cuDeviceGetByPCIBusId, int *, const char *) \
    X(cuDeviceCanAccessPeer, int *, int, int) \
    X(cuDeviceGetP2PAttribute, int *, int, int, int) \
    X(cuDeviceGetDefaultMemPool, void **, int) \
    X(cuDeviceGetMemPool, void **, int) \
    X(cuDeviceSetMemPool, int, void *) \
    X(cuDeviceGraphMemTrim, int) \
    X(cuDeviceGetGraphMemAttribute, int, int, void *) \
    X(cuDeviceSetGraphMemAttribute, int, int, void *) \
    X(cuDevicePrimaryCtxRetain, void **, int) \
    X(cuDevicePrimaryCtxRelease_v2, int) \
    X(cuDevicePrimaryCtxReset_v2, int) \
    X(cuDevicePrimaryCtxGetState, int, unsigned *, int *) \
    X(cuDevicePrimaryCtxSetFlags_v2, int, unsigned) \
    X(cuCtxGetCurrent, void **) \
    X(cuCtxSetCurrent, void *) \
    X(cuCtxGetDevice, int *) \
    X(cuCtxSynchronize, void) \
    X(cuCtxGetLimit, size_t *, int) \
    X(cuCtxSetLimit, int, size_t) \
    X(cuCtxGetCacheConfig, int *) \
    X(cuCtxSetCacheConfig, int) \
    X(cuCtxGetSharedMemConfig, int *) \
    X(cuCtxSetSharedMemConfig, int) \
    X(cuCtxGetStreamPriorityRange, int *, int *) \
    X(cuCtxEnablePeerAccess, void *, unsigned) \
    X(cuCtxDisablePeerAccess, void *) \
    X(cuCtxResetPersistingL2Cache, void) \
    X(cuFlushGPUDirectRDMAWrites, int, int) \
    X(cuMemAlloc_v2, deviceptr *, size_t) \
    X(cuMemAllocPitch_v2, deviceptr *, size_t *, size_t, size_t, unsigned) \
    X(cuMemFree_v2, deviceptr) \
    X(cuMemGetInfo_v2, size_t *, size_t *) \
    X(cuMemAllocManaged, deviceptr *, size_t, unsigned) \
    X(cuMemPrefetchAsync_v2, deviceptr, size_t, struct location, unsigned, void *) \
    X(cuMemAdvise_v2, deviceptr, size_t, int, struct location) \
    X(cuMemRangeGetAttribute, void *, size_t, int, deviceptr, size_t) \
    X(cuMemRangeGetAttributes, void **, size_t *, int *, size_t, deviceptr, size_t) \
    X(cuMemHostAlloc, void **, size_t, unsigned) \
    X(cuMemFreeHost, void *) \
    X(cuMemHostRegister_v2, void *, size_t, unsigned) \
    X(cuMemHostUnregister, void *) \
    X(cuMemHostGetDevicePointer_v2, deviceptr *, void *, unsigned) \
    X(cuMemHostGetFlags, unsigned *, void *) \
    X(cuPointerGetAttributes, unsigned, int *, void **, deviceptr) \
    X(cuMemcpyAsync, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyHtoDAsync_v2, deviceptr, const void *, size_t, void *) \
    X(cuMemcpyDtoHAsync_v2, void *, deviceptr, size_t, void *) \
    X(cuMemcpyDtoDAsync_v2, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyPeerAsync, deviceptr, void *, deviceptr, void *, size_t, void *) \
    X(cuMemcpyBatchAsync_v2, deviceptr *, deviceptr *, size_t *, size_t, void *, size_t *, size_t, void *) \
    X(cuMemcpy2DAsync_v2, const struct copy2d *, void *) \
    X(cuMemcpy3DAsync_v2, const struct copy3d *, void *) \
    X(cuMemsetD8Async, deviceptr, unsigned char, size_t, void *) \
    X(cuMemsetD2D8Async, deviceptr, size_t, unsigned char, size_t, size_t, void *) \
    X(cuMemAllocAsync, deviceptr *, size_t, void *) \
    X(cuMemAllocAsync_ptsz, deviceptr *, size_t, void *) \
    X(cuMemAllocFromPoolAsync, deviceptr *, size_t, void *, void *) \
    X(cuMemAllocFromPoolAsync_ptsz, deviceptr *, size_t, void *, void *) \
    X(cuMemFreeAsync, deviceptr, void *) \
    X(cuMemFreeAsync_ptsz, deviceptr, void *) \
    X(cuMemPoolCreate, void **, const struct pool_props *) \
    X(cuMemPoolDestroy, void *) \
    X(cuMemPoolTrimTo, void *, size_t) \
    X(cuMemPoolGetAttribute, void *, int, void *) \
    X(cuMemPoolSetAttribute, void *, int, void *) \
    X(cuMemPoolSetAccess, void *, const struct access_desc *, size_t) \
    X(cuMemPoolGetAccess, int *, void *, const struct location *) \
    X(cuMemGetDefaultMemPool, void **, const struct location *, int) \
    X(cuMemGetMemPool, void **, const struct location *, int) \
    X(cuMemSetMemPool, const struct location *, int, void *) \
    X(cuMemPoolExportToShareableHandle, void *, void *, int, unsigned long long) \
    X(cuMemPoolImportFromShareableHandle, void **, void *, int, unsigned long long) \
    X(cuMemPoolExportPointer, struct opaque64 *, deviceptr) \
    X(cuMemPoolImportPointer, deviceptr *, void *, const struct opaque64 *) \
    X(cuIpcGetMemHandle, struct opaque64 *, deviceptr) \
    X(cuIpcOpenMemHandle_v2, deviceptr *, struct opaque64, unsigned) \
    X(cuIpcCloseMemHandle, deviceptr) \
    X(cuIpcGetEventHandle, struct opaque64 *, void *) \
    X(cuIpcOpenEventHandle, void **, struct opaque64) \
    X(cuStreamCreateWithPriority, void **, unsigned, int) \
    X(cuStreamDestroy_v2, void *) \
    X(cuStreamQuery, void *) \
    X(cuStreamSynchronize, void *) \
    X(cuStreamGetPriority, void *, int *) \
    X(cuStreamGetFlags, void *, unsigned *) \
    X(cuStreamGetId, void *, unsigned long long *) \
    X(cuStreamGetDevice, void *, int *) \
    X(cuStreamWaitEvent, void *, void *, unsigned) \
    X(cuStreamAddCallback, void *, void (*)(void *, result, void *), void *, unsigned) \
    X(cuStreamAttachMemAsync, void *, deviceptr, size_t, unsigned) \
    X(cuStreamCopyAttributes, void *, void *) \
    X(cuStreamIsCapturing, void *, int *) \
    X(cuStreamGetCaptureInfo_v3, void *, int *, uint64_t *, void **, void *, void *, size_t *) \
    X(cuThreadExchangeStreamCaptureMode, int *) \
    X(cuLaunchHostFunc, void *, void (*)(void *), void *) \
    X(cuEventCreate, void **, unsigned) \
    X(cuEventDestroy_v2, void *) \
    X(cuEventRecordWithFlags, void *, void *, unsigned) \
    X(cuEventQuery, void *) \
    X(cuEventSynchronize, void *) \
    X(cuEventElapsedTime_v2, float *, void *, void *) \
    X(cuProfilerStart, void) \
    X(cuProfilerStop, void) \
    X(vramCountLaunch, void *)
/* clang-format on */

#endif
