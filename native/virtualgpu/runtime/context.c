/* Which context a call works in: the runtime uses the primary context of the thread's device, and leaves alone
 * whatever context the program made current by the driver API. */
#include "runtime.h"

#include <pthread.h>

enum { MAX_DEVICES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *_Atomic primaries[MAX_DEVICES]; /* retained once each; the handle stays the same after a reset */
static _Thread_local int chosen_device;

error device_check(int device) {
    return device < 0 || device >= device_count || device >= MAX_DEVICES ? INVALID_DEVICE : OK;
}

static bool is_active(int device) {
    int active = 0;
    return cu.cuDevicePrimaryCtxGetState(device, NULL, &active) == OK && active;
}

/* After somebody's reset it is retained again: that brings it back. One retain is kept, however often. */
static error retain(int device) {
    void *context = NULL;
    error code = cu.cuDevicePrimaryCtxRetain(&context, device);
    if (!code && primaries[device]) cu.cuDevicePrimaryCtxRelease_v2(device);
    if (!code) primaries[device] = context;
    /* In a process that a kernel has broken no context can be made any more. */
    return code >= ILLEGAL_ADDRESS && code < NOT_PERMITTED ? DEVICE_UNAVAILABLE : code;
}

error primary_of(int device, void **context) {
    pthread_mutex_lock(&lock);
    error code = primaries[device] && is_active(device) ? OK : retain(device);
    *context = primaries[device];
    pthread_mutex_unlock(&lock);
    return code;
}

/* Which device's primary context it is, or -1 for a context that the program made itself. */
static int primary_device(const void *context) {
    for (int device = 0; device < MAX_DEVICES; device++)
        if (primaries[device] == context) return device;
    return -1;
}

static error make_current(int device) {
    void *context;
    error code = primary_of(device, &context);
    return code ? code : (error)cu.cuCtxSetCurrent(context);
}

error context_ready(void) {
    void *current = NULL;
    error code = cu.cuCtxGetCurrent(&current);
    if (code) return code;
    if (!current) return make_current(chosen_device);
    int device = primary_device(current);
    return device < 0 || is_active(device) ? OK : make_current(device);
}

error device_chosen(int *device) {
    void *current = NULL;
    error code = cu.cuCtxGetCurrent(&current);
    if (code) return code;
    if (current && primary_device(current) < 0) return cu.cuCtxGetDevice(device);
    *device = current ? primary_device(current) : chosen_device;
    return OK;
}

API error cudaGetDevice(int *device) {
    NEED_DRIVER();
    if (!device) return fail(INVALID_VALUE);
    return fail(device_chosen(device));
}

API error cudaSetDevice(int device) {
    NEED_DRIVER();
    RETURN_IF(device_check(device));
    chosen_device = device;
    return fail(make_current(device));
}

API error cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    enum { FLAGS_ARE_VALID = 1 };
    void *context;
    NEED_DRIVER();
    RETURN_IF(device_check(device));
    if (flags & FLAGS_ARE_VALID) RETURN_IF(cu.cuDevicePrimaryCtxSetFlags_v2(device, device_flags));
    return fail(primary_of(device, &context));
}

API error cudaDeviceSynchronize(void) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxSynchronize());
}

/* Measured: with a context of the program's own current, or in a thread that has none, it does nothing, and
 * succeeds. */
API error cudaDeviceReset(void) {
    void *current = NULL;
    int device;
    NEED_DRIVER();
    RETURN_IF(cu.cuCtxGetCurrent(&current));
    if (!current || primary_device(current) < 0) return OK;
    RETURN_IF(device_chosen(&device));
    pthread_mutex_lock(&lock);
    error code = cu.cuDevicePrimaryCtxReset_v2(device);
    if (!code && primaries[device]) cu.cuDevicePrimaryCtxRelease_v2(device);
    if (!code) primaries[device] = NULL;
    if (!code) cu.cuCtxSetCurrent(NULL);
    pthread_mutex_unlock(&lock);
    return fail(code);
}

/* ---- flags of the primary context ---- */

enum { MAP_HOST = 8, KNOWN_FLAGS = 0x9f };

API error cudaGetDeviceFlags(unsigned *flags) {
    int device;
    NEED_DRIVER();
    if (!flags) return fail(INVALID_VALUE);
    RETURN_IF(device_chosen(&device));
    RETURN_IF(cu.cuDevicePrimaryCtxGetState(device, flags, NULL));
    *flags |= MAP_HOST; /* always so since pointers are unified */
    return OK;
}

API error cudaSetDeviceFlags(unsigned flags) {
    int device;
    NEED_DRIVER();
    if (flags & ~KNOWN_FLAGS) return fail(INVALID_VALUE);
    RETURN_IF(device_chosen(&device));
    RETURN_IF(cu.cuDevicePrimaryCtxSetFlags_v2(device, flags & ~MAP_HOST));
    return fail(context_ready());
}

API error cudaSetValidDevices(int *devices, int count) {
    NEED_DRIVER();
    for (int i = 0; devices && i < count; i++) RETURN_IF(device_check(devices[i]));
    return OK;
}

/* ---- settings of the context ---- */

API error cudaDeviceGetLimit(size_t *value, int limit) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxGetLimit(value, limit));
}

API error cudaDeviceSetLimit(int limit, size_t value) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxSetLimit(limit, value));
}

API error cudaDeviceGetCacheConfig(int *config) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxGetCacheConfig(config));
}

API error cudaDeviceSetCacheConfig(int config) {
    NEED_DRIVER();
    if (config < 0 || config > 3) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    return fail(cu.cuCtxSetCacheConfig(config));
}

API error cudaDeviceGetSharedMemConfig(int *config) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxGetSharedMemConfig(config));
}

API error cudaDeviceSetSharedMemConfig(int config) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxSetSharedMemConfig(config));
}

API error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxGetStreamPriorityRange(least, greatest));
}

API error cudaCtxResetPersistingL2Cache(void) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuCtxResetPersistingL2Cache());
}

API error cudaDeviceFlushGPUDirectRDMAWrites(int target, int scope) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuFlushGPUDirectRDMAWrites(target, scope));
}

/* ---- peers ---- */

static error peer_context(int device, void **context) {
    int own, can = 0;
    RETURN_IF(device_check(device));
    RETURN_IF(device_chosen(&own));
    RETURN_IF(cu.cuDeviceCanAccessPeer(&can, own, device));
    return can ? primary_of(device, context) : PEER_ACCESS_UNSUPPORTED;
}

API error cudaDeviceEnablePeerAccess(int device, unsigned flags) {
    void *context;
    NEED_DRIVER();
    RETURN_IF(peer_context(device, &context));
    NEED_CONTEXT();
    return fail(cu.cuCtxEnablePeerAccess(context, flags));
}

API error cudaDeviceDisablePeerAccess(int device) {
    void *context;
    NEED_DRIVER();
    error code = peer_context(device, &context);
    if (code == PEER_ACCESS_UNSUPPORTED) code = PEER_ACCESS_NOT_ENABLED;
    RETURN_IF(code);
    NEED_CONTEXT();
    return fail(cu.cuCtxDisablePeerAccess(context));
}

#if RUNTIME_MAJOR == 12
/* The names that these functions had until CUDA 4. */
API error cudaThreadExit(void) {
    return cudaDeviceReset();
}

API error cudaThreadSynchronize(void) {
    return cudaDeviceSynchronize();
}

API error cudaThreadGetLimit(size_t *value, int limit) {
    return cudaDeviceGetLimit(value, limit);
}

API error cudaThreadSetLimit(int limit, size_t value) {
    return cudaDeviceSetLimit(limit, value);
}

API error cudaThreadGetCacheConfig(int *config) {
    return cudaDeviceGetCacheConfig(config);
}

API error cudaThreadSetCacheConfig(int config) {
    return cudaDeviceSetCacheConfig(config);
}
#endif
