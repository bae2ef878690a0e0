/* How GPUs relate: all of them hang on one NUMA node, and none reaches a peer directly. */
#include "nvml.h"

#include <string.h>
#include <unistd.h>

enum { LEVEL_INTERNAL = 0, LEVEL_NODE = 40, PEER_NOT_SUPPORTED = 5, BITS = 8 * sizeof(long) };

EXPORT int nvmlDeviceGetTopologyCommonAncestor(struct nvml_device *device, struct nvml_device *other,
                                               unsigned *level) {
    ENTER(device, nvml_index_of(other) >= 0 ? level : NULL);
    *level = device == other ? LEVEL_INTERNAL : LEVEL_NODE;
    return NVML_SUCCESS;
}

/* Hands out every GPU but *left_out* as far as there is room, and tells how many there are. */
static int hand_out(int left_out, unsigned *count, struct nvml_device **devices) {
    unsigned room = *count;
    *count = 0;
    for (int i = 0; i < store_config()->gpus; i++) {
        if (i == left_out)
            continue;
        if (devices && *count < room)
            devices[*count] = nvml_device_at(i);
        ++*count;
    }
    return devices && *count > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyNearestGpus(struct nvml_device *device, unsigned level, unsigned *count,
                                            struct nvml_device **devices) {
    ENTER(device, count);
    if (level == LEVEL_NODE)
        return hand_out(call.index, count, devices);
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

EXPORT int nvmlDeviceGetMemoryAffinity(struct nvml_device *device, unsigned words, unsigned long *set,
                                       unsigned scope) {
    (void)scope;
    ENTER(device, words ? set : NULL);
    set_first_bits(1, words, set);
    return NVML_SUCCESS;
}
