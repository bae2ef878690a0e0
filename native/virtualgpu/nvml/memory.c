/* A GPU's memory: version 1 counts reserved memory as used, version 2 reports it separately.
 *
 * A GPU that has no memory of its own refuses both, and its BAR1 window. One whose memory is a node of the
 * machine answers them, and counts there what the processor's programs and cached files take. As owners of
 * such machines reported (DESIGN.md names the threads): nobody measured it here.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

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
    if (call->gpu->unified) return NVML_NOT_SUPPORTED;
    int status = usage_of(call->index, &usage);
    if (status != NVML_SUCCESS) return status;
    uint64_t others = size_sum(call->gpu->cpu_bytes, call->gpu->cache_bytes);
    *memory =
        (struct memory_v2){0, call->gpu->total_bytes, call->gpu->reserved_bytes,
                           size_left(usage.free_bytes, call->gpu->cache_bytes), size_sum(usage.used_bytes, others)};
    if (call->mig) {
        unsigned long long total = call->mig->total_bytes;
        unsigned long long used = usage.instance_used[call->mig->gpu_instance];
        used = used < total ? used : total;
        *memory = (struct memory_v2){0, total, 0, total - used, used};
    }
    return NVML_SUCCESS;
}

/* In a control group with a limit version 2 answers for the limit, as documented; version 1 is not said to. */
static int within_limit(const struct nvml_call *call, struct memory_v2 *memory) {
    struct store_limit limit;
    uint64_t used;
    if (!store_cgroup_limit((uint32_t)call->index, store_own_cgroup(), &limit) || limit.hard >= memory->total)
        return NVML_SUCCESS;
    if (store_cgroup_used((uint32_t)call->index, limit.cgroup, &used) != 0) return NVML_UNKNOWN;
    uint64_t left = size_left(limit.hard, used);
    *memory = (struct memory_v2){0, limit.hard, 0, left < memory->free ? left : memory->free, used};
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
    if (status == NVML_SUCCESS && !call.mig) status = within_limit(&call, memory);
    if (status != NVML_SUCCESS) return status;
    memory->version = version;
    if (call.sentinel)
        *memory = (struct memory_v2){version, NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64, NOT_AVAILABLE_64};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(struct nvml_device *device, struct bar1_memory *memory) {
    ENTER(device, memory);
    struct store_usage usage;
    if (call.gpu->unified || call.gpu->numa_node >= 0) return NVML_NOT_SUPPORTED;
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

/* ---- GPUs that share the machine's memory ---- */

EXPORT int nvmlDeviceGetNumaNodeId(struct nvml_device *device, unsigned *node) {
    ENTER(device, node);
    if (call.gpu->numa_node < 0) return NVML_NOT_SUPPORTED;
    *node = (unsigned)call.gpu->numa_node;
    return NVML_SUCCESS;
}

enum { ADDRESSING_NONE = 0, ADDRESSING_ATS = 2 };

struct addressing {
    unsigned version, mode;
};

EXPORT int nvmlDeviceGetAddressingMode(struct nvml_device *device, struct addressing *addressing) {
    ENTER(device, addressing);
    if (addressing->version != VERSIONED(struct addressing, 1)) return NVML_VERSION_MISMATCH;
    addressing->mode = call.gpu->unified || call.gpu->numa_node >= 0 ? ADDRESSING_ATS : ADDRESSING_NONE;
    return NVML_SUCCESS;
}

struct system_memory {
    uint64_t total, cpu, cache, available;
};

static void add_shared(const struct store_gpu *gpu, const struct store_usage *usage, struct system_memory *memory) {
    memory->total = size_sum(memory->total, gpu->total_bytes);
    memory->cpu = size_sum(memory->cpu, gpu->cpu_bytes);
    memory->cache = size_sum(memory->cache, gpu->cache_bytes);
    memory->available = size_sum(memory->available, usage->free_bytes);
}

/* What the kernel would write into cgroup<path>/dmem.current: a line for each GPU. */
static int write_current(const char *cgroup, char *text, unsigned size) {
    int length = 0;
    for (int index = 0; index < store_config()->gpus; index++) {
        uint64_t used;
        if (store_cgroup_used((uint32_t)index, *cgroup ? cgroup : "/", &used) != 0) return 0;
        length += snprintf(text + length, size - (unsigned)length, "nvidia/00000000:%02x:00.0/vidmem %llu\n", index + 1,
                           (unsigned long long)used);
        if ((unsigned)length >= size) return 0;
    }
    return length;
}

/* The machine's own file of this name, as the kernel would write it: "meminfo", "node1/meminfo", or
 * "cgroup/a/b/dmem.current". No function of NVML: whoever reads these files of a real machine asks this here.
 * Returns the length, 0 where this machine has no such file. */
EXPORT int vram_virtual_file(const char *name, char *text, unsigned size) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct system_memory memory = {0};
    char prefix[32] = "";
    char cgroup[STORE_CGROUP_SIZE];
    int none = 0, wanted = -1, length;
    const char *end = strstr(name, "/dmem.current");
    if (store_config() && strncmp(name, "cgroup", 6) == 0 && end && end - name < STORE_CGROUP_SIZE) {
        snprintf(cgroup, sizeof cgroup, "%.*s", (int)(end - name - 6), name + 6);
        return write_current(cgroup, text, size);
    }
    if (!store_config() || (sscanf(name, "node%d/meminfo", &wanted) != 1 && strcmp(name, "meminfo") != 0)) return 0;
    if (store_walk(usage, NULL, &none) != 0) return 0;
    for (int index = 0; index < store_config()->gpus; index++) {
        const struct store_gpu *gpu = &store_config()->gpu[index];
        bool meant = wanted < 0 ? gpu->unified : gpu->numa_node == wanted;
        if (meant) add_shared(gpu, &usage[index], &memory);
    }
    if (!memory.total) return 0;
    if (wanted >= 0) snprintf(prefix, sizeof prefix, "Node %d ", wanted);
    unsigned long long total = memory.total >> 10, cpu = memory.cpu >> 10, cache = memory.cache >> 10;
    unsigned long long available = memory.available >> 10, unused = size_left(available, cache);
    if (wanted >= 0) /* a node has no line for what is available */
        length = snprintf(text, size,
                          "%sMemTotal: %llu kB\n%sMemFree: %llu kB\n%sFilePages: %llu kB\n"
                          "%sAnonPages: %llu kB\n%sShmem: 0 kB\n%sSlab: 0 kB\n",
                          prefix, total, prefix, unused, prefix, cache, prefix, cpu, prefix, prefix);
    else
        length = snprintf(text, size,
                          "MemTotal: %llu kB\nMemFree: %llu kB\nMemAvailable: %llu kB\nCached: %llu kB\n"
                          "AnonPages: %llu kB\nShmem: 0 kB\nSlab: 0 kB\n",
                          total, unused, available, cache, cpu);
    return length > 0 && (unsigned)length < size ? length : 0;
}
