/* The functions of the library in four lists. Each line has the function's name, the CUDA version that brought this
 * form, its symbol, CUPTI's number for it (CUpti_driver_api_trace_cbid), and the types of its parameters.
 *
 * Three things come from these lists: cuGetProcAddress (functions.c), which returns the newest form that is not
 * newer than what the caller knows; the exported functions, which report each call to a CUPTI subscriber
 * (entry.c); and the names that libcupti knows.
 */
#ifndef VRAM_VIRTUALGPU_FUNCTIONS_H
#define VRAM_VIRTUALGPU_FUNCTIONS_H

/* clang-format off */

/* Functions that are implemented. The types are those of the definitions. */
#define FUNCTIONS(X) \
    X(cuCheckpointProcessCheckpoint, 12080, cuCheckpointProcessCheckpoint, 771, int, const void *) \
    X(cuCheckpointProcessGetRestoreThreadId, 12080, cuCheckpointProcessGetRestoreThreadId, 768, int, int *) \
    X(cuCheckpointProcessGetState, 12080, cuCheckpointProcessGetState, 769, int, int *) \
    X(cuCheckpointProcessLock, 12080, cuCheckpointProcessLock, 770, int, const struct lock_args *) \
    X(cuCheckpointProcessRestore, 12080, cuCheckpointProcessRestore, 772, int, const struct restore_args *) \
    X(cuCheckpointProcessUnlock, 12080, cuCheckpointProcessUnlock, 773, int, const void *) \
    X(cuCtxAttach, 2000, cuCtxAttach, 12, struct context **, unsigned) \
    X(cuCtxCreate, 2000, cuCtxCreate, 10, struct context **, unsigned, int) \
    X(cuCtxCreate, 3020, cuCtxCreate_v2, 235, struct context **, unsigned, int) \
    X(cuCtxCreate, 11040, cuCtxCreate_v3, 645, struct context **, void *, int, unsigned, int) \
    X(cuCtxCreate, 12050, cuCtxCreate_v4, 757, struct context **, void *, unsigned, int) \
    X(cuCtxDestroy, 2000, cuCtxDestroy, 11, struct context *) \
    X(cuCtxDestroy, 4000, cuCtxDestroy_v2, 322, struct context *) \
    X(cuCtxDetach, 2000, cuCtxDetach, 13, struct context *) \
    X(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess, 314, struct context *) \
    X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess, 313, struct context *, unsigned) \
    X(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx, 753, struct context **, struct green *) \
    X(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion, 296, struct context *, unsigned *) \
    X(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig, 299, int *) \
    X(cuCtxGetCurrent, 4000, cuCtxGetCurrent, 304, struct context **) \
    X(cuCtxGetDevice, 2000, cuCtxGetDevice, 16, int *) \
    X(cuCtxGetDevice, 13000, cuCtxGetDevice_v2, 795, int *, struct context *) \
    X(cuCtxGetFlags, 7000, cuCtxGetFlags, 391, unsigned *) \
    X(cuCtxGetId, 12000, cuCtxGetId, 695, struct context *, unsigned long long *) \
    X(cuCtxGetLimit, 3010, cuCtxGetLimit, 137, size_t *, int) \
    X(cuCtxGetSharedMemConfig, 4020, cuCtxGetSharedMemConfig, 337, int *) \
    X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange, 370, int *, int *) \
    X(cuCtxPopCurrent, 2000, cuCtxPopCurrent, 15, struct context **) \
    X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, 324, struct context **) \
    X(cuCtxPushCurrent, 2000, cuCtxPushCurrent, 14, struct context *) \
    X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, 323, struct context *) \
    X(cuCtxResetPersistingL2Cache, 11000, cuCtxResetPersistingL2Cache, 568) \
    X(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig, 300, int) \
    X(cuCtxSetCurrent, 4000, cuCtxSetCurrent, 303, struct context *) \
    X(cuCtxSetFlags, 12010, cuCtxSetFlags, 705, unsigned) \
    X(cuCtxSetLimit, 3010, cuCtxSetLimit, 136, int, size_t) \
    X(cuCtxSetSharedMemConfig, 4020, cuCtxSetSharedMemConfig, 336, int) \
    X(cuCtxSynchronize, 2000, cuCtxSynchronize, 17) \
    X(cuCtxSynchronize, 13000, cuCtxSynchronize_v2, 800, struct context *) \
    X(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc, 748, struct green **, const struct dev_resource *, unsigned) \
    X(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount, 751, struct dev_resource *, unsigned *, const struct dev_resource *, struct dev_resource *, unsigned, unsigned) \
    X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer, 312, int *, int, int) \
    X(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability, 6, int *, int *, int) \
    X(cuDeviceGet, 2000, cuDeviceGet, 3, int *, int) \
    X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, 9, int *, int, int) \
    X(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId, 331, int *, const char *) \
    X(cuDeviceGetCount, 2000, cuDeviceGetCount, 4, int *) \
    X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool, 606, struct pool **, int) \
    X(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource, 745, int, struct dev_resource *, int) \
    X(cuDeviceGetExecAffinitySupport, 11040, cuDeviceGetExecAffinitySupport, 644, int *, int, int) \
    X(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute, 641, int, int, void *) \
    X(cuDeviceGetLuid, 10000, cuDeviceGetLuid, 532, char *, unsigned *, int) \
    X(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool, 610, struct pool **, int) \
    X(cuDeviceGetName, 2000, cuDeviceGetName, 5, char *, int, int) \
    X(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute, 454, int *, int, int, int) \
    X(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId, 332, char *, int, int) \
    X(cuDeviceGetUuid, 9020, cuDeviceGetUuid, 482, struct uuid *, int) \
    X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2, 647, struct uuid *, int) \
    X(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim, 640, int) \
    X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState, 392, int, unsigned *, int *) \
    X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease, 387, int) \
    X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, 544, int) \
    X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset, 389, int) \
    X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, 545, int) \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, 386, struct context **, int) \
    X(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags, 388, int, unsigned) \
    X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2, 546, int, unsigned) \
    X(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute, 642, int, int, void *) \
    X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, 609, int, struct pool *) \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, 259, size_t *, int) \
    X(cuDriverGetVersion, 2020, cuDriverGetVersion, 2, int *) \
    X(cuEventCreate, 2000, cuEventCreate, 118, struct event **, unsigned) \
    X(cuEventDestroy, 2000, cuEventDestroy, 122, struct event *) \
    X(cuEventDestroy, 4000, cuEventDestroy_v2, 325, struct event *) \
    X(cuEventElapsedTime, 2000, cuEventElapsedTime, 123, float *, struct event *, struct event *) \
    X(cuEventElapsedTime, 12080, cuEventElapsedTime_v2, 780, float *, struct event *, struct event *) \
    X(cuEventQuery, 2000, cuEventQuery, 120, struct event *) \
    X(cuEventRecord, 2000, cuEventRecord, 119, struct event *, void *) \
    X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, 587, struct event *, void *, unsigned) \
    X(cuEventSynchronize, 2000, cuEventSynchronize, 121, struct event *) \
    X(cuFlushGPUDirectRDMAWrites, 11030, cuFlushGPUDirectRDMAWrites, 627, int, int) \
    X(cuGetErrorName, 6000, cuGetErrorName, 373, result, const char **) \
    X(cuGetErrorString, 6000, cuGetErrorString, 372, result, const char **) \
    X(cuGetProcAddress, 11030, cuGetProcAddress, 626, const char *, void **, int, uint64_t) \
    X(cuGetProcAddress, 12000, cuGetProcAddress_v2, 677, const char *, void **, int, uint64_t, int *) \
    X(cuGreenCtxCreate, 12040, cuGreenCtxCreate, 743, struct green **, const struct green *, int, unsigned) \
    X(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy, 744, struct green *) \
    X(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource, 747, struct green *, struct dev_resource *, int) \
    X(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate, 758, struct stream **, struct green *, unsigned, int) \
    X(cuInit, 2000, cuInit, 1, unsigned) \
    X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle, 330, deviceptr) \
    X(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle, 334, struct opaque64 *, struct event *) \
    X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle, 328, struct opaque64 *, deviceptr) \
    X(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle, 335, struct event **, struct opaque64) \
    X(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle, 329, deviceptr *, struct opaque64, unsigned) \
    X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2, 567, deviceptr *, struct opaque64, unsigned) \
    X(cuLaunchHostFunc, 10000, cuLaunchHostFunc, 527, void *, host_function, void *) \
    X(cuMemAddressFree, 10020, cuMemAddressFree, 548, deviceptr, size_t) \
    X(cuMemAddressReserve, 10020, cuMemAddressReserve, 547, deviceptr *, size_t, size_t, deviceptr, unsigned long long) \
    X(cuMemAdvise, 8000, cuMemAdvise, 457, deviceptr, size_t, int, int) \
    X(cuMemAdvise, 12020, cuMemAdvise_v2, 715, deviceptr, size_t, int, struct location) \
    X(cuMemAlloc, 3020, cuMemAlloc_v2, 243, deviceptr *, size_t) \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync, 598, deviceptr *, size_t, void *) \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, 611, deviceptr *, size_t, struct pool *, void *) \
    X(cuMemAllocHost, 3020, cuMemAllocHost_v2, 294, void **, size_t) \
    X(cuMemAllocManaged, 6000, cuMemAllocManaged, 371, deviceptr *, size_t, unsigned) \
    X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, 244, deviceptr *, size_t *, size_t, size_t, unsigned) \
    X(cuMemCreate, 10020, cuMemCreate, 549, uint64_t *, size_t, const struct allocation_prop *, unsigned long long) \
    X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle, 554, void *, uint64_t, int, unsigned long long) \
    X(cuMemFree, 3020, cuMemFree_v2, 245, deviceptr) \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync, 600, deviceptr, void *) \
    X(cuMemFreeHost, 2000, cuMemFreeHost, 38, void *) \
    X(cuMemGetAccess, 10020, cuMemGetAccess, 558, unsigned long long *, const struct location *, deviceptr) \
    X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2, 246, deviceptr *, size_t *, deviceptr) \
    X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity, 556, size_t *, const struct allocation_prop *, int) \
    X(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle, 557, struct allocation_prop *, uint64_t) \
    X(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool, 801, struct pool **, const struct location *, int) \
    X(cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange, 674, void *, deviceptr, size_t, int, unsigned long long) \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2, 242, size_t *, size_t *) \
    X(cuMemGetMemPool, 13000, cuMemGetMemPool, 802, struct pool **, const struct location *, int) \
    X(cuMemHostAlloc, 2020, cuMemHostAlloc, 39, void **, size_t, unsigned) \
    X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2, 247, deviceptr *, void *, unsigned) \
    X(cuMemHostGetFlags, 2030, cuMemHostGetFlags, 42, unsigned *, void *) \
    X(cuMemHostRegister, 4000, cuMemHostRegister, 301, void *, size_t, unsigned) \
    X(cuMemHostRegister, 6050, cuMemHostRegister_v2, 379, void *, size_t, unsigned) \
    X(cuMemHostUnregister, 4000, cuMemHostUnregister, 302, void *) \
    X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle, 555, uint64_t *, void *, int) \
    X(cuMemMap, 10020, cuMemMap, 551, deviceptr, size_t, size_t, uint64_t, unsigned long long) \
    X(cuMemPoolCreate, 11020, cuMemPoolCreate, 607, struct pool **, const struct pool_props *) \
    X(cuMemPoolDestroy, 11020, cuMemPoolDestroy, 608, struct pool *) \
    X(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer, 615, struct opaque64 *, deviceptr) \
    X(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle, 613, void *, struct pool *, int, unsigned long long) \
    X(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess, 617, int *, struct pool *, const struct location *) \
    X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute, 604, struct pool *, int, void *) \
    X(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle, 614, struct pool **, void *, int, unsigned long long) \
    X(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer, 616, deviceptr *, struct pool *, const struct opaque64 *) \
    X(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess, 605, struct pool *, const struct access_desc *, size_t) \
    X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute, 603, struct pool *, int, void *) \
    X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo, 602, struct pool *, size_t) \
    X(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync, 467, deviceptr, size_t, int, void *) \
    X(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2, 716, deviceptr, size_t, struct location, unsigned, void *) \
    X(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute, 471, void *, size_t, int, deviceptr, size_t) \
    X(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes, 472, void **, size_t *, int *, size_t, deviceptr, size_t) \
    X(cuMemRelease, 10020, cuMemRelease, 550, uint64_t) \
    X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, 565, uint64_t *, void *) \
    X(cuMemSetAccess, 10020, cuMemSetAccess, 553, deviceptr, size_t, const struct access_desc *, size_t) \
    X(cuMemSetMemPool, 13000, cuMemSetMemPool, 803, const struct location *, int, struct pool *) \
    X(cuMemUnmap, 10020, cuMemUnmap, 552, deviceptr, size_t) \
    X(cuMemcpy, 4000, cuMemcpy, 305, deviceptr, deviceptr, size_t) \
    X(cuMemcpy2D, 3020, cuMemcpy2D_v2, 287, const struct copy2d *) \
    X(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, 289, const struct copy2d *, void *) \
    X(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, 288, const struct copy2d *) \
    X(cuMemcpy3D, 3020, cuMemcpy3D_v2, 290, const struct copy3d *) \
    X(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2, 291, const struct copy3d *, void *) \
    X(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer, 320, const struct copy3d *) \
    X(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync, 321, const struct copy3d *, void *) \
    X(cuMemcpyAsync, 4000, cuMemcpyAsync, 306, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync, 776, deviceptr *, deviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, void *) \
    X(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2, 796, deviceptr *, deviceptr *, size_t *, size_t, void *, size_t *, size_t, void *) \
    X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, 280, deviceptr, deviceptr, size_t) \
    X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, 281, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, 278, void *, deviceptr, size_t) \
    X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, 279, void *, deviceptr, size_t, void *) \
    X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, 276, deviceptr, const void *, size_t) \
    X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, 277, deviceptr, const void *, size_t, void *) \
    X(cuMemcpyPeer, 4000, cuMemcpyPeer, 318, deviceptr, struct context *, deviceptr, struct context *, size_t) \
    X(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync, 319, deviceptr, struct context *, deviceptr, struct context *, size_t, void *) \
    X(cuMemsetD16, 3020, cuMemsetD16_v2, 250, deviceptr, unsigned short, size_t) \
    X(cuMemsetD16Async, 3020, cuMemsetD16Async, 218, deviceptr, unsigned short, size_t, void *) \
    X(cuMemsetD2D16, 3020, cuMemsetD2D16_v2, 253, deviceptr, size_t, unsigned short, size_t, size_t) \
    X(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async, 224, deviceptr, size_t, unsigned short, size_t, size_t, void *) \
    X(cuMemsetD2D32, 3020, cuMemsetD2D32_v2, 254, deviceptr, size_t, unsigned, size_t, size_t) \
    X(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async, 226, deviceptr, size_t, unsigned, size_t, size_t, void *) \
    X(cuMemsetD2D8, 3020, cuMemsetD2D8_v2, 252, deviceptr, size_t, unsigned char, size_t, size_t) \
    X(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async, 222, deviceptr, size_t, unsigned char, size_t, size_t, void *) \
    X(cuMemsetD32, 3020, cuMemsetD32_v2, 251, deviceptr, unsigned, size_t) \
    X(cuMemsetD32Async, 3020, cuMemsetD32Async, 220, deviceptr, unsigned, size_t, void *) \
    X(cuMemsetD8, 3020, cuMemsetD8_v2, 249, deviceptr, unsigned char, size_t) \
    X(cuMemsetD8Async, 3020, cuMemsetD8Async, 216, deviceptr, unsigned char, size_t, void *) \
    X(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode, 673, int *) \
    X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx, 20, void **, const void *, unsigned, const int *, void **) \
    X(cuPointerGetAttribute, 4000, cuPointerGetAttribute, 310, void *, int, deviceptr) \
    X(cuPointerGetAttributes, 7000, cuPointerGetAttributes, 450, unsigned, int *, void **, deviceptr) \
    X(cuPointerSetAttribute, 6000, cuPointerSetAttribute, 378, const void *, int, deviceptr) \
    X(cuProfilerStart, 4000, cuProfilerStart, 308) \
    X(cuProfilerStop, 4000, cuProfilerStop, 309) \
    X(cuStreamAddCallback, 5000, cuStreamAddCallback, 346, void *, stream_callback, void *, unsigned) \
    X(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync, 377, void *, deviceptr, size_t, unsigned) \
    X(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes, 572, void *, void *) \
    X(cuStreamCreate, 2000, cuStreamCreate, 124, struct stream **, unsigned) \
    X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority, 367, struct stream **, unsigned, int) \
    X(cuStreamDestroy, 2000, cuStreamDestroy, 127, struct stream *) \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2, 326, struct stream *) \
    X(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo, 536, void *, int *, uint64_t *) \
    X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2, 629, void *, int *, uint64_t *, void **, void *, size_t *) \
    X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3, 729, void *, int *, uint64_t *, void **, void *, void *, size_t *) \
    X(cuStreamGetCtx, 9020, cuStreamGetCtx, 483, void *, struct context **) \
    X(cuStreamGetCtx, 12050, cuStreamGetCtx_v2, 759, void *, struct context **, void **) \
    X(cuStreamGetDevice, 12080, cuStreamGetDevice, 774, void *, int *) \
    X(cuStreamGetFlags, 5050, cuStreamGetFlags, 369, void *, unsigned *) \
    X(cuStreamGetId, 12000, cuStreamGetId, 693, void *, unsigned long long *) \
    X(cuStreamGetPriority, 5050, cuStreamGetPriority, 368, void *, int *) \
    X(cuStreamIsCapturing, 10000, cuStreamIsCapturing, 499, void *, int *) \
    X(cuStreamQuery, 2000, cuStreamQuery, 125, void *) \
    X(cuStreamSynchronize, 2000, cuStreamSynchronize, 126, void *) \
    X(cuStreamWaitEvent, 3020, cuStreamWaitEvent, 295, void *, struct event *, unsigned) \
    X(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2, 663, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2, 665, void *, deviceptr, uint64_t, unsigned) \
    X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode, 541, int *)

/* A function that has to know who called it, and is not reported: what it returns is for tools and the runtime. */
#define UNREPORTED_FUNCTIONS(X) \
    X(cuGetExportTable, 3000, cuGetExportTable, 135, const void **, const struct uuid *)

/* Forms of implemented functions whose default stream is that of the calling thread; the fifth column is the function that they are. */
#define PER_THREAD_FUNCTIONS(X) \
    X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags_ptsz, 588, cuEventRecordWithFlags, struct event *, void *, unsigned) \
    X(cuEventRecord, 7000, cuEventRecord_ptsz, 441, cuEventRecord, struct event *, void *) \
    X(cuLaunchHostFunc, 10000, cuLaunchHostFunc_ptsz, 528, cuLaunchHostFunc, void *, host_function, void *) \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync_ptsz, 599, cuMemAllocAsync, deviceptr *, size_t, void *) \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync_ptsz, 612, cuMemAllocFromPoolAsync, deviceptr *, size_t, struct pool *, void *) \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync_ptsz, 601, cuMemFreeAsync, deviceptr, void *) \
    X(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync_ptsz, 468, cuMemPrefetchAsync, deviceptr, size_t, int, void *) \
    X(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2_ptsz, 717, cuMemPrefetchAsync_v2, deviceptr, size_t, struct location, unsigned, void *) \
    X(cuMemcpy2DAsync, 7000, cuMemcpy2DAsync_v2_ptsz, 424, cuMemcpy2DAsync_v2, const struct copy2d *, void *) \
    X(cuMemcpy2DUnaligned, 7000, cuMemcpy2DUnaligned_v2_ptds, 406, cuMemcpy2DUnaligned_v2, const struct copy2d *) \
    X(cuMemcpy2D, 7000, cuMemcpy2D_v2_ptds, 405, cuMemcpy2D_v2, const struct copy2d *) \
    X(cuMemcpy3DAsync, 7000, cuMemcpy3DAsync_v2_ptsz, 425, cuMemcpy3DAsync_v2, const struct copy3d *, void *) \
    X(cuMemcpy3DPeerAsync, 7000, cuMemcpy3DPeerAsync_ptsz, 427, cuMemcpy3DPeerAsync, const struct copy3d *, void *) \
    X(cuMemcpy3DPeer, 7000, cuMemcpy3DPeer_ptds, 410, cuMemcpy3DPeer, const struct copy3d *) \
    X(cuMemcpy3D, 7000, cuMemcpy3D_v2_ptds, 407, cuMemcpy3D_v2, const struct copy3d *) \
    X(cuMemcpyAsync, 7000, cuMemcpyAsync_ptsz, 418, cuMemcpyAsync, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync_ptsz, 777, cuMemcpyBatchAsync, deviceptr *, deviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, void *) \
    X(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2_ptsz, 797, cuMemcpyBatchAsync_v2, deviceptr *, deviceptr *, size_t *, size_t, void *, size_t *, size_t, void *) \
    X(cuMemcpyDtoDAsync, 7000, cuMemcpyDtoDAsync_v2_ptsz, 423, cuMemcpyDtoDAsync_v2, deviceptr, deviceptr, size_t, void *) \
    X(cuMemcpyDtoD, 7000, cuMemcpyDtoD_v2_ptds, 399, cuMemcpyDtoD_v2, deviceptr, deviceptr, size_t) \
    X(cuMemcpyDtoHAsync, 7000, cuMemcpyDtoHAsync_v2_ptsz, 422, cuMemcpyDtoHAsync_v2, void *, deviceptr, size_t, void *) \
    X(cuMemcpyDtoH, 7000, cuMemcpyDtoH_v2_ptds, 398, cuMemcpyDtoH_v2, void *, deviceptr, size_t) \
    X(cuMemcpyHtoDAsync, 7000, cuMemcpyHtoDAsync_v2_ptsz, 421, cuMemcpyHtoDAsync_v2, deviceptr, const void *, size_t, void *) \
    X(cuMemcpyHtoD, 7000, cuMemcpyHtoD_v2_ptds, 397, cuMemcpyHtoD_v2, deviceptr, const void *, size_t) \
    X(cuMemcpyPeerAsync, 7000, cuMemcpyPeerAsync_ptsz, 426, cuMemcpyPeerAsync, deviceptr, struct context *, deviceptr, struct context *, size_t, void *) \
    X(cuMemcpyPeer, 7000, cuMemcpyPeer_ptds, 409, cuMemcpyPeer, deviceptr, struct context *, deviceptr, struct context *, size_t) \
    X(cuMemcpy, 7000, cuMemcpy_ptds, 408, cuMemcpy, deviceptr, deviceptr, size_t) \
    X(cuMemsetD16Async, 7000, cuMemsetD16Async_ptsz, 429, cuMemsetD16Async, deviceptr, unsigned short, size_t, void *) \
    X(cuMemsetD16, 7000, cuMemsetD16_v2_ptds, 412, cuMemsetD16_v2, deviceptr, unsigned short, size_t) \
    X(cuMemsetD2D16Async, 7000, cuMemsetD2D16Async_ptsz, 432, cuMemsetD2D16Async, deviceptr, size_t, unsigned short, size_t, size_t, void *) \
    X(cuMemsetD2D16, 7000, cuMemsetD2D16_v2_ptds, 415, cuMemsetD2D16_v2, deviceptr, size_t, unsigned short, size_t, size_t) \
    X(cuMemsetD2D32Async, 7000, cuMemsetD2D32Async_ptsz, 433, cuMemsetD2D32Async, deviceptr, size_t, unsigned, size_t, size_t, void *) \
    X(cuMemsetD2D32, 7000, cuMemsetD2D32_v2_ptds, 416, cuMemsetD2D32_v2, deviceptr, size_t, unsigned, size_t, size_t) \
    X(cuMemsetD2D8Async, 7000, cuMemsetD2D8Async_ptsz, 431, cuMemsetD2D8Async, deviceptr, size_t, unsigned char, size_t, size_t, void *) \
    X(cuMemsetD2D8, 7000, cuMemsetD2D8_v2_ptds, 414, cuMemsetD2D8_v2, deviceptr, size_t, unsigned char, size_t, size_t) \
    X(cuMemsetD32Async, 7000, cuMemsetD32Async_ptsz, 430, cuMemsetD32Async, deviceptr, unsigned, size_t, void *) \
    X(cuMemsetD32, 7000, cuMemsetD32_v2_ptds, 413, cuMemsetD32_v2, deviceptr, unsigned, size_t) \
    X(cuMemsetD8Async, 7000, cuMemsetD8Async_ptsz, 428, cuMemsetD8Async, deviceptr, unsigned char, size_t, void *) \
    X(cuMemsetD8, 7000, cuMemsetD8_v2_ptds, 411, cuMemsetD8_v2, deviceptr, unsigned char, size_t) \
    X(cuStreamAddCallback, 7000, cuStreamAddCallback_ptsz, 437, cuStreamAddCallback, void *, stream_callback, void *, unsigned) \
    X(cuStreamAttachMemAsync, 7000, cuStreamAttachMemAsync_ptsz, 438, cuStreamAttachMemAsync, void *, deviceptr, size_t, unsigned) \
    X(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes_ptsz, 573, cuStreamCopyAttributes, void *, void *) \
    X(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo_ptsz, 537, cuStreamGetCaptureInfo, void *, int *, uint64_t *) \
    X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2_ptsz, 630, cuStreamGetCaptureInfo_v2, void *, int *, uint64_t *, void **, void *, size_t *) \
    X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3_ptsz, 730, cuStreamGetCaptureInfo_v3, void *, int *, uint64_t *, void **, void *, void *, size_t *) \
    X(cuStreamGetCtx, 9020, cuStreamGetCtx_ptsz, 484, cuStreamGetCtx, void *, struct context **) \
    X(cuStreamGetCtx, 12050, cuStreamGetCtx_v2_ptsz, 760, cuStreamGetCtx_v2, void *, struct context **, void **) \
    X(cuStreamGetDevice, 12080, cuStreamGetDevice_ptsz, 775, cuStreamGetDevice, void *, int *) \
    X(cuStreamGetFlags, 7000, cuStreamGetFlags_ptsz, 435, cuStreamGetFlags, void *, unsigned *) \
    X(cuStreamGetId, 12000, cuStreamGetId_ptsz, 694, cuStreamGetId, void *, unsigned long long *) \
    X(cuStreamGetPriority, 7000, cuStreamGetPriority_ptsz, 434, cuStreamGetPriority, void *, int *) \
    X(cuStreamIsCapturing, 10000, cuStreamIsCapturing_ptsz, 500, cuStreamIsCapturing, void *, int *) \
    X(cuStreamQuery, 7000, cuStreamQuery_ptsz, 439, cuStreamQuery, void *) \
    X(cuStreamSynchronize, 7000, cuStreamSynchronize_ptsz, 440, cuStreamSynchronize, void *) \
    X(cuStreamWaitEvent, 7000, cuStreamWaitEvent_ptsz, 436, cuStreamWaitEvent, void *, struct event *, unsigned) \
    X(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2_ptsz, 664, cuStreamWriteValue32_v2, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2_ptsz, 666, cuStreamWriteValue64_v2, void *, deviceptr, uint64_t, unsigned)

/* Functions that answer NOT_SUPPORTED. Nothing reads what their parameters point to: any pointer is void *. */
#define UNSUPPORTED(X) \
    X(cuArray3DCreate, 2000, cuArray3DCreate, 90, void *, void *) \
    X(cuArray3DCreate, 3020, cuArray3DCreate_v2, 274, void *, void *) \
    X(cuArray3DGetDescriptor, 2000, cuArray3DGetDescriptor, 91, void *, void *) \
    X(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2, 275, void *, void *) \
    X(cuArrayCreate, 2000, cuArrayCreate, 87, void *, void *) \
    X(cuArrayCreate, 3020, cuArrayCreate_v2, 272, void *, void *) \
    X(cuArrayDestroy, 2000, cuArrayDestroy, 89, void *) \
    X(cuArrayGetDescriptor, 2000, cuArrayGetDescriptor, 88, void *, void *) \
    X(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2, 273, void *, void *) \
    X(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements, 654, void *, void *, int) \
    X(cuArrayGetPlane, 11020, cuArrayGetPlane, 597, void *, void *, unsigned) \
    X(cuArrayGetSparseProperties, 11010, cuArrayGetSparseProperties, 582, void *, void *) \
    X(cuCoredumpGetAttribute, 12010, cuCoredumpGetAttribute, 701, int, void *, void *) \
    X(cuCoredumpGetAttributeGlobal, 12010, cuCoredumpGetAttributeGlobal, 702, int, void *, void *) \
    X(cuCoredumpSetAttribute, 12010, cuCoredumpSetAttribute, 703, int, void *, void *) \
    X(cuCoredumpSetAttributeGlobal, 12010, cuCoredumpSetAttributeGlobal, 704, int, void *, void *) \
    X(cuCtxGetDevResource, 12040, cuCtxGetDevResource, 746, void *, void *, int) \
    X(cuCtxGetExecAffinity, 11040, cuCtxGetExecAffinity, 646, void *, int) \
    X(cuCtxRecordEvent, 12050, cuCtxRecordEvent, 755, void *, void *) \
    X(cuCtxWaitEvent, 12050, cuCtxWaitEvent, 756, void *, void *) \
    X(cuDestroyExternalMemory, 10000, cuDestroyExternalMemory, 488, void *) \
    X(cuDestroyExternalSemaphore, 10000, cuDestroyExternalSemaphore, 494, void *) \
    X(cuDeviceGetHostAtomicCapabilities, 13000, cuDeviceGetHostAtomicCapabilities, 805, void *, void *, unsigned, int) \
    X(cuDeviceGetNvSciSyncAttributes, 10020, cuDeviceGetNvSciSyncAttributes, 542, void *, int, int) \
    X(cuDeviceGetP2PAtomicCapabilities, 13000, cuDeviceGetP2PAtomicCapabilities, 804, void *, void *, unsigned, int, int) \
    X(cuDeviceGetProperties, 2000, cuDeviceGetProperties, 8, void *, int) \
    X(cuDeviceGetTexture1DLinearMaxWidth, 11010, cuDeviceGetTexture1DLinearMaxWidth, 579, void *, int, unsigned, int) \
    X(cuDeviceRegisterAsyncNotification, 12040, cuDeviceRegisterAsyncNotification, 735, int, void *, void *, void *) \
    X(cuDeviceUnregisterAsyncNotification, 12040, cuDeviceUnregisterAsyncNotification, 736, int, void *) \
    X(cuExternalMemoryGetMappedBuffer, 10000, cuExternalMemoryGetMappedBuffer, 486, void *, void *, void *) \
    X(cuExternalMemoryGetMappedMipmappedArray, 10000, cuExternalMemoryGetMappedMipmappedArray, 487, void *, void *, void *) \
    X(cuFuncGetAttribute, 2020, cuFuncGetAttribute, 85, void *, int, void *) \
    X(cuFuncGetModule, 11000, cuFuncGetModule, 566, void *, void *) \
    X(cuFuncGetName, 12030, cuFuncGetName, 718, void *, void *) \
    X(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo, 733, void *, size_t, void *, void *) \
    X(cuFuncIsLoaded, 12040, cuFuncIsLoaded, 741, void *, void *) \
    X(cuFuncLoad, 12040, cuFuncLoad, 742, void *) \
    X(cuFuncSetAttribute, 9000, cuFuncSetAttribute, 481, void *, int, int) \
    X(cuFuncSetBlockShape, 2000, cuFuncSetBlockShape, 83, void *, int, int, int) \
    X(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig, 86, void *, int) \
    X(cuFuncSetSharedMemConfig, 4020, cuFuncSetSharedMemConfig, 338, void *, int) \
    X(cuFuncSetSharedSize, 2000, cuFuncSetSharedSize, 84, void *, unsigned) \
    X(cuGraphAddBatchMemOpNode, 11070, cuGraphAddBatchMemOpNode, 669, void *, void *, void *, size_t, void *) \
    X(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode, 525, void *, void *, void *, size_t, void *) \
    X(cuGraphAddDependencies, 10000, cuGraphAddDependencies, 518, void *, void *, void *, size_t) \
    X(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2, 727, void *, void *, void *, void *, size_t) \
    X(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode, 526, void *, void *, void *, size_t) \
    X(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode, 589, void *, void *, void *, size_t, void *) \
    X(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode, 590, void *, void *, void *, size_t, void *) \
    X(cuGraphAddExternalSemaphoresSignalNode, 11020, cuGraphAddExternalSemaphoresSignalNode, 618, void *, void *, void *, size_t, void *) \
    X(cuGraphAddExternalSemaphoresWaitNode, 11020, cuGraphAddExternalSemaphoresWaitNode, 621, void *, void *, void *, size_t, void *) \
    X(cuGraphAddHostNode, 10000, cuGraphAddHostNode, 530, void *, void *, void *, size_t, void *) \
    X(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode, 502, void *, void *, void *, size_t, void *) \
    X(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2, 689, void *, void *, void *, size_t, void *) \
    X(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode, 638, void *, void *, void *, size_t, void *) \
    X(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode, 639, void *, void *, void *, size_t, deviceptr) \
    X(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode, 504, void *, void *, void *, size_t, void *, void *) \
    X(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode, 506, void *, void *, void *, size_t, void *, void *) \
    X(cuGraphAddNode, 12020, cuGraphAddNode, 712, void *, void *, void *, size_t, void *) \
    X(cuGraphAddNode, 12030, cuGraphAddNode_v2, 723, void *, void *, void *, void *, size_t, void *) \
    X(cuGraphBatchMemOpNodeGetParams, 11070, cuGraphBatchMemOpNodeGetParams, 670, void *, void *) \
    X(cuGraphBatchMemOpNodeSetParams, 11070, cuGraphBatchMemOpNodeSetParams, 671, void *, void *) \
    X(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph, 529, void *, void *) \
    X(cuGraphClone, 10000, cuGraphClone, 523, void *, void *) \
    X(cuGraphConditionalHandleCreate, 12030, cuGraphConditionalHandleCreate, 722, void *, void *, void *, unsigned, unsigned) \
    X(cuGraphCreate, 10000, cuGraphCreate, 501, void *, unsigned) \
    X(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint, 628, void *, void *, unsigned) \
    X(cuGraphDestroy, 10000, cuGraphDestroy, 517, void *) \
    X(cuGraphDestroyNode, 10000, cuGraphDestroyNode, 522, void *) \
    X(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent, 591, void *, void *) \
    X(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent, 593, void *, void *) \
    X(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent, 592, void *, void *) \
    X(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent, 594, void *, void *) \
    X(cuGraphExecBatchMemOpNodeSetParams, 11070, cuGraphExecBatchMemOpNodeSetParams, 672, void *, void *, void *) \
    X(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams, 586, void *, void *, void *) \
    X(cuGraphExecDestroy, 10000, cuGraphExecDestroy, 516, void *) \
    X(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent, 595, void *, void *, void *) \
    X(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent, 596, void *, void *, void *) \
    X(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020, cuGraphExecExternalSemaphoresSignalNodeSetParams, 624, void *, void *, void *) \
    X(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020, cuGraphExecExternalSemaphoresWaitNodeSetParams, 625, void *, void *, void *) \
    X(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags, 658, void *, void *) \
    X(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams, 564, void *, void *, void *) \
    X(cuGraphExecKernelNodeSetParams, 10010, cuGraphExecKernelNodeSetParams, 538, void *, void *, void *) \
    X(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2, 692, void *, void *, void *) \
    X(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams, 562, void *, void *, void *, void *) \
    X(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams, 563, void *, void *, void *, void *) \
    X(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams, 714, void *, void *, void *) \
    X(cuGraphExecUpdate, 10020, cuGraphExecUpdate, 561, void *, void *, void *, void *) \
    X(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2, 696, void *, void *, void *) \
    X(cuGraphExternalSemaphoresSignalNodeGetParams, 11020, cuGraphExternalSemaphoresSignalNodeGetParams, 619, void *, void *) \
    X(cuGraphExternalSemaphoresSignalNodeSetParams, 11020, cuGraphExternalSemaphoresSignalNodeSetParams, 620, void *, void *) \
    X(cuGraphExternalSemaphoresWaitNodeGetParams, 11020, cuGraphExternalSemaphoresWaitNodeGetParams, 622, void *, void *) \
    X(cuGraphExternalSemaphoresWaitNodeSetParams, 11020, cuGraphExternalSemaphoresWaitNodeSetParams, 623, void *, void *) \
    X(cuGraphGetEdges, 10000, cuGraphGetEdges, 535, void *, void *, void *, void *) \
    X(cuGraphGetEdges, 12030, cuGraphGetEdges_v2, 724, void *, void *, void *, void *, void *) \
    X(cuGraphGetNodes, 10000, cuGraphGetNodes, 534, void *, void *, void *) \
    X(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes, 510, void *, void *, void *) \
    X(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams, 531, void *, void *) \
    X(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams, 533, void *, void *) \
    X(cuGraphInstantiate, 10000, cuGraphInstantiate, 513, void *, void *, void *, void *, size_t) \
    X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags, 643, void *, void *, unsigned long long) \
    X(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, 656, void *, void *, void *) \
    X(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes, 569, void *, void *) \
    X(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute, 570, void *, int, void *) \
    X(cuGraphKernelNodeGetParams, 10000, cuGraphKernelNodeGetParams, 503, void *, void *) \
    X(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2, 690, void *, void *) \
    X(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute, 571, void *, int, void *) \
    X(cuGraphKernelNodeSetParams, 10000, cuGraphKernelNodeSetParams, 521, void *, void *) \
    X(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2, 691, void *, void *) \
    X(cuGraphLaunch, 10000, cuGraphLaunch, 514, void *, void *) \
    X(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams, 648, void *, void *) \
    X(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams, 649, void *, void *) \
    X(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams, 505, void *, void *) \
    X(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams, 520, void *, void *) \
    X(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams, 507, void *, void *) \
    X(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams, 508, void *, void *) \
    X(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone, 524, void *, void *, void *) \
    X(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies, 511, void *, void *, void *) \
    X(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2, 725, void *, void *, void *, void *) \
    X(cuGraphNodeGetDependentNodes, 10000, cuGraphNodeGetDependentNodes, 512, void *, void *, void *) \
    X(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2, 726, void *, void *, void *, void *) \
    X(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled, 651, void *, void *, void *) \
    X(cuGraphNodeGetType, 10000, cuGraphNodeGetType, 509, void *, void *) \
    X(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled, 650, void *, void *, unsigned) \
    X(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams, 713, void *, void *) \
    X(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject, 637, void *, void *, unsigned) \
    X(cuGraphRemoveDependencies, 10000, cuGraphRemoveDependencies, 519, void *, void *, void *, size_t) \
    X(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2, 728, void *, void *, void *, void *, size_t) \
    X(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject, 636, void *, void *, unsigned, unsigned) \
    X(cuGraphUpload, 11010, cuGraphUpload, 580, void *, void *) \
    X(cuGraphicsMapResources, 3000, cuGraphicsMapResources, 133, unsigned, void *, void *) \
    X(cuGraphicsResourceGetMappedMipmappedArray, 5000, cuGraphicsResourceGetMappedMipmappedArray, 360, void *, void *) \
    X(cuGraphicsResourceGetMappedPointer, 3000, cuGraphicsResourceGetMappedPointer, 130, void *, void *, void *) \
    X(cuGraphicsResourceGetMappedPointer, 3020, cuGraphicsResourceGetMappedPointer_v2, 258, void *, void *, void *) \
    X(cuGraphicsResourceSetMapFlags, 3000, cuGraphicsResourceSetMapFlags, 132, void *, unsigned) \
    X(cuGraphicsResourceSetMapFlags, 6050, cuGraphicsResourceSetMapFlags_v2, 380, void *, unsigned) \
    X(cuGraphicsSubResourceGetMappedArray, 3000, cuGraphicsSubResourceGetMappedArray, 129, void *, void *, unsigned, unsigned) \
    X(cuGraphicsUnmapResources, 3000, cuGraphicsUnmapResources, 134, unsigned, void *, void *) \
    X(cuGraphicsUnregisterResource, 3000, cuGraphicsUnregisterResource, 128, void *) \
    X(cuGreenCtxGetId, 12090, cuGreenCtxGetId, 782, void *, void *) \
    X(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent, 749, void *, void *) \
    X(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent, 750, void *, void *) \
    X(cuImportExternalMemory, 10000, cuImportExternalMemory, 485, void *, void *) \
    X(cuImportExternalSemaphore, 10000, cuImportExternalSemaphore, 489, void *, void *) \
    X(cuKernelGetAttribute, 12000, cuKernelGetAttribute, 686, void *, int, void *, int) \
    X(cuKernelGetFunction, 12000, cuKernelGetFunction, 683, void *, void *) \
    X(cuKernelGetLibrary, 12050, cuKernelGetLibrary, 754, void *, void *) \
    X(cuKernelGetName, 12030, cuKernelGetName, 719, void *, void *) \
    X(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo, 734, void *, size_t, void *, void *) \
    X(cuKernelSetAttribute, 12000, cuKernelSetAttribute, 687, int, int, void *, int) \
    X(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig, 688, void *, int, int) \
    X(cuLaunch, 2000, cuLaunch, 115, void *) \
    X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, 477, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *) \
    X(cuLaunchCooperativeKernelMultiDevice, 9000, cuLaunchCooperativeKernelMultiDevice, 480, void *, unsigned, unsigned) \
    X(cuLaunchGrid, 2000, cuLaunchGrid, 116, void *, int, int) \
    X(cuLaunchGridAsync, 2000, cuLaunchGridAsync, 117, void *, int, int, void *) \
    X(cuLaunchKernel, 4000, cuLaunchKernel, 307, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *, void *) \
    X(cuLaunchKernelEx, 11060, cuLaunchKernelEx, 652, void *, void *, void *, void *) \
    X(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels, 740, void *, unsigned, void *) \
    X(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal, 684, void *, void *, void *, void *) \
    X(cuLibraryGetKernel, 12000, cuLibraryGetKernel, 681, void *, void *, void *) \
    X(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount, 739, void *, void *) \
    X(cuLibraryGetManaged, 12000, cuLibraryGetManaged, 685, void *, void *, void *, void *) \
    X(cuLibraryGetModule, 12000, cuLibraryGetModule, 682, void *, void *) \
    X(cuLibraryGetUnifiedFunction, 12000, cuLibraryGetUnifiedFunction, 700, void *, void *, void *) \
    X(cuLibraryLoadData, 12000, cuLibraryLoadData, 678, void *, void *, void *, void *, unsigned, void *, void *, unsigned) \
    X(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile, 679, void *, void *, void *, void *, unsigned, void *, void *, unsigned) \
    X(cuLibraryUnload, 12000, cuLibraryUnload, 680, void *) \
    X(cuLinkAddData, 5050, cuLinkAddData, 363, void *, int, void *, size_t, void *, unsigned, void *, void *) \
    X(cuLinkAddData, 6050, cuLinkAddData_v2, 382, void *, int, void *, size_t, void *, unsigned, void *, void *) \
    X(cuLinkAddFile, 5050, cuLinkAddFile, 364, void *, int, void *, unsigned, void *, void *) \
    X(cuLinkAddFile, 6050, cuLinkAddFile_v2, 383, void *, int, void *, unsigned, void *, void *) \
    X(cuLinkComplete, 5050, cuLinkComplete, 365, void *, void *, void *) \
    X(cuLinkCreate, 5050, cuLinkCreate, 362, unsigned, void *, void *, void *) \
    X(cuLinkCreate, 6050, cuLinkCreate_v2, 381, unsigned, void *, void *, void *) \
    X(cuLinkDestroy, 5050, cuLinkDestroy, 366, void *) \
    X(cuLogsCurrent, 12090, cuLogsCurrent, 765, void *, unsigned) \
    X(cuLogsDumpToFile, 12090, cuLogsDumpToFile, 766, void *, void *, unsigned) \
    X(cuLogsDumpToMemory, 12090, cuLogsDumpToMemory, 767, void *, void *, void *, unsigned) \
    X(cuLogsRegisterCallback, 12090, cuLogsRegisterCallback, 763, void *, void *, void *) \
    X(cuLogsUnregisterCallback, 12090, cuLogsUnregisterCallback, 764, void *) \
    X(cuMemBatchDecompressAsync, 12060, cuMemBatchDecompressAsync, 761, void *, size_t, unsigned, void *, void *) \
    X(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync, 791, void *, void *, size_t, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync, 789, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemMapArrayAsync, 11010, cuMemMapArrayAsync, 584, void *, unsigned, void *) \
    X(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync, 784, void *, void *, size_t, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync, 778, size_t, void *, void *, unsigned long long, void *) \
    X(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2, 798, size_t, void *, unsigned long long, void *) \
    X(cuMemcpyAtoA, 2000, cuMemcpyAtoA, 55, void *, unsigned, void *, unsigned, unsigned) \
    X(cuMemcpyAtoA, 3020, cuMemcpyAtoA_v2, 286, void *, size_t, void *, size_t, size_t) \
    X(cuMemcpyAtoD, 2000, cuMemcpyAtoD, 51, unsigned, void *, unsigned, unsigned) \
    X(cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2, 284, deviceptr, void *, size_t, size_t) \
    X(cuMemcpyAtoH, 2000, cuMemcpyAtoH, 54, void *, void *, unsigned, unsigned) \
    X(cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2, 282, void *, void *, size_t, size_t) \
    X(cuMemcpyAtoHAsync, 2000, cuMemcpyAtoHAsync, 67, void *, void *, unsigned, unsigned, void *) \
    X(cuMemcpyAtoHAsync, 3020, cuMemcpyAtoHAsync_v2, 283, void *, void *, size_t, size_t, void *) \
    X(cuMemcpyDtoA, 2000, cuMemcpyDtoA, 49, void *, unsigned, unsigned, unsigned) \
    X(cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2, 285, void *, size_t, deviceptr, size_t) \
    X(cuMemcpyHtoA, 2000, cuMemcpyHtoA, 53, void *, unsigned, void *, unsigned) \
    X(cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2, 292, void *, size_t, void *, size_t) \
    X(cuMemcpyHtoAAsync, 2000, cuMemcpyHtoAAsync, 66, void *, unsigned, void *, unsigned, void *) \
    X(cuMemcpyHtoAAsync, 3020, cuMemcpyHtoAAsync_v2, 293, void *, size_t, void *, size_t, void *) \
    X(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate, 347, void *, void *, unsigned) \
    X(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy, 349, void *) \
    X(cuMipmappedArrayGetLevel, 5000, cuMipmappedArrayGetLevel, 348, void *, void *, unsigned) \
    X(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements, 655, void *, void *, int) \
    X(cuMipmappedArrayGetSparseProperties, 11010, cuMipmappedArrayGetSparseProperties, 583, void *, void *) \
    X(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions, 738, void *, unsigned, void *) \
    X(cuModuleGetFunction, 2000, cuModuleGetFunction, 23, void *, void *, void *) \
    X(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount, 737, void *, void *) \
    X(cuModuleGetGlobal, 2000, cuModuleGetGlobal, 24, void *, void *, void *, void *) \
    X(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2, 241, void *, void *, void *, void *) \
    X(cuModuleGetSurfRef, 3000, cuModuleGetSurfRef, 190, void *, void *, void *) \
    X(cuModuleGetTexRef, 2000, cuModuleGetTexRef, 26, void *, void *, void *) \
    X(cuModuleLoad, 2000, cuModuleLoad, 18, void *, void *) \
    X(cuModuleLoadData, 2000, cuModuleLoadData, 19, void *, void *) \
    X(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary, 21, void *, void *) \
    X(cuModuleUnload, 2000, cuModuleUnload, 22, void *) \
    X(cuMulticastAddDevice, 12010, cuMulticastAddDevice, 707, uint64_t, int) \
    X(cuMulticastBindAddr, 12010, cuMulticastBindAddr, 709, uint64_t, size_t, deviceptr, size_t, unsigned long long) \
    X(cuMulticastBindMem, 12010, cuMulticastBindMem, 708, uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long) \
    X(cuMulticastCreate, 12010, cuMulticastCreate, 706, void *, void *) \
    X(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity, 711, void *, void *, int) \
    X(cuMulticastUnbind, 12010, cuMulticastUnbind, 710, uint64_t, int, size_t, size_t) \
    X(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock, 543, void *, void *, int, int) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor, 374, void *, void *, int, size_t) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 451, void *, void *, int, size_t, unsigned) \
    X(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters, 676, void *, void *, void *) \
    X(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize, 384, void *, void *, void *, void *, size_t, int) \
    X(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags, 452, void *, void *, void *, void *, size_t, int, unsigned) \
    X(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize, 675, void *, void *, void *) \
    X(cuParamSetSize, 2000, cuParamSetSize, 110, void *, unsigned) \
    X(cuParamSetTexRef, 2000, cuParamSetTexRef, 114, void *, int, void *) \
    X(cuParamSetf, 2000, cuParamSetf, 112, void *, int, float) \
    X(cuParamSeti, 2000, cuParamSeti, 111, void *, int, unsigned) \
    X(cuParamSetv, 2000, cuParamSetv, 113, void *, int, void *, unsigned) \
    X(cuProfilerInitialize, 4000, cuProfilerInitialize, 311, void *, void *, int) \
    X(cuSignalExternalSemaphoresAsync, 10000, cuSignalExternalSemaphoresAsync, 490, void *, void *, unsigned, void *) \
    X(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp, 462, void *, unsigned, void *, unsigned) \
    X(cuStreamBatchMemOp, 11070, cuStreamBatchMemOp_v2, 667, void *, unsigned, void *, unsigned) \
    X(cuStreamBeginCapture, 10000, cuStreamBeginCapture, 495, void *) \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, 539, void *, int) \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph, 720, void *, void *, void *, void *, size_t, int) \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture, 497, void *, void *) \
    X(cuStreamGetAttribute, 11000, cuStreamGetAttribute, 574, void *, int, void *) \
    X(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx, 752, void *, void *) \
    X(cuStreamSetAttribute, 11000, cuStreamSetAttribute, 576, void *, int, void *) \
    X(cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies, 631, void *, void *, size_t, unsigned) \
    X(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2, 731, void *, void *, void *, size_t, unsigned) \
    X(cuStreamWaitValue32, 8000, cuStreamWaitValue32, 458, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2, 659, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWaitValue64, 9000, cuStreamWaitValue64, 473, void *, deviceptr, uint64_t, unsigned) \
    X(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2, 661, void *, deviceptr, uint64_t, unsigned) \
    X(cuSurfObjectCreate, 5000, cuSurfObjectCreate, 343, void *, void *) \
    X(cuSurfObjectDestroy, 5000, cuSurfObjectDestroy, 344, uint64_t) \
    X(cuSurfObjectGetResourceDesc, 5000, cuSurfObjectGetResourceDesc, 345, void *, uint64_t) \
    X(cuSurfRefGetArray, 3000, cuSurfRefGetArray, 196, void *, void *) \
    X(cuSurfRefSetArray, 3000, cuSurfRefSetArray, 194, void *, void *, unsigned) \
    X(cuTensorMapEncodeIm2col, 12000, cuTensorMapEncodeIm2col, 698, void *, int, uint32_t, void *, void *, void *, void *, void *, uint32_t, uint32_t, void *, int, int, int, int) \
    X(cuTensorMapEncodeIm2colWide, 12080, cuTensorMapEncodeIm2colWide, 781, void *, int, uint32_t, void *, void *, void *, int, int, uint32_t, uint32_t, void *, int, int, int, int, int) \
    X(cuTensorMapEncodeTiled, 12000, cuTensorMapEncodeTiled, 697, void *, int, uint32_t, void *, void *, void *, void *, void *, int, int, int, int) \
    X(cuTensorMapReplaceAddress, 12000, cuTensorMapReplaceAddress, 699, void *, void *) \
    X(cuTexObjectCreate, 5000, cuTexObjectCreate, 339, void *, void *, void *, void *) \
    X(cuTexObjectDestroy, 5000, cuTexObjectDestroy, 340, uint64_t) \
    X(cuTexObjectGetResourceDesc, 5000, cuTexObjectGetResourceDesc, 341, void *, uint64_t) \
    X(cuTexObjectGetResourceViewDesc, 5000, cuTexObjectGetResourceViewDesc, 361, void *, uint64_t) \
    X(cuTexObjectGetTextureDesc, 5000, cuTexObjectGetTextureDesc, 342, void *, uint64_t) \
    X(cuTexRefCreate, 2000, cuTexRefCreate, 92, void *) \
    X(cuTexRefDestroy, 2000, cuTexRefDestroy, 93, void *) \
    X(cuTexRefGetAddress, 2000, cuTexRefGetAddress, 103, void *, void *) \
    X(cuTexRefGetAddress, 3020, cuTexRefGetAddress_v2, 257, void *, void *) \
    X(cuTexRefGetAddressMode, 2000, cuTexRefGetAddressMode, 106, void *, void *, int) \
    X(cuTexRefGetArray, 2000, cuTexRefGetArray, 105, void *, void *) \
    X(cuTexRefGetBorderColor, 8000, cuTexRefGetBorderColor, 456, void *, void *) \
    X(cuTexRefGetFilterMode, 2000, cuTexRefGetFilterMode, 107, void *, void *) \
    X(cuTexRefGetFlags, 2000, cuTexRefGetFlags, 109, void *, void *) \
    X(cuTexRefGetFormat, 2000, cuTexRefGetFormat, 108, void *, void *, void *) \
    X(cuTexRefGetMaxAnisotropy, 5000, cuTexRefGetMaxAnisotropy, 359, void *, void *) \
    X(cuTexRefGetMipmapFilterMode, 5000, cuTexRefGetMipmapFilterMode, 356, void *, void *) \
    X(cuTexRefGetMipmapLevelBias, 5000, cuTexRefGetMipmapLevelBias, 357, void *, void *) \
    X(cuTexRefGetMipmapLevelClamp, 5000, cuTexRefGetMipmapLevelClamp, 358, void *, void *, void *) \
    X(cuTexRefGetMipmappedArray, 5000, cuTexRefGetMipmappedArray, 355, void *, void *) \
    X(cuTexRefSetAddress, 2000, cuTexRefSetAddress, 95, void *, void *, unsigned, unsigned) \
    X(cuTexRefSetAddress, 3020, cuTexRefSetAddress_v2, 255, void *, void *, deviceptr, size_t) \
    X(cuTexRefSetAddress2D, 2020, cuTexRefSetAddress2D, 97, void *, void *, unsigned, unsigned) \
    X(cuTexRefSetAddress2D, 4010, cuTexRefSetAddress2D_v3, 327, void *, void *, deviceptr, size_t) \
    X(cuTexRefSetAddressMode, 2000, cuTexRefSetAddressMode, 100, void *, int, int) \
    X(cuTexRefSetArray, 2000, cuTexRefSetArray, 94, void *, void *, unsigned) \
    X(cuTexRefSetBorderColor, 8000, cuTexRefSetBorderColor, 455, void *, void *) \
    X(cuTexRefSetFilterMode, 2000, cuTexRefSetFilterMode, 101, void *, int) \
    X(cuTexRefSetFlags, 2000, cuTexRefSetFlags, 102, void *, unsigned) \
    X(cuTexRefSetFormat, 2000, cuTexRefSetFormat, 99, void *, int, int) \
    X(cuTexRefSetMaxAnisotropy, 5000, cuTexRefSetMaxAnisotropy, 354, void *, unsigned) \
    X(cuTexRefSetMipmapFilterMode, 5000, cuTexRefSetMipmapFilterMode, 351, void *, int) \
    X(cuTexRefSetMipmapLevelBias, 5000, cuTexRefSetMipmapLevelBias, 352, void *, float) \
    X(cuTexRefSetMipmapLevelClamp, 5000, cuTexRefSetMipmapLevelClamp, 353, void *, float, float) \
    X(cuTexRefSetMipmappedArray, 5000, cuTexRefSetMipmappedArray, 350, void *, void *, unsigned) \
    X(cuUserObjectCreate, 11030, cuUserObjectCreate, 633, void *, void *, void *, unsigned, unsigned) \
    X(cuUserObjectRelease, 11030, cuUserObjectRelease, 635, void *, unsigned) \
    X(cuUserObjectRetain, 11030, cuUserObjectRetain, 634, void *, unsigned) \
    X(cuWaitExternalSemaphoresAsync, 10000, cuWaitExternalSemaphoresAsync, 492, void *, void *, unsigned, void *) \
    X(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams_ptsz, 657, void *, void *, void *) \
    X(cuGraphLaunch, 10000, cuGraphLaunch_ptsz, 515, void *, void *) \
    X(cuGraphUpload, 11010, cuGraphUpload_ptsz, 581, void *, void *) \
    X(cuGraphicsMapResources, 7000, cuGraphicsMapResources_ptsz, 443, unsigned, void *, void *) \
    X(cuGraphicsUnmapResources, 7000, cuGraphicsUnmapResources_ptsz, 444, unsigned, void *, void *) \
    X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel_ptsz, 478, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *) \
    X(cuLaunchKernelEx, 11060, cuLaunchKernelEx_ptsz, 653, void *, void *, void *, void *) \
    X(cuLaunchKernel, 7000, cuLaunchKernel_ptsz, 442, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *, void *) \
    X(cuMemBatchDecompressAsync, 12060, cuMemBatchDecompressAsync_ptsz, 762, void *, size_t, unsigned, void *, void *) \
    X(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync_ptsz, 792, void *, void *, size_t, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync_ptsz, 790, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemMapArrayAsync, 11010, cuMemMapArrayAsync_ptsz, 585, void *, unsigned, void *) \
    X(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync_ptsz, 785, void *, void *, size_t, void *, void *, size_t, unsigned long long, void *) \
    X(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync_ptsz, 779, size_t, void *, void *, unsigned long long, void *) \
    X(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2_ptsz, 799, size_t, void *, unsigned long long, void *) \
    X(cuMemcpyAtoA, 7000, cuMemcpyAtoA_v2_ptds, 404, void *, size_t, void *, size_t, size_t) \
    X(cuMemcpyAtoD, 7000, cuMemcpyAtoD_v2_ptds, 401, deviceptr, void *, size_t, size_t) \
    X(cuMemcpyAtoHAsync, 7000, cuMemcpyAtoHAsync_v2_ptsz, 420, void *, void *, size_t, size_t, void *) \
    X(cuMemcpyAtoH, 7000, cuMemcpyAtoH_v2_ptds, 403, void *, void *, size_t, size_t) \
    X(cuMemcpyDtoA, 7000, cuMemcpyDtoA_v2_ptds, 400, void *, size_t, deviceptr, size_t) \
    X(cuMemcpyHtoAAsync, 7000, cuMemcpyHtoAAsync_v2_ptsz, 419, void *, size_t, void *, size_t, void *) \
    X(cuMemcpyHtoA, 7000, cuMemcpyHtoA_v2_ptds, 402, void *, size_t, void *, size_t) \
    X(cuSignalExternalSemaphoresAsync, 10000, cuSignalExternalSemaphoresAsync_ptsz, 491, void *, void *, unsigned, void *) \
    X(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp_ptsz, 463, void *, unsigned, void *, unsigned) \
    X(cuStreamBatchMemOp, 11070, cuStreamBatchMemOp_v2_ptsz, 668, void *, unsigned, void *, unsigned) \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph_ptsz, 721, void *, void *, void *, void *, size_t, int) \
    X(cuStreamBeginCapture, 10000, cuStreamBeginCapture_ptsz, 496, void *) \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2_ptsz, 540, void *, int) \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture_ptsz, 498, void *, void *) \
    X(cuStreamGetAttribute, 11000, cuStreamGetAttribute_ptsz, 575, void *, int, void *) \
    X(cuStreamSetAttribute, 11000, cuStreamSetAttribute_ptsz, 577, void *, int, void *) \
    X(cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies_ptsz, 632, void *, void *, size_t, unsigned) \
    X(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2_ptsz, 732, void *, void *, void *, size_t, unsigned) \
    X(cuStreamWaitValue32, 8000, cuStreamWaitValue32_ptsz, 459, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2_ptsz, 660, void *, deviceptr, uint32_t, unsigned) \
    X(cuStreamWaitValue64, 9000, cuStreamWaitValue64_ptsz, 474, void *, deviceptr, uint64_t, unsigned) \
    X(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2_ptsz, 662, void *, deviceptr, uint64_t, unsigned) \
    X(cuWaitExternalSemaphoresAsync, 10000, cuWaitExternalSemaphoresAsync_ptsz, 493, void *, void *, unsigned, void *)

/* clang-format on */

#endif
