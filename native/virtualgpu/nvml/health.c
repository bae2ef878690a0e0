/* ECC and row remapping: damaged memory that explains why bytes are missing or a reset is due.
 *
 * Retired pages are not here: chips with row remapping, which this one plays, do not have them.
 */
#include "nvml.h"

struct ecc_counts {
    unsigned long long l1_cache, l2_cache, device_memory, register_file;
};

EXPORT int nvmlDeviceGetEccMode(struct nvml_device *device, unsigned *current, unsigned *pending) {
    ENTER(device, current && pending ? current : NULL);
    *current = *pending = call.gpu->ecc_enabled;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetDefaultEccMode(struct nvml_device *device, unsigned *mode) {
    ENTER(device, mode);
    *mode = 1;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct nvml_device *device, unsigned error, unsigned counter,
                                       unsigned long long *count) {
    ENTER(device, count);
    if (error > 1 || counter > 1)
        return NVML_INVALID_ARGUMENT;
    if (!call.gpu->ecc_enabled)
        return NVML_NOT_SUPPORTED;
    *count = call.sentinel ? NOT_AVAILABLE_64 : 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetDetailedEccErrors(struct nvml_device *device, unsigned error, unsigned counter,
                                          struct ecc_counts *counts) {
    ENTER(device, counts);
    if (error > 1 || counter > 1)
        return NVML_INVALID_ARGUMENT;
    if (!call.gpu->ecc_enabled)
        return NVML_NOT_SUPPORTED;
    *counts = (struct ecc_counts){0};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(struct nvml_device *device, unsigned error, unsigned counter,
                                           unsigned location, unsigned long long *count) {
    ENTER(device, count);
    if (error > 1 || counter > 1 || location > 7)
        return NVML_INVALID_ARGUMENT;
    if (!call.gpu->ecc_enabled)
        return NVML_NOT_SUPPORTED;
    *count = call.sentinel ? NOT_AVAILABLE_64 : 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(struct nvml_device *device, unsigned *correctable,
                                     unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    ENTER(device, correctable && uncorrectable && pending && failed ? correctable : NULL);
    *correctable = call.gpu->remapped_correctable;
    *uncorrectable = call.gpu->remapped_uncorrectable;
    *pending = call.gpu->remap_pending;
    *failed = call.gpu->remap_failure;
    return NVML_SUCCESS;
}
