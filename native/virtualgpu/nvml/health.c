/* ECC errors, remapped rows, retired pages: damage that explains missing bytes or a reset due.
 *
 * A chip has either row remapping (since Ampere) or page retirement (before): the one that it
 * lacks is not supported.
 */
#include "nvml.h"

enum { ERROR_CORRECTED, ERROR_UNCORRECTED, ERROR_KINDS };
enum { COUNTER_VOLATILE, COUNTER_AGGREGATE, COUNTER_KINDS };
enum { MEMORY_DEVICE = 2, MEMORY_KINDS = 8 };
enum { CAUSE_DOUBLE_BIT = 1, CAUSES = 2 };

#define FIRST_RETIRED_PAGE 0x10000ull
#define PAGE_BYTES 0x10000ull

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

/* Whether errors of this kind are counted at all, and how many there are. */
static int count_errors(const struct nvml_call *call, unsigned error, unsigned counter, unsigned long long *count) {
    if (error >= ERROR_KINDS || counter >= COUNTER_KINDS) return NVML_INVALID_ARGUMENT;
    if (!call->gpu->ecc_enabled) return NVML_NOT_SUPPORTED;
    *count = error == ERROR_UNCORRECTED ? call->gpu->ecc_uncorrected : 0;
    if (call->sentinel) *count = NOT_AVAILABLE_64;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct nvml_device *device, unsigned error, unsigned counter,
                                       unsigned long long *count) {
    ENTER(device, count);
    return count_errors(&call, error, counter, count);
}

EXPORT int nvmlDeviceGetDetailedEccErrors(struct nvml_device *device, unsigned error, unsigned counter,
                                          struct ecc_counts *counts) {
    ENTER(device, counts);
    *counts = (struct ecc_counts){0};
    return count_errors(&call, error, counter, &counts->device_memory);
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(struct nvml_device *device, unsigned error, unsigned counter,
                                           unsigned memory, unsigned long long *count) {
    ENTER(device, memory < MEMORY_KINDS ? count : NULL);
    int status = count_errors(&call, error, counter, count);
    if (status == NVML_SUCCESS && memory != MEMORY_DEVICE) *count = 0;
    return status;
}

EXPORT int nvmlDeviceGetRemappedRows(struct nvml_device *device, unsigned *correctable, unsigned *uncorrectable,
                                     unsigned *pending, unsigned *failed) {
    ENTER(device, correctable && uncorrectable && pending && failed ? correctable : NULL);
    if (call.gpu->retires_pages) return NVML_NOT_SUPPORTED;
    *correctable = call.gpu->remapped_correctable;
    *uncorrectable = call.gpu->remapped_uncorrectable;
    *pending = call.gpu->remap_pending;
    *failed = call.gpu->remap_failure;
    return NVML_SUCCESS;
}

static int list_pages(const struct nvml_call *call, unsigned cause, unsigned *count, unsigned long long *addresses) {
    if (!call->gpu->retires_pages) return NVML_NOT_SUPPORTED;
    if (cause >= CAUSES) return NVML_INVALID_ARGUMENT;
    unsigned room = addresses ? *count : 0;
    *count = cause == CAUSE_DOUBLE_BIT ? call->gpu->retired_pages : 0;
    for (unsigned i = 0; i < *count && i < room; i++) addresses[i] = FIRST_RETIRED_PAGE + i * PAGE_BYTES;
    return *count > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPages(struct nvml_device *device, unsigned cause, unsigned *count,
                                     unsigned long long *addresses) {
    ENTER(device, count);
    return list_pages(&call, cause, count, addresses);
}

EXPORT int nvmlDeviceGetRetiredPages_v2(struct nvml_device *device, unsigned cause, unsigned *count,
                                        unsigned long long *addresses, unsigned long long *times) {
    ENTER(device, count);
    int status = list_pages(&call, cause, count, addresses);
    for (unsigned i = 0; status == NVML_SUCCESS && times && i < *count; i++) times[i] = 0; /* when is not known */
    return status;
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(struct nvml_device *device, unsigned *pending) {
    ENTER(device, pending);
    if (!call.gpu->retires_pages) return NVML_NOT_SUPPORTED;
    *pending = call.gpu->retired_pending;
    return NVML_SUCCESS;
}
