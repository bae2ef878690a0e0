/* A GPU's memory: version 1 counts reserved memory as used, version 2 reports it separately. */
#include "nvml.h"

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct bar1_memory {
    unsigned long long total, free, used;
};

static int usage_of(int index, struct store_usage *usage) {
    struct store_usage all[STORE_MAX_GPUS];
    int none = 0;
    if (store_walk_gpu((uint32_t)index, all, NULL, &none) < 0) return NVML_UNKNOWN;
    *usage = all[index];
    return NVML_SUCCESS;
}

/* Of the GPU, or of the GPU instance that a MIG device is in: nothing of that is reserved. */
static int read_memory(const struct nvml_call *call, struct memory_v2 *memory) {
    struct store_usage usage;
    int status = usage_of(call->index, &usage);
    if (status != NVML_SUCCESS) return status;
    *memory =
        (struct memory_v2){0, call->gpu->total_bytes, call->gpu->reserved_bytes, usage.free_bytes, usage.used_bytes};
    if (call->mig) {
        unsigned long long total = call->mig->total_bytes;
        unsigned long long used = usage.instance_used[call->mig->gpu_instance];
        used = used < total ? used : total;
        *memory = (struct memory_v2){0, total, 0, total - used, used};
    }
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct nvml_device *device, struct memory *memory) {
    ENTER_ANY(device, memory);
    REFUSE_RESTRICTED();
    struct memory_v2 read;
    int status = read_memory(&call, &read);
    if (status != NVML_SUCCESS) return status;
    *memory = (struct memory){read.total, read.free, read.used + read.reserved};
    if (call.sentinel) *memory = (struct memory){NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct nvml_device *device, struct memory_v2 *memory) {
    ENTER_ANY(device, memory);
    const unsigned version = VERSIONED(struct memory_v2, 2);
    if (memory->version != version) return NVML_VERSION_MISMATCH;
    REFUSE_RESTRICTED();
    int status = read_memory(&call, memory);
    if (status != NVML_SUCCESS) return status;
    memory->version = version;
    if (call.sentinel)
        *memory = (struct memory_v2){version, NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(struct nvml_device *device, struct bar1_memory *memory) {
    ENTER(device, memory);
    struct store_usage usage;
    int status = usage_of(call.index, &usage);
    if (status != NVML_SUCCESS) return status;
    *memory = (struct bar1_memory){call.gpu->bar1_bytes, call.gpu->bar1_bytes - usage.bar1_used, usage.bar1_used};
    if (call.sentinel) *memory = (struct bar1_memory){NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryBusWidth(struct nvml_device *device, unsigned *bits) {
    ENTER(device, bits);
    *bits = 6144;
    return NVML_SUCCESS;
}
