/* Devices: how many, their attributes and properties. None of this needs a context. */
#include "runtime.h"

#include <stddef.h>
#include <string.h>

API error cudaGetDeviceCount(int *count) {
    driver_ready();
    RETURN_IF(driver_failure()); /* and not the refusal of a forked child, which may still count */
    if (!count) return fail(INVALID_VALUE);
    *count = device_count;
    return OK;
}

API error cudaDeviceGetAttribute(int *value, int attribute, int device) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetAttribute(value, attribute, device));
}

API error cudaDeviceGetPCIBusId(char *text, int size, int device) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetPCIBusId(text, size, device));
}

API error cudaDeviceGetByPCIBusId(int *device, const char *text) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetByPCIBusId(device, text));
}

API error cudaDeviceCanAccessPeer(int *can, int device, int other) {
    NEED_DRIVER();
    return fail(cu.cuDeviceCanAccessPeer(can, device, other));
}

API error cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int other) {
    NEED_DRIVER();
    RETURN_IF(device_check(device));
    RETURN_IF(device_check(other));
    if (device == other) return fail(INVALID_DEVICE);
    return fail(cu.cuDeviceGetP2PAttribute(value, attribute, device, other));
}

/* ---- properties: nearly all of them are attributes ---- */

/* The fields in their order, each with the number of its attribute; CUDA 13 dropped some and added some. */
#define PROPERTIES(ONE, WIDE, ONLY_12, ONLY_13) \
    WIDE(sharedMemPerBlock, 8) \
    ONE(regsPerBlock, 12) \
    ONE(warpSize, 10) \
    WIDE(memPitch, 11) \
    ONE(maxThreadsPerBlock, 1) \
    ONE(maxThreadsDim_0, 2) \
    ONE(maxThreadsDim_1, 3) \
    ONE(maxThreadsDim_2, 4) \
    ONE(maxGridSize_0, 5) \
    ONE(maxGridSize_1, 6) \
    ONE(maxGridSize_2, 7) \
    ONLY_12(clockRate, 13) \
    WIDE(totalConstMem, 9) \
    ONE(major, 75) \
    ONE(minor, 76) \
    WIDE(textureAlignment, 14) \
    WIDE(texturePitchAlignment, 51) \
    ONLY_12(deviceOverlap, 15) \
    ONE(multiProcessorCount, 16) \
    ONLY_12(kernelExecTimeoutEnabled, 17) \
    ONE(integrated, 18) \
    ONE(canMapHostMemory, 19) \
    ONLY_12(computeMode, 20) \
    ONE(maxTexture1D, 21) \
    ONE(maxTexture1DMipmap, 77) \
    ONLY_12(maxTexture1DLinear, 69) \
    ONE(maxTexture2D_0, 22) \
    ONE(maxTexture2D_1, 23) \
    ONE(maxTexture2DMipmap_0, 73) \
    ONE(maxTexture2DMipmap_1, 74) \
    ONE(maxTexture2DLinear_0, 70) \
    ONE(maxTexture2DLinear_1, 71) \
    ONE(maxTexture2DLinear_2, 72) \
    ONE(maxTexture2DGather_0, 45) \
    ONE(maxTexture2DGather_1, 46) \
    ONE(maxTexture3D_0, 24) \
    ONE(maxTexture3D_1, 25) \
    ONE(maxTexture3D_2, 26) \
    ONE(maxTexture3DAlt_0, 47) \
    ONE(maxTexture3DAlt_1, 48) \
    ONE(maxTexture3DAlt_2, 49) \
    ONE(maxTextureCubemap, 52) \
    ONE(maxTexture1DLayered_0, 42) \
    ONE(maxTexture1DLayered_1, 43) \
    ONE(maxTexture2DLayered_0, 27) \
    ONE(maxTexture2DLayered_1, 28) \
    ONE(maxTexture2DLayered_2, 29) \
    ONE(maxTextureCubemapLayered_0, 53) \
    ONE(maxTextureCubemapLayered_1, 54) \
    ONE(maxSurface1D, 55) \
    ONE(maxSurface2D_0, 56) \
    ONE(maxSurface2D_1, 57) \
    ONE(maxSurface3D_0, 58) \
    ONE(maxSurface3D_1, 59) \
    ONE(maxSurface3D_2, 60) \
    ONE(maxSurface1DLayered_0, 61) \
    ONE(maxSurface1DLayered_1, 62) \
    ONE(maxSurface2DLayered_0, 63) \
    ONE(maxSurface2DLayered_1, 64) \
    ONE(maxSurface2DLayered_2, 65) \
    ONE(maxSurfaceCubemap, 66) \
    ONE(maxSurfaceCubemapLayered_0, 67) \
    ONE(maxSurfaceCubemapLayered_1, 68) \
    WIDE(surfaceAlignment, 30) \
    ONE(concurrentKernels, 31) \
    ONE(ECCEnabled, 32) \
    ONE(pciBusID, 33) \
    ONE(pciDeviceID, 34) \
    ONE(pciDomainID, 50) \
    ONE(tccDriver, 35) \
    ONE(asyncEngineCount, 40) \
    ONE(unifiedAddressing, 41) \
    ONLY_12(memoryClockRate, 36) \
    ONE(memoryBusWidth, 37) \
    ONE(l2CacheSize, 38) \
    ONE(persistingL2CacheMaxSize, 108) \
    ONE(maxThreadsPerMultiProcessor, 39) \
    ONE(streamPrioritiesSupported, 78) \
    ONE(globalL1CacheSupported, 79) \
    ONE(localL1CacheSupported, 80) \
    WIDE(sharedMemPerMultiprocessor, 81) \
    ONE(regsPerMultiprocessor, 82) \
    ONE(managedMemory, 83) \
    ONE(isMultiGpuBoard, 84) \
    ONE(multiGpuBoardGroupID, 85) \
    ONE(hostNativeAtomicSupported, 86) \
    ONLY_12(singleToDoublePrecisionPerfRatio, 87) \
    ONE(pageableMemoryAccess, 88) \
    ONE(concurrentManagedAccess, 89) \
    ONE(computePreemptionSupported, 90) \
    ONE(canUseHostPointerForRegisteredMem, 91) \
    ONE(cooperativeLaunch, 95) \
    ONLY_12(cooperativeMultiDeviceLaunch, 96) \
    WIDE(sharedMemPerBlockOptin, 97) \
    ONE(pageableMemoryAccessUsesHostPageTables, 100) \
    ONE(directManagedMemAccessFromHost, 101) \
    ONE(maxBlocksPerMultiProcessor, 106) \
    ONE(accessPolicyMaxWindowSize, 109) \
    WIDE(reservedSharedMemPerBlock, 111) \
    ONE(hostRegisterSupported, 99) \
    ONE(sparseCudaArraySupported, 112) \
    ONE(hostRegisterReadOnlySupported, 113) \
    ONE(timelineSemaphoreInteropSupported, 114) \
    ONE(memoryPoolsSupported, 115) \
    ONE(gpuDirectRDMASupported, 116) \
    ONE(gpuDirectRDMAFlushWritesOptions, 117) \
    ONE(gpuDirectRDMAWritesOrdering, 118) \
    ONE(memoryPoolSupportedHandleTypes, 119) \
    ONE(deferredMappingCudaArraySupported, 121) \
    ONE(ipcEventSupported, 125) \
    ONE(clusterLaunch, 120) \
    ONE(unifiedFunctionPointers, 129) \
    ONLY_13(deviceNumaConfig, 130) \
    ONLY_13(deviceNumaId, 131) \
    ONLY_13(mpsEnabled, 133) \
    ONLY_13(hostNumaId, 134) \
    ONLY_13(gpuPciDeviceID, 139) \
    ONLY_13(gpuPciSubsystemID, 140) \
    ONLY_13(hostNumaMultinodeIpcSupported, 143)

struct properties {
    char name[256];
    struct uuid uuid;
    char luid[8];
    unsigned luid_mask;
    size_t total;
#define FIELD(field, attribute) int field;
#define WIDE_FIELD(field, attribute) size_t field;
#define NO_FIELD(field, attribute)
#if RUNTIME_MAJOR == 12
    PROPERTIES(FIELD, WIDE_FIELD, FIELD, NO_FIELD)
    int reserved[63];
#else
    PROPERTIES(FIELD, WIDE_FIELD, NO_FIELD, FIELD)
    int reserved[56];
#endif
};

#if RUNTIME_MAJOR == 12
_Static_assert(sizeof(struct properties) == 1032 && offsetof(struct properties, reserved) == 780, "as CUDA 12 has it");
#else
_Static_assert(sizeof(struct properties) == 1008 && offsetof(struct properties, reserved) == 784, "as CUDA 13 has it");
#endif

static error read_properties(struct properties *found, int device) {
    int value = 0;
    RETURN_IF(device_check(device));
    memset(found, 0, sizeof *found);
    RETURN_IF(cu.cuDeviceGetName(found->name, sizeof found->name, device));
    RETURN_IF(cu.cuDeviceGetUuid_v2(&found->uuid, device));
    RETURN_IF(cu.cuDeviceTotalMem_v2(&found->total, device));
#define READ(field, attribute) \
    RETURN_IF(cu.cuDeviceGetAttribute(&value, attribute, device)); \
    found->field = value;
#define READ_WIDE(field, attribute) \
    RETURN_IF(cu.cuDeviceGetAttribute(&value, attribute, device)); \
    found->field = (size_t)value;
#if RUNTIME_MAJOR == 12
    PROPERTIES(READ, READ_WIDE, READ, NO_FIELD)
#else
    PROPERTIES(READ, READ_WIDE, NO_FIELD, READ)
#endif
    return OK;
}

/* What is written is what programs of that version have room for, up to its first reserved word. */
static error give_properties(void *properties, size_t nbytes, int device) {
    struct properties found;
    NEED_DRIVER();
    if (!properties) return fail(INVALID_VALUE);
    RETURN_IF(read_properties(&found, device));
    memcpy(properties, &found, nbytes);
    return OK;
}

#if RUNTIME_MAJOR == 12
/* The form without a version is that of CUDA 11, which ended earlier. */
API error cudaGetDeviceProperties(void *properties, int device) {
    return give_properties(properties, offsetof(struct properties, hostRegisterSupported), device);
}

API error cudaGetDeviceProperties_v2(void *properties, int device) {
    return give_properties(properties, offsetof(struct properties, reserved), device);
}
#else
API error cudaGetDeviceProperties(void *properties, int device) {
    return give_properties(properties, offsetof(struct properties, reserved), device);
}
#endif

/* They are all alike: the first one fits as well as any. */
API error cudaChooseDevice(int *device, const void *properties) {
    NEED_DRIVER();
    if (!device || !properties) return fail(INVALID_VALUE);
    *device = 0;
    return OK;
}

/* A description of array elements is a value: it can be had although there are no arrays. */
struct channel {
    int x, y, z, w, kind;
};

API struct channel cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (struct channel){x, y, z, w, kind};
}
