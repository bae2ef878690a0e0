/* Memory: plain, pitched, managed, pinned, and what an address is. */
#include "runtime.h"

#include <string.h>

API error cudaMalloc(void **address, size_t nbytes) {
    deviceptr found = 0;
    NEED_DRIVER();
    if (!address) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    error code = nbytes ? cu.cuMemAlloc_v2(&found, nbytes) : OK;
    *address = (void *)found;
    return fail(code);
}

/* The driver frees pinned memory by another function, and answers so. */
API error cudaFree(void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    if (address && symbol_is_at((deviceptr)address)) return fail(INVALID_VALUE); /* it belongs to the module */
    return fail(cu.cuMemFree_v2((deviceptr)address));
}

API error cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
    enum { ELEMENT = 4, ALIGNMENT = 512 };
    deviceptr found = 0;
    NEED_DRIVER();
    if (!address || !pitch) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    bool none = !width || !height;
    size_t row = none ? 0 : (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    error code = none ? OK : cu.cuMemAllocPitch_v2(&found, &row, width, height, ELEMENT);
    *address = (void *)found;
    *pitch = row;
    return fail(code);
}

API error cudaMalloc3D(struct pitched *made, struct box box) {
    NEED_DRIVER();
    if (!made) return fail(INVALID_VALUE);
    *made = (struct pitched){NULL, 0, box.width, box.height};
    return cudaMallocPitch(&made->address, &made->pitch, box.width, box.height * box.depth);
}

API error cudaMemGetInfo(size_t *free_nbytes, size_t *total) {
    size_t ignored;
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemGetInfo_v2(free_nbytes ? free_nbytes : &ignored, total ? total : &ignored));
}

/* ---- managed ---- */

API error cudaMallocManaged(void **address, size_t nbytes, unsigned flags) {
    deviceptr found = 0;
    NEED_DRIVER();
    if (!address || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    error code = nbytes ? cu.cuMemAllocManaged(&found, nbytes, flags) : OK;
    *address = (void *)found;
    return fail(code);
}

static error prefetch(const void *address, size_t nbytes, struct location place, unsigned flags, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemPrefetchAsync_v2((deviceptr)address, nbytes, place, flags, stream_meant(stream)));
}

static error advise(const void *address, size_t nbytes, int advice, struct location place) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemAdvise_v2((deviceptr)address, nbytes, advice, place));
}

#if RUNTIME_MAJOR == 12
/* A device's number, or -1 for the host. */
static struct location place_of(int device) {
    return device == -1 ? (struct location){LOCATION_HOST, 0} : (struct location){LOCATION_DEVICE, device};
}

API error cudaMemPrefetchAsync(const void *address, size_t nbytes, int device, void *stream) {
    return prefetch(address, nbytes, place_of(device), 0, stream);
}
PER_THREAD(cudaMemPrefetchAsync, _ptsz, (const void *address, size_t nbytes, int device, void *stream),
           (address, nbytes, device, stream))

API error cudaMemPrefetchAsync_v2(const void *address, size_t nbytes, struct location place, unsigned flags,
                                  void *stream) {
    return prefetch(address, nbytes, place, flags, stream);
}
PER_THREAD(cudaMemPrefetchAsync_v2, _ptsz,
           (const void *address, size_t nbytes, struct location place, unsigned flags, void *stream),
           (address, nbytes, place, flags, stream))

API error cudaMemAdvise(const void *address, size_t nbytes, int advice, int device) {
    return advise(address, nbytes, advice, place_of(device));
}

API error cudaMemAdvise_v2(const void *address, size_t nbytes, int advice, struct location place) {
    return advise(address, nbytes, advice, place);
}
#else
API error cudaMemPrefetchAsync(const void *address, size_t nbytes, struct location place, unsigned flags,
                               void *stream) {
    return prefetch(address, nbytes, place, flags, stream);
}
PER_THREAD(cudaMemPrefetchAsync, _ptsz,
           (const void *address, size_t nbytes, struct location place, unsigned flags, void *stream),
           (address, nbytes, place, flags, stream))

API error cudaMemAdvise(const void *address, size_t nbytes, int advice, struct location place) {
    return advise(address, nbytes, advice, place);
}
#endif

API error cudaMemRangeGetAttribute(void *data, size_t size, int attribute, const void *address, size_t nbytes) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemRangeGetAttribute(data, size, attribute, (deviceptr)address, nbytes));
}

API error cudaMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, const void *address,
                                    size_t nbytes) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemRangeGetAttributes(data, sizes, attributes, count, (deviceptr)address, nbytes));
}

API error cudaStreamAttachMemAsync(void *stream, void *address, size_t nbytes, unsigned flags) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuStreamAttachMemAsync(stream_meant(stream), (deviceptr)address, nbytes, flags));
}
PER_THREAD(cudaStreamAttachMemAsync, _ptsz, (void *stream, void *address, size_t nbytes, unsigned flags),
           (stream, address, nbytes, flags))

/* ---- pinned ---- */

API error cudaHostAlloc(void **address, size_t nbytes, unsigned flags) {
    void *found = NULL;
    NEED_DRIVER();
    if (!address || flags > (HOST_PORTABLE | HOST_DEVICEMAP | HOST_WRITECOMBINED)) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    error code = nbytes ? cu.cuMemHostAlloc(&found, nbytes, flags) : OK;
    *address = found;
    return fail(code);
}

API error cudaMallocHost(void **address, size_t nbytes) {
    return cudaHostAlloc(address, nbytes, 0);
}

API error cudaFreeHost(void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return address ? fail(cu.cuMemFreeHost(address)) : OK;
}

API error cudaHostRegister(void *address, size_t nbytes, unsigned flags) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemHostRegister_v2(address, nbytes, flags));
}

API error cudaHostUnregister(void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemHostUnregister(address));
}

API error cudaHostGetDevicePointer(void **device_address, void *address, unsigned flags) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemHostGetDevicePointer_v2((deviceptr *)device_address, address, flags));
}

API error cudaHostGetFlags(unsigned *flags, void *address) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemHostGetFlags(flags, address));
}

/* ---- what an address is ---- */

struct pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
#if RUNTIME_MAJOR > 12
    long reserved[8];
#endif
};

enum pointer_type { UNREGISTERED, HOST, DEVICE, MANAGED };

API error cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address) {
    enum { MEMORY_TYPE = 2, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, DEVICE_ORDINAL };
    int asked[] = {MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED, DEVICE_ORDINAL};
    int type = 0, device = 0;
    unsigned managed = 0;
    void *on_device = NULL, *on_host = NULL;
    void *answers[] = {&type, &on_device, &on_host, &managed, &device};
    NEED_DRIVER();
    if (!attributes) return fail(INVALID_VALUE);
    RETURN_IF(cu.cuPointerGetAttributes(5, asked, answers, (deviceptr)address));
    memset(attributes, 0, sizeof *attributes);
    attributes->type = !type ? UNREGISTERED : managed ? MANAGED : type == MEMORY_HOST ? HOST : DEVICE;
    attributes->device = device;
    attributes->device_pointer = on_device;
    attributes->host_pointer = type ? on_host : (void *)address;
    return OK;
}
