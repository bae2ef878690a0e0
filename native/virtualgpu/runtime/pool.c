/* Stream-ordered memory, its pools, and memory and events shared between processes. */
#include "runtime.h"

/* The driver's form of a function for the streams that the caller means. The driver tells CUPTI which one it was. */
#define OWN_STREAM(name) (per_thread_streams ? cu.name##_ptsz : cu.name)

static error allocate(void **address, size_t nbytes, void *pool, bool of_pool, void *stream) {
    deviceptr found = 0;
    NEED_DRIVER();
    if (!address || (of_pool && !pool)) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    error code = OK;
    if (nbytes && of_pool) code = OWN_STREAM(cuMemAllocFromPoolAsync)(&found, nbytes, pool, stream);
    if (nbytes && !of_pool) code = OWN_STREAM(cuMemAllocAsync)(&found, nbytes, stream);
    *address = (void *)found;
    return fail(code);
}

API error cudaMallocAsync(void **address, size_t nbytes, void *stream) {
    return allocate(address, nbytes, NULL, false, stream);
}
PER_THREAD(cudaMallocAsync, _ptsz, (void **address, size_t nbytes, void *stream), (address, nbytes, stream))

API error cudaMallocFromPoolAsync(void **address, size_t nbytes, void *pool, void *stream) {
    return allocate(address, nbytes, pool, true, stream);
}
PER_THREAD(cudaMallocFromPoolAsync, _ptsz, (void **address, size_t nbytes, void *pool, void *stream),
           (address, nbytes, pool, stream))

API error cudaFreeAsync(void *address, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return address ? fail(OWN_STREAM(cuMemFreeAsync)((deviceptr)address, stream)) : OK;
}
PER_THREAD(cudaFreeAsync, _ptsz, (void *address, void *stream), (address, stream))

/* ---- pools need no context ---- */

API error cudaDeviceGetDefaultMemPool(void **pool, int device) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetDefaultMemPool(pool, device));
}

API error cudaDeviceGetMemPool(void **pool, int device) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetMemPool(pool, device));
}

API error cudaDeviceSetMemPool(int device, void *pool) {
    NEED_DRIVER();
    return fail(cu.cuDeviceSetMemPool(device, pool));
}

API error cudaMemPoolCreate(void **pool, const struct pool_props *props) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolCreate(pool, props));
}

API error cudaMemPoolDestroy(void *pool) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolDestroy(pool));
}

API error cudaMemPoolTrimTo(void *pool, size_t keep_nbytes) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolTrimTo(pool, keep_nbytes));
}

API error cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolGetAttribute(pool, attribute, value));
}

API error cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolSetAttribute(pool, attribute, value));
}

API error cudaMemPoolSetAccess(void *pool, const struct access_desc *descriptions, size_t count) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolSetAccess(pool, descriptions, count));
}

API error cudaMemPoolGetAccess(int *flags, void *pool, struct location *location) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolGetAccess(flags, pool, location));
}

#if RUNTIME_MAJOR > 12
API error cudaMemGetDefaultMemPool(void **pool, struct location *location, int type) {
    NEED_DRIVER();
    return fail(cu.cuMemGetDefaultMemPool(pool, location, type));
}

API error cudaMemGetMemPool(void **pool, struct location *location, int type) {
    NEED_DRIVER();
    return fail(cu.cuMemGetMemPool(pool, location, type));
}

API error cudaMemSetMemPool(struct location *location, int type, void *pool) {
    NEED_DRIVER();
    return fail(cu.cuMemSetMemPool(location, type, pool));
}
#endif

API error cudaDeviceGraphMemTrim(int device) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGraphMemTrim(device));
}

API error cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
    NEED_DRIVER();
    return fail(cu.cuDeviceGetGraphMemAttribute(device, attribute, value));
}

API error cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value) {
    NEED_DRIVER();
    return fail(cu.cuDeviceSetGraphMemAttribute(device, attribute, value));
}

/* ---- between processes ---- */

API error cudaMemPoolExportToShareableHandle(void *shareable, void *pool, int type, unsigned flags) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolExportToShareableHandle(shareable, pool, type, flags));
}

API error cudaMemPoolImportFromShareableHandle(void **pool, void *shareable, int type, unsigned flags) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolImportFromShareableHandle(pool, shareable, type, flags));
}

API error cudaMemPoolExportPointer(struct opaque64 *data, void *address) {
    NEED_DRIVER();
    return fail(cu.cuMemPoolExportPointer(data, (deviceptr)address));
}

API error cudaMemPoolImportPointer(void **address, void *pool, struct opaque64 *data) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemPoolImportPointer((deviceptr *)address, pool, data));
}

API error cudaIpcGetMemHandle(struct opaque64 *handle, void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuIpcGetMemHandle(handle, (deviceptr)address));
}

API error cudaIpcOpenMemHandle(void **address, struct opaque64 handle, unsigned flags) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuIpcOpenMemHandle_v2((deviceptr *)address, handle, flags));
}

API error cudaIpcCloseMemHandle(void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuIpcCloseMemHandle((deviceptr)address));
}

API error cudaIpcGetEventHandle(struct opaque64 *handle, void *event) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuIpcGetEventHandle(handle, event));
}

API error cudaIpcOpenEventHandle(void **event, struct opaque64 handle) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuIpcOpenEventHandle(event, handle));
}
