/* The machine: versions, process names, and how GPUs, CPUs and memory are connected. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER_SYSTEM(version);
    return nvml_copy(version, length, store_config()->driver_version);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER_SYSTEM(version);
    char text[64]; /* the CUDA major version, then the driver's: "13.580.159.04" */
    snprintf(text, sizeof text, "%d.%s", store_config()->cuda_version / 1000, store_config()->driver_version);
    return nvml_copy(version, length, text);
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER_SYSTEM(version);
    *version = store_config()->cuda_version;
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_SYSTEM(version);
    *version = store_config()->cuda_version;
    return NVML_SUCCESS;
}

struct driver_branch {
    unsigned version;
    char branch[80];
};

EXPORT int nvmlSystemGetDriverBranch(struct driver_branch *info, unsigned length) {
    ENTER_SYSTEM(info);
    if (info->version != VERSIONED(struct driver_branch, 1)) return NVML_VERSION_MISMATCH;
    char text[32];
    snprintf(text, sizeof text, "r%d_00", atoi(store_config()->driver_version));
    return nvml_copy(info->branch, length < sizeof info->branch ? length : sizeof info->branch, text);
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    ENTER_SYSTEM(name);
    if (length == 0) return NVML_INVALID_ARGUMENT;
    char path[32], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NVML_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file); /* arguments end in zeros: only the first */
    fclose(file);
    text[got] = '\0';
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetHicVersion(unsigned *count, void *entries) {
    (void)entries;
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlUnitGetCount(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlGetExcludedDeviceCount(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

/* ---- topology: all GPUs are on one NUMA node, and none reaches a peer directly ---- */

enum { LEVEL_INTERNAL = 0, LEVEL_NODE = 40, PEER_NOT_SUPPORTED = 5, BITS = 8 * sizeof(long) };

EXPORT int nvmlDeviceGetTopologyCommonAncestor(struct nvml_device *device, struct nvml_device *other, unsigned *level) {
    ENTER(device, nvml_index_of(other) >= 0 ? level : NULL);
    *level = device == other ? LEVEL_INTERNAL : LEVEL_NODE;
    return NVML_SUCCESS;
}

/* Writes every GPU but *left_out*, as far as there is room, and how many there are. */
static int hand_out(int left_out, unsigned *count, struct nvml_device **devices) {
    unsigned room = *count;
    *count = 0;
    for (int i = 0; i < store_config()->gpus; i++) {
        if (i == left_out) continue;
        if (devices && *count < room) devices[*count] = nvml_device_at(i);
        ++*count;
    }
    return devices && *count > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyNearestGpus(struct nvml_device *device, unsigned level, unsigned *count,
                                            struct nvml_device **devices) {
    ENTER(device, count);
    if (level == LEVEL_NODE) return hand_out(call.index, count, devices);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, struct nvml_device **devices) {
    (void)cpu;
    ENTER_SYSTEM(count);
    return hand_out(-1, count, devices);
}

EXPORT int nvmlDeviceGetP2PStatus(struct nvml_device *device, struct nvml_device *other, unsigned ability,
                                  unsigned *status) {
    (void)ability;
    ENTER(device, nvml_index_of(other) >= 0 ? status : NULL);
    *status = PEER_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceOnSameBoard(struct nvml_device *device, struct nvml_device *other, int *same) {
    ENTER(device, nvml_index_of(other) >= 0 ? same : NULL);
    *same = device == other;
    return NVML_SUCCESS;
}

static void set_first_bits(unsigned long bits, unsigned words, unsigned long *set) {
    memset(set, 0, words * sizeof *set);
    for (unsigned long bit = 0; bit < bits && bit < words * (unsigned long)BITS; bit++)
        set[bit / BITS] |= 1ul << bit % BITS;
}

EXPORT int nvmlDeviceGetCpuAffinity(struct nvml_device *device, unsigned words, unsigned long *set) {
    ENTER(device, words ? set : NULL);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    set_first_bits(cpus > 0 ? (unsigned long)cpus : 1, words, set);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryAffinity(struct nvml_device *device, unsigned words, unsigned long *set, unsigned scope) {
    (void)scope;
    ENTER(device, words ? set : NULL);
    set_first_bits(1, words, set);
    return NVML_SUCCESS;
}
