/* Limits of control groups, as nvidia-ml-py 13.615 and NVIDIA's page on memory partitioning have them.
 *
 * Drivers before 615 do not have the calls. Only root sets limits; everybody may read them. A group without
 * the kernel's controller reads the nearest one's above it that has it.
 */
#include "nvml.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_VERSION 615
#define NO_LIMIT (~0ull)

struct set_limits {
    const char *name_space;
    unsigned long long soft, hard;
};

struct get_limits {
    const char *name_space;
    unsigned long long soft, hard, used;
};

/* The group's path below the root of all groups, which here is <folder>/cgroup; NULL for any other path. */
static const char *group_of(const char *name_space) {
    const char *folder = store_folder();
    size_t length = strlen(folder);
    if (!name_space || strncmp(name_space, folder, length) != 0) return NULL;
    if (strncmp(name_space + length, "/cgroup", 7) != 0) return NULL;
    const char *rest = name_space + length + 7;
    if (strlen(rest) >= STORE_CGROUP_SIZE || strstr(rest, "..")) return NULL;
    return *rest == '\0' ? "/" : *rest == '/' ? rest : NULL;
}

static int refuse(const struct nvml_call *call) {
    if (atoi(store_config()->driver_version) < FIRST_VERSION) return NVML_FUNCTION_NOT_FOUND;
    return call->mig ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT int nvmlDeviceSetMemoryLimits_v1(struct nvml_device *device, const struct set_limits *limits) {
    ENTER_ANY(device, limits);
    int status = refuse(&call);
    if (status != NVML_SUCCESS) return status;
    const char *cgroup = group_of(limits->name_space);
    if (!cgroup) return NVML_INVALID_ARGUMENT;
    if (geteuid() != 0) return NVML_NO_PERMISSION;
    if (limits->soft > limits->hard) return NVML_INVALID_ARGUMENT;
    int error = store_cgroup_set((uint32_t)call.index, cgroup, limits->soft, limits->hard);
    return error == -ENOENT ? NVML_NOT_FOUND : error ? NVML_UNKNOWN : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryLimits_v1(struct nvml_device *device, struct get_limits *limits) {
    ENTER_ANY(device, limits);
    struct store_limit found;
    int status = refuse(&call);
    if (status != NVML_SUCCESS) return status;
    const char *cgroup = group_of(limits->name_space);
    if (!cgroup) return NVML_INVALID_ARGUMENT;
    if (!store_cgroup_limit((uint32_t)call.index, cgroup, &found)) return NVML_NOT_FOUND;
    uint64_t used;
    if (store_cgroup_used((uint32_t)call.index, cgroup, &used) != 0) return NVML_UNKNOWN;
    limits->soft = found.soft;
    limits->hard = found.hard == UINT64_MAX ? NO_LIMIT : found.hard;
    limits->used = used;
    return NVML_SUCCESS;
}
