/* Modes of a GPU, and its MIG devices. */
#include "nvml.h"

enum { ACCOUNTING_ROOM = 4000 };

#define ANSWER(function, expression) \
    EXPORT int function(struct nvml_device *device, unsigned *value) { \
        ENTER(device, value); \
        *value = (expression); \
        return NVML_SUCCESS; \
    }

ANSWER(nvmlDeviceGetPersistenceMode, call.gpu->persistence)
ANSWER(nvmlDeviceGetComputeMode, call.gpu->compute_mode)
ANSWER(nvmlDeviceGetDisplayMode, 1) /* as an H200 says, without a display */
ANSWER(nvmlDeviceGetDisplayActive, 0)
ANSWER(nvmlDeviceGetVirtualizationMode, call.gpu->virtualization)
ANSWER(nvmlDeviceGetPowerManagementMode, 1)

EXPORT int nvmlDeviceGetMigMode(struct nvml_device *device, unsigned *current, unsigned *pending) {
    ENTER(device, current && pending ? current : NULL);
    *current = call.gpu->mig_enabled;
    *pending = call.gpu->mig_pending < 0 ? *current : (unsigned)call.gpu->mig_pending;
    return NVML_SUCCESS;
}

ANSWER(nvmlDeviceGetAccountingMode, 0)
ANSWER(nvmlDeviceGetAccountingBufferSize, ACCOUNTING_ROOM)

EXPORT int nvmlDeviceGetAccountingPids(struct nvml_device *device, unsigned *count, unsigned *pids) {
    (void)pids;
    ENTER(device, count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetAccountingStats(struct nvml_device *device, unsigned pid, void *stats) {
    (void)pid;
    ENTER(device, stats);
    return NVML_NOT_FOUND;
}

EXPORT int nvmlDeviceGetGspFirmwareMode(struct nvml_device *device, unsigned *enabled, unsigned *usual) {
    ENTER(device, enabled && usual ? enabled : NULL);
    *enabled = *usual = 1;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGspFirmwareVersion(struct nvml_device *device, char *version) {
    ENTER(device, version);
    return nvml_copy(version, 64, store_config()->driver_version); /* the interface fixes 64 */
}

/* ---- MIG ---- */

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct nvml_device *device, unsigned *count) {
    ENTER(device, count);
    *count = call.gpu->mig_enabled ? STORE_MAX_MIG_DEVICES : 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(struct nvml_device *device, unsigned *is_mig) {
    ENTER_ANY(device, is_mig);
    *is_mig = call.mig != NULL;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct nvml_device *device, unsigned index, struct nvml_device **mig) {
    ENTER(device, mig);
    if (!call.gpu->mig_enabled) return NVML_NOT_SUPPORTED;
    if (index >= STORE_MAX_MIG_DEVICES) return NVML_INVALID_ARGUMENT;
    *mig = nvml_mig_device_at(call.index, (int)index);
    return *mig ? NVML_SUCCESS : NVML_NOT_FOUND;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct nvml_device *mig, struct nvml_device **device) {
    ENTER_ANY(mig, device);
    if (!call.mig) return NVML_INVALID_ARGUMENT;
    *device = nvml_device_at(call.index);
    return NVML_SUCCESS;
}

#define OF_MIG_DEVICE(function, expression) \
    EXPORT int function(struct nvml_device *device, unsigned *value) { \
        ENTER_ANY(device, value); \
        if (!call.mig) return NVML_NOT_SUPPORTED; \
        *value = (expression); \
        return NVML_SUCCESS; \
    }

OF_MIG_DEVICE(nvmlDeviceGetGpuInstanceId, call.mig->gpu_instance)
OF_MIG_DEVICE(nvmlDeviceGetComputeInstanceId, call.mig->compute_instance)

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, flows;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
};

/* Engines are left at zero: nothing here decodes or copies by itself. */
static int attributes(const struct nvml_call *call, struct attributes *attributes) {
    if (!call->mig) return NVML_NOT_SUPPORTED;
    *attributes = (struct attributes){.gpu_instance_slices = call->mig->slices,
                                      .compute_instance_slices = call->mig->compute_slices,
                                      .memory_mib = call->mig->total_bytes >> 20};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetAttributes(struct nvml_device *device, struct attributes *answer) {
    ENTER_ANY(device, answer);
    return attributes(&call, answer);
}

EXPORT int nvmlDeviceGetAttributes_v2(struct nvml_device *device, struct attributes *answer) {
    ENTER_ANY(device, answer);
    return attributes(&call, answer);
}
