/* The driver's memory pools of this program: what they reserve, what of that is used, and their trim.
 *
 * The same as payloads/trim does in a Python (Pools in frameworks.py), through the same driver calls, in the same
 * words. No call lists a process's contexts or pools: primary contexts can be asked for, and of each device the
 * default pool and the one in use instead of it.
 */
#define _GNU_SOURCE
#include "visitor.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_DEVICES = 64, RELAXED_CAPTURE = 2 };
enum { POOL_RESERVED = 5, POOL_USED = 7, GRAPH_USED = 0, GRAPH_RESERVED = 2 };

typedef int result;
typedef void *handle;

/* libcuda as the program has loaded it; whatever an old driver lacks stays NULL. */
static struct {
    handle library;
    result (*cuDeviceGetCount)(int *);
    result (*cuDeviceGetUuid_v2)(void *, int);
    result (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *);
    result (*cuDevicePrimaryCtxRetain)(handle *, int);
    result (*cuDevicePrimaryCtxRelease_v2)(int);
    result (*cuCtxPushCurrent_v2)(handle);
    result (*cuCtxPopCurrent_v2)(handle *);
    result (*cuMemGetInfo_v2)(size_t *, size_t *);
    result (*cuThreadExchangeStreamCaptureMode)(int *);
    result (*cuDeviceGetDefaultMemPool)(handle *, int);
    result (*cuDeviceGetMemPool)(handle *, int);
    result (*cuMemPoolGetAttribute)(handle, int, void *);
    result (*cuMemPoolTrimTo)(handle, size_t);
    result (*cuDeviceGetGraphMemAttribute)(int, int, void *);
    result (*cuDeviceGraphMemTrim)(int);
    result (*cuGetErrorName)(result, const char **);
} cu;

static bool open_driver(void) {
    cu.library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    if (!cu.library) return false;
#define FIND(name) *(void **)&cu.name = dlsym(cu.library, #name)
    FIND(cuDeviceGetCount);
    FIND(cuDeviceGetUuid_v2);
    FIND(cuDevicePrimaryCtxGetState);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuDevicePrimaryCtxRelease_v2);
    FIND(cuCtxPushCurrent_v2);
    FIND(cuCtxPopCurrent_v2);
    FIND(cuMemGetInfo_v2);
    FIND(cuThreadExchangeStreamCaptureMode);
    FIND(cuDeviceGetDefaultMemPool);
    FIND(cuDeviceGetMemPool);
    FIND(cuMemPoolGetAttribute);
    FIND(cuMemPoolTrimTo);
    FIND(cuDeviceGetGraphMemAttribute);
    FIND(cuDeviceGraphMemTrim);
    FIND(cuGetErrorName);
#undef FIND
    bool complete = cu.cuDeviceGetCount && cu.cuDevicePrimaryCtxGetState && cu.cuDevicePrimaryCtxRetain &&
                    cu.cuDevicePrimaryCtxRelease_v2 && cu.cuCtxPushCurrent_v2 && cu.cuCtxPopCurrent_v2 &&
                    cu.cuMemGetInfo_v2 && cu.cuDeviceGetDefaultMemPool && cu.cuDeviceGetMemPool &&
                    cu.cuMemPoolGetAttribute && cu.cuMemPoolTrimTo;
    if (!complete) {
        dlclose(cu.library);
        cu.library = NULL;
    }
    return complete;
}

static void close_driver(void) {
    if (cu.library) dlclose(cu.library);
    cu.library = NULL;
}

static int count_devices(void) {
    int count = 0;
    if (cu.cuDeviceGetCount(&count) != 0) return 0;
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

/* ---- one device ---- */

struct account {
    bool known;
    uint64_t reserved, used;
};

struct device {
    bool active; /* its primary context is */
    result failed;
    struct account pools, graphs, pools_after, graphs_after;
};

static bool is_active(int ordinal) {
    unsigned flags;
    int active = 0;
    return cu.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == 0 && active;
}

static int pools_of(int ordinal, handle found[2]) {
    int count = 0;
    handle pool = NULL;
    if (cu.cuDeviceGetDefaultMemPool(&pool, ordinal) == 0 && pool) found[count++] = pool;
    pool = NULL;
    if (cu.cuDeviceGetMemPool(&pool, ordinal) == 0 && pool && !(count && found[0] == pool)) found[count++] = pool;
    return count;
}

static struct account pools_account(int ordinal) {
    struct account sum = {0};
    handle found[2];
    int count = pools_of(ordinal, found);
    for (int i = 0; i < count; i++) {
        uint64_t reserved = 0, used = 0;
        if (cu.cuMemPoolGetAttribute(found[i], POOL_RESERVED, &reserved) != 0) continue;
        if (cu.cuMemPoolGetAttribute(found[i], POOL_USED, &used) != 0) continue;
        sum.known = true;
        sum.reserved += reserved;
        sum.used += used < reserved ? used : reserved;
    }
    return sum;
}

static struct account graphs_account(int ordinal) {
    struct account graphs = {0};
    if (!cu.cuDeviceGetGraphMemAttribute) return graphs;
    graphs.known = cu.cuDeviceGetGraphMemAttribute(ordinal, GRAPH_RESERVED, &graphs.reserved) == 0 &&
                   cu.cuDeviceGetGraphMemAttribute(ordinal, GRAPH_USED, &graphs.used) == 0 && graphs.reserved > 0;
    if (graphs.used > graphs.reserved) graphs.used = graphs.reserved;
    return graphs;
}

static result enter(int ordinal) {
    handle context = NULL;
    result failed = cu.cuDevicePrimaryCtxRetain(&context, ordinal);
    if (failed) return failed;
    failed = cu.cuCtxPushCurrent_v2(context);
    if (failed) cu.cuDevicePrimaryCtxRelease_v2(ordinal);
    return failed;
}

static void leave(int ordinal) {
    handle context;
    cu.cuCtxPopCurrent_v2(&context);
    cu.cuDevicePrimaryCtxRelease_v2(ordinal);
}

/* A context that a sticky error has broken fails every call, this harmless one too. */
static void measure(int ordinal, struct device *device) {
    size_t free_nbytes, total_nbytes;
    device->active = is_active(ordinal);
    if (!device->active) return;
    device->failed = enter(ordinal);
    if (device->failed) return;
    device->failed = cu.cuMemGetInfo_v2(&free_nbytes, &total_nbytes);
    leave(ordinal);
    if (device->failed) return;
    device->pools = device->pools_after = pools_account(ordinal);
    device->graphs = device->graphs_after = graphs_account(ordinal);
}

static void release(int ordinal, struct device *device) {
    handle found[2];
    if (enter(ordinal) != 0) return;
    int count = pools_of(ordinal, found);
    for (int i = 0; i < count; i++) {
        result failed = cu.cuMemPoolTrimTo(found[i], 0);
        if (failed) answer_note("cuMemPoolTrimTo on device %d answered %d", ordinal, failed);
    }
    if (cu.cuDeviceGraphMemTrim) cu.cuDeviceGraphMemTrim(ordinal);
    leave(ordinal);
    device->pools_after = pools_account(ordinal);
    device->graphs_after = graphs_account(ordinal);
}

/* ---- all of them ---- */

static const char *read_uuid(int ordinal) {
    static char text[48];
    unsigned char raw[16];
    int at = snprintf(text, sizeof text, "GPU-");
    if (!cu.cuDeviceGetUuid_v2 || cu.cuDeviceGetUuid_v2(raw, ordinal) != 0) return NULL;
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x", dash, raw[i]);
    }
    return text;
}

int device_ordinal(const char *uuid) {
    int found = -1;
    if (!open_driver()) return -1;
    int count = count_devices();
    for (int i = 0; i < count && found < 0; i++) {
        const char *its = read_uuid(i);
        if (its && !strcmp(its, uuid)) found = i;
    }
    close_driver();
    return found;
}

bool uses_cuda(void) {
    if (!open_driver()) return false;
    bool uses = count_devices() > 0;
    close_driver();
    return uses;
}

static void say_line(const char *name, int ordinal, struct account before, struct account after, bool *first) {
    if (!before.known) return;
    answer_raw("%s{\"name\":\"%s\",\"memory\":\"device\",\"device\":%d,\"held\":%llu,\"reclaimable\":%llu,"
               "\"used\":%llu,\"held_after\":%llu}",
               *first ? "" : ",", name, ordinal, (unsigned long long)before.reserved,
               (unsigned long long)(before.reserved - before.used), (unsigned long long)before.used,
               (unsigned long long)after.reserved);
    *first = false;
}

static void say_devices(const struct device *devices, int count) {
    bool first = true;
    answer_raw(",\"devices\":{");
    for (int i = 0; i < count; i++) {
        if (!devices[i].active) continue;
        const char *uuid = read_uuid(i);
        answer_raw(uuid ? "%s\"%d\":\"%s\"" : "%s\"%d\":null", first ? "" : ",", i, uuid);
        first = false;
    }
    answer_raw("},\"lines\":[");
    first = true;
    for (int i = 0; i < count; i++) {
        say_line("driver pools", i, devices[i].pools, devices[i].pools_after, &first);
        say_line("CUDA graphs", i, devices[i].graphs, devices[i].graphs_after, &first);
    }
    answer_raw("]");
}

static void say_failure(int ordinal, result failed) {
    const char *name = NULL;
    if (cu.cuGetErrorName && cu.cuGetErrorName(failed, &name) != 0) name = NULL;
    answer_note("the CUDA context on device %d is broken (%s, %d): nothing was released; end the process to get its "
                "memory back",
                ordinal, name ? name : "error", failed);
}

static bool is_any_broken(const struct device *devices, int count) {
    bool broken = false;
    for (int i = 0; i < count; i++)
        if (devices[i].active && devices[i].failed) {
            say_failure(i, devices[i].failed);
            broken = true;
        }
    return broken;
}

static int count_active(const struct device *devices, int count) {
    int active = 0;
    for (int i = 0; i < count; i++) active += devices[i].active;
    return active;
}

void trim_pools(bool releases) {
    static struct device devices[MAX_DEVICES];
    struct timespec began, ended;
    int count = 0, mode = RELAXED_CAPTURE;
    clock_gettime(CLOCK_MONOTONIC, &began);
    answer_raw("\"status\":\"done\"");
    memset(devices, 0, sizeof devices);
    if (!open_driver()) {
        answer_note("libcuda is not loaded in this program");
    } else {
        /* A graph that another thread captures would be invalidated even by questions of ours. */
        bool relaxed = cu.cuThreadExchangeStreamCaptureMode && cu.cuThreadExchangeStreamCaptureMode(&mode) == 0;
        count = count_devices();
        for (int i = 0; i < count; i++) measure(i, &devices[i]);
        if (releases && count && !count_active(devices, count))
            answer_note("the driver's pools were not released: this program has no primary context, and one that it "
                        "made itself (cuCtxCreate) can be used only in the thread where it is current");
        if (releases && !is_any_broken(devices, count))
            for (int i = 0; i < count; i++)
                if (devices[i].active) release(i, &devices[i]);
        say_devices(devices, count);
        if (relaxed) cu.cuThreadExchangeStreamCaptureMode(&mode);
        close_driver();
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double took_s = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
    answer_raw(",\"took_s\":%.6f", took_s);
}
