/* What every function of the virtual libnvidia-ml uses: error numbers, handles, the first checks.
 *
 * The values are the public interface's; the words are ours, and no foreign header is used.
 */
#ifndef VRAM_VIRTUALGPU_NVML_H
#define VRAM_VIRTUALGPU_NVML_H

#include "../store/store.h"

#define EXPORT __attribute__((visibility("default")))

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_OUT_OF_MEMORY = 20,
    NVML_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

/* What the real library answers where it has no value: all bits set. */
#define NOT_AVAILABLE_64 (~0ull)
#define NOT_AVAILABLE_32 (~0u)

/* Versioned structures begin with this number: the version, and the size it stands for. */
#define VERSIONED(type, version) ((unsigned)(sizeof(type) | ((unsigned)(version) << 24)))

/* A GPU, or a MIG device of it: then *mig* is its number there, else -1. */
struct nvml_device {
    int index, mig;
};

/* What a call needs. Unless status is NVML_SUCCESS, the call returns it at once. */
struct nvml_call {
    int status;
    bool sentinel; /* a fault asks for "not available" where a number would be */
    int index;
    const struct store_gpu *gpu;
    const struct store_mig *mig; /* NULL for a GPU as a whole */
};

struct nvml_call nvml_enter_system(const char *function, const void *output);
struct nvml_call nvml_enter_device(const char *function, const struct nvml_device *device, const void *output);

/* The same, for the few questions that a MIG device answers too. Others are not supported on it. */
struct nvml_call nvml_enter_any_device(const char *function, const struct nvml_device *device, const void *output);

/* The handle of a GPU, and back: -1 where a pointer is no handle of a GPU of ours. */
struct nvml_device *nvml_device_at(int index);
/* The handle of a GPU's MIG device; NULL where there is none of that number. */
struct nvml_device *nvml_mig_device_at(int index, int mig);
int nvml_index_of(const void *device);

bool nvml_is_initialized(void);

/* Copies text to the caller, or reports that its buffer is too small. */
int nvml_copy(char *buffer, unsigned length, const char *text);

#define ENTER_SYSTEM(output) \
    struct nvml_call call = nvml_enter_system(__func__, (output)); \
    if (call.status != NVML_SUCCESS) return call.status

#define ENTER(device, output) \
    struct nvml_call call = nvml_enter_device(__func__, (device), (output)); \
    if (call.status != NVML_SUCCESS) return call.status

#define ENTER_ANY(device, output) \
    struct nvml_call call = nvml_enter_any_device(__func__, (device), (output)); \
    if (call.status != NVML_SUCCESS) return call.status

/* Under MIG, memory and processes of the whole GPU are shown to privileged users only. */
#define REFUSE_RESTRICTED() \
    if (!call.mig && call.gpu->mig_enabled && call.gpu->mig_restricted) return NVML_NO_PERMISSION

#endif
