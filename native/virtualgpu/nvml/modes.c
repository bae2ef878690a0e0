/* How the GPU is set up: persistence, compute mode, MIG, accounting, display, firmware. */
#include "nvml.h"

enum { ACCOUNTING_ROOM = 4000 };

#define ANSWER(function, expression)                                                           \
    EXPORT int function(struct nvml_device *device, unsigned *value) {                         \
        ENTER(device, value);                                                                  \
        *value = (expression);                                                                 \
        return NVML_SUCCESS;                                                                   \
    }

ANSWER(nvmlDeviceGetPersistenceMode, call.gpu->persistence)
ANSWER(nvmlDeviceGetComputeMode, call.gpu->compute_mode)
ANSWER(nvmlDeviceGetDisplayMode, 1) /* as an H200 says, without a display */
ANSWER(nvmlDeviceGetDisplayActive, 0)
ANSWER(nvmlDeviceGetVirtualizationMode, 0)
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
