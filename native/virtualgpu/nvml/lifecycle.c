/* Init and shutdown, what every call checks first, handles, and the texts of errors. */
#include "nvml.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static struct nvml_device devices[STORE_MAX_GPUS], mig_devices[STORE_MAX_GPUS][STORE_MAX_MIG_DEVICES];
static struct store_footprint control_files, gpu_files[STORE_MAX_GPUS];

static int failure(struct store_fault fault) {
    return fault.kind == FAULT_ERROR || fault.kind == FAULT_HALFWAY ? fault.code : NVML_SUCCESS;
}

/* The first user opens, the last one closes: 3 descriptors of each GPU, none of them mapped. */
static void close_files(void) {
    for (int index = 0; index < store_config()->gpus; index++) store_footprint_drop(&gpu_files[index]);
    store_footprint_drop(&control_files);
}

static int open_files(void) {
    int error = store_footprint_add(&control_files, "nvidiactl", 1, 0);
    if (!error) error = store_footprint_add(&control_files, "nvidia-uvm", 2, 0);
    for (int index = 0; index < store_config()->gpus && !error; index++)
        error = store_footprint_add_gpu(&gpu_files[index], (unsigned)index, 3, 0);
    if (error) close_files();
    return error ? NVML_UNKNOWN : NVML_SUCCESS;
}

static void name_devices(void) {
    for (int index = 0; index < STORE_MAX_GPUS; index++) {
        devices[index] = (struct nvml_device){index, -1};
        for (int mig = 0; mig < STORE_MAX_MIG_DEVICES; mig++)
            mig_devices[index][mig] = (struct nvml_device){index, mig};
    }
}

static int add_user(void) {
    pthread_mutex_lock(&lock);
    int status = users ? NVML_SUCCESS : open_files();
    users += status == NVML_SUCCESS;
    name_devices();
    pthread_mutex_unlock(&lock);
    return status;
}

static int start(const char *function) {
    if (!store_config()) return NVML_DRIVER_NOT_LOADED;
    int status = failure(store_fault(function, -1));
    return status == NVML_SUCCESS ? add_user() : status;
}

EXPORT int nvmlInit(void) {
    return start(__func__);
}

EXPORT int nvmlInit_v2(void) {
    return start(__func__);
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* they choose which GPUs to attach; a virtual one needs no attaching */
    return start(__func__);
}

EXPORT int nvmlShutdown(void) {
    if (!nvml_is_initialized()) return NVML_UNINITIALIZED;
    int status = failure(store_fault(__func__, -1));
    if (status != NVML_SUCCESS) return status;
    pthread_mutex_lock(&lock);
    status = users ? NVML_SUCCESS : NVML_UNINITIALIZED;
    users -= users ? 1 : 0;
    if (status == NVML_SUCCESS && users == 0) close_files();
    pthread_mutex_unlock(&lock);
    return status;
}

bool nvml_is_initialized(void) {
    pthread_mutex_lock(&lock);
    bool initialized = users > 0;
    pthread_mutex_unlock(&lock);
    return initialized;
}

static struct nvml_call enter(const char *function, int index) {
    struct store_fault fault = store_fault(function, index);
    return (struct nvml_call){
        .status = failure(fault),
        .sentinel = fault.kind == FAULT_SENTINEL,
        .index = index,
        .gpu = index < 0 ? NULL : &store_config()->gpu[index],
    };
}

/* Whether a pointer is a MIG device's handle, and one that exists. */
static const struct nvml_device *mig_handle(const void *device) {
    const char *first = (const char *)mig_devices, *at = device;
    if (at < first || at >= first + sizeof mig_devices || (at - first) % sizeof(struct nvml_device)) return NULL;
    const struct nvml_device *handle = device;
    return nvml_mig_device_at(handle->index, handle->mig) == handle ? handle : NULL;
}

struct nvml_call nvml_enter_system(const char *function, const void *output) {
    if (!nvml_is_initialized()) return (struct nvml_call){.status = NVML_UNINITIALIZED};
    if (!output) return (struct nvml_call){.status = NVML_INVALID_ARGUMENT};
    return enter(function, -1);
}

struct nvml_call nvml_enter_device(const char *function, const struct nvml_device *device, const void *output) {
    if (!nvml_is_initialized()) return (struct nvml_call){.status = NVML_UNINITIALIZED};
    int index = nvml_index_of(device);
    if (index < 0 && mig_handle(device)) return (struct nvml_call){.status = NVML_NOT_SUPPORTED};
    if (index < 0 || !output) return (struct nvml_call){.status = NVML_INVALID_ARGUMENT};
    return enter(function, index);
}

struct nvml_call nvml_enter_any_device(const char *function, const struct nvml_device *device, const void *output) {
    const struct nvml_device *handle = nvml_is_initialized() ? mig_handle(device) : NULL;
    if (!handle || !output) return nvml_enter_device(function, device, output);
    struct nvml_call call = enter(function, handle->index);
    call.mig = &call.gpu->mig[handle->mig];
    return call;
}

struct nvml_device *nvml_mig_device_at(int index, int mig) {
    const struct store_gpu *gpu = nvml_device_at(index) ? &store_config()->gpu[index] : NULL;
    return gpu && gpu->mig_enabled && mig >= 0 && mig < gpu->mig_devices ? &mig_devices[index][mig] : NULL;
}

struct nvml_device *nvml_device_at(int index) {
    return index >= 0 && index < store_config()->gpus ? &devices[index] : NULL;
}

int nvml_index_of(const void *device) {
    const char *first = (const char *)devices, *at = device;
    const struct store_config *config = store_config();
    if (!config || at < first || at >= first + config->gpus * sizeof *devices) return -1;
    return (at - first) % sizeof *devices ? -1 : (int)((at - first) / sizeof *devices);
}

int nvml_copy(char *buffer, unsigned length, const char *text) {
    size_t needed = strlen(text) + 1;
    if (length < needed) return NVML_INSUFFICIENT_SIZE;
    memcpy(buffer, text, needed);
    return NVML_SUCCESS;
}

/* ---- the text for every number that a call may return ---- */

static const char *const words[] = {
    [0] = "Success",
    [1] = "Uninitialized",
    [2] = "Invalid Argument",
    [3] = "Not Supported",
    [4] = "Insufficient Permissions",
    [5] = "Already Initialized",
    [6] = "Not Found",
    [7] = "Insufficient Size",
    [8] = "Insufficient External Power",
    [9] = "Driver Not Loaded",
    [10] = "Timeout",
    [11] = "Interrupt Request Issue",
    [12] = "NVML Shared Library Not Found",
    [13] = "Function Not Found",
    [14] = "Corrupted infoROM",
    [15] = "GPU is lost",
    [16] = "GPU requires reset",
    [17] = "GPU access blocked by the operating system",
    [18] = "Driver/library version mismatch",
    [19] = "In use by another client",
    [20] = "Insufficient Memory",
    [21] = "No data",
    [22] = "vGPU ECC Not Supported",
    [23] = "Insufficient Resources",
    [24] = "Frequency Not Supported",
    [25] = "Argument Version Mismatch",
    [26] = "Deprecated",
    [27] = "Not Ready",
    [28] = "GPU Not Found",
    [29] = "Invalid State",
    [30] = "Reset Type Not Supported",
};

/* Works before init and under every fault: programs need it to report the failure of other calls. */
EXPORT const char *nvmlErrorString(int result) {
    int known = (int)(sizeof words / sizeof *words);
    return result >= 0 && result < known ? words[result] : "Unknown Error";
}
