/* Who holds memory, as the driver lists it: by the pid that made the context.
 *
 * That pid stays listed while anything keeps its files open, a forked child for instance,
 * also after the process itself is dead. A process of a PID namespace that the reader cannot
 * see into is left out, as drivers since about 560 do.
 */
#include "nvml.h"

#include <stdlib.h>

/* What the version-less call fills; the later ones append the two instance numbers. */
struct process_info_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct process_detail {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_used;
};

struct process_detail_list {
    unsigned version, mode, count;
    struct process_detail *entries;
};

enum { MODE_COMPUTE, MODE_GRAPHICS, MODE_MPS };

struct listing {
    unsigned count;
    struct store_process *entries;
};

static int walk(int gpu, struct store_process **processes, int *count) {
    struct store_usage usage[STORE_MAX_GPUS];
    *processes = NULL;
    for (int room = 64;; room = *count + 16) { /* processes may come while we ask again */
        struct store_process *larger = realloc(*processes, room * sizeof **processes);
        if (!larger) return NVML_OUT_OF_MEMORY;
        *processes = larger;
        *count = room;
        if (store_walk_gpu((uint32_t)gpu, usage, *processes, count) < 0) return NVML_UNKNOWN;
        if (*count <= room) return NVML_SUCCESS;
    }
}

static bool is_meant(const struct store_process *process, const struct nvml_call *call, int mode) {
    if ((int)process->gpu != call->index || process->pid == 0) return false;
    if (mode == MODE_GRAPHICS || (mode == MODE_MPS && !process->mps)) return false;
    return !call->mig || (process->gpu_instance == call->mig->gpu_instance &&
                          process->compute_instance == call->mig->compute_instance);
}

/* The processes of one device that the reader may see. The caller frees entries, always. A
 * client of MPS is in two lists, as nvidia-smi's "M+C" shows. */
static int list(const struct nvml_call *call, int mode, struct listing *listing) {
    int count;
    *listing = (struct listing){0};
    int status = walk(call->index, &listing->entries, &count);
    for (int i = 0; status == NVML_SUCCESS && i < count; i++)
        if (is_meant(&listing->entries[i], call, mode)) listing->entries[listing->count++] = listing->entries[i];
    return status;
}

static unsigned long long used_by(const struct store_process *process, const struct nvml_call *call) {
    /* Under Windows' driver model the library lists processes but knows no sizes. */
    return call->sentinel || store_config()->wddm ? NOT_AVAILABLE_64 : process->charged_bytes;
}

/* Tells how many there are; whether the caller brought room for them decides what is returned. */
static int fits(const struct listing *listing, unsigned *count, const void *room) {
    bool enough = listing->count <= *count && (room || listing->count == 0);
    *count = listing->count;
    return enough ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

static int fill(const struct nvml_call *call, int mode, unsigned *count, struct process_info *infos) {
    struct listing listing;
    int status = list(call, mode, &listing);
    if (status == NVML_SUCCESS) status = fits(&listing, count, infos);
    for (unsigned i = 0; status == NVML_SUCCESS && i < listing.count; i++)
        infos[i] = (struct process_info){
            .pid = listing.entries[i].pid,
            .used = used_by(&listing.entries[i], call),
            /* Outside MIG there are no instances, and their numbers read "not available". */
            .gpu_instance = listing.entries[i].gpu_instance,
            .compute_instance = listing.entries[i].compute_instance,
        };
    free(listing.entries);
    return status;
}

static int fill_v1(const struct nvml_call *call, int mode, unsigned *count, struct process_info_v1 *infos) {
    struct listing listing;
    int status = list(call, mode, &listing);
    if (status == NVML_SUCCESS) status = fits(&listing, count, infos);
    for (unsigned i = 0; status == NVML_SUCCESS && i < listing.count; i++)
        infos[i] = (struct process_info_v1){listing.entries[i].pid, used_by(&listing.entries[i], call)};
    free(listing.entries);
    return status;
}

#define LIST(name, info, fill, mode) \
    EXPORT int name(struct nvml_device *device, unsigned *count, struct info *infos) { \
        ENTER_ANY(device, count); \
        REFUSE_RESTRICTED(); \
        return fill(&call, mode, count, infos); \
    }

/* The virtual GPU draws nothing: its graphics lists exist and are empty. */
LIST(nvmlDeviceGetComputeRunningProcesses, process_info_v1, fill_v1, MODE_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, process_info, fill, MODE_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, process_info, fill, MODE_COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, process_info_v1, fill_v1, MODE_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, process_info, fill, MODE_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, process_info, fill, MODE_GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, process_info_v1, fill_v1, MODE_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, process_info, fill, MODE_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, process_info, fill, MODE_MPS)

static int fill_details(const struct nvml_call *call, struct process_detail_list *details) {
    struct listing listing;
    int status = list(call, (int)details->mode, &listing);
    if (status == NVML_SUCCESS) status = fits(&listing, &details->count, details->entries);
    for (unsigned i = 0; status == NVML_SUCCESS && i < listing.count; i++)
        details->entries[i] = (struct process_detail){
            .pid = listing.entries[i].pid,
            .used = used_by(&listing.entries[i], call),
            .gpu_instance = listing.entries[i].gpu_instance,
            .compute_instance = listing.entries[i].compute_instance,
            .protected_used = 0,
        };
    free(listing.entries);
    return status;
}

EXPORT int nvmlDeviceGetRunningProcessDetailList(struct nvml_device *device, struct process_detail_list *details) {
    ENTER_ANY(device, details);
    REFUSE_RESTRICTED();
    if (details->version != VERSIONED(struct process_detail_list, 1)) return NVML_VERSION_MISMATCH;
    return details->mode > MODE_MPS ? NVML_INVALID_ARGUMENT : fill_details(&call, details);
}

/* No kernel ever runs, so there is never a sample. The real library returns the same code then. */
EXPORT int nvmlDeviceGetProcessUtilization(struct nvml_device *device, void *samples, unsigned *count,
                                           unsigned long long last_seen) {
    (void)samples, (void)last_seen;
    ENTER(device, count);
    if (call.gpu->mig_enabled) return NVML_NOT_SUPPORTED;
    *count = 0;
    return NVML_NOT_FOUND;
}
