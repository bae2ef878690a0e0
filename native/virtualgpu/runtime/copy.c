/* Copies and fills. The forms that do not say "Async" wait for their work. */
#include "runtime.h"

static error check_kind(int kind) {
    return kind < HOST_TO_HOST || kind > COPY_DEFAULT ? INVALID_DIRECTION : OK;
}

static error start_copy(void *target, const void *source, size_t nbytes, int kind, void *stream) {
    if (!target || !source) return INVALID_VALUE;
    switch (kind) {
    case HOST_TO_DEVICE: return cu.cuMemcpyHtoDAsync_v2((deviceptr)target, source, nbytes, stream);
    case DEVICE_TO_HOST: return cu.cuMemcpyDtoHAsync_v2(target, (deviceptr)source, nbytes, stream);
    case DEVICE_TO_DEVICE: return cu.cuMemcpyDtoDAsync_v2((deviceptr)target, (deviceptr)source, nbytes, stream);
    default: return cu.cuMemcpyAsync((deviceptr)target, (deviceptr)source, nbytes, stream);
    }
}

/* Waits for what was just started on the default stream. */
static error finish(error code) {
    return code ? code : (error)cu.cuStreamSynchronize(stream_meant(NULL));
}

API error cudaMemcpyAsync(void *target, const void *source, size_t nbytes, int kind, void *stream) {
    NEED_DRIVER();
    RETURN_IF(check_kind(kind));
    NEED_CONTEXT();
    return nbytes ? fail(start_copy(target, source, nbytes, kind, stream_meant(stream))) : OK;
}
PER_THREAD(cudaMemcpyAsync, _ptsz, (void *target, const void *source, size_t nbytes, int kind, void *stream),
           (target, source, nbytes, kind, stream))

API error cudaMemcpy(void *target, const void *source, size_t nbytes, int kind) {
    error code = cudaMemcpyAsync(target, source, nbytes, kind, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemcpy, _ptds, (void *target, const void *source, size_t nbytes, int kind),
           (target, source, nbytes, kind))

API error cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t nbytes, void *stream) {
    void *to_context, *from_context;
    NEED_DRIVER();
    RETURN_IF(device_check(to));
    RETURN_IF(device_check(from));
    NEED_CONTEXT();
    RETURN_IF(primary_of(to, &to_context));
    RETURN_IF(primary_of(from, &from_context));
    return fail(cu.cuMemcpyPeerAsync((deviceptr)target, to_context, (deviceptr)source, from_context, nbytes,
                                     stream_meant(stream)));
}

API error cudaMemcpyPeer(void *target, int to, const void *source, int from, size_t nbytes) {
    error code = cudaMemcpyPeerAsync(target, to, source, from, nbytes, NULL);
    return code ? code : fail(finish(OK));
}

/* In CUDA 12 an index of the copy that failed comes last but one. */
#if RUNTIME_MAJOR == 12
API error cudaMemcpyBatchAsync(void **targets, void **sources, size_t *sizes, size_t count, void *attributes,
                               size_t *indices, size_t attribute_count, size_t *failed, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    error code = cu.cuMemcpyBatchAsync_v2((deviceptr *)targets, (deviceptr *)sources, sizes, count, attributes, indices,
                                          attribute_count, stream_meant(stream));
    if (failed && code) *failed = SIZE_MAX;
    return fail(code);
}
PER_THREAD(cudaMemcpyBatchAsync, _ptsz,
           (void **targets, void **sources, size_t *sizes, size_t count, void *attributes, size_t *indices,
            size_t attribute_count, size_t *failed, void *stream),
           (targets, sources, sizes, count, attributes, indices, attribute_count, failed, stream))
#else
API error cudaMemcpyBatchAsync(void **targets, void **sources, size_t *sizes, size_t count, void *attributes,
                               size_t *indices, size_t attribute_count, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuMemcpyBatchAsync_v2((deviceptr *)targets, (deviceptr *)sources, sizes, count, attributes, indices,
                                         attribute_count, stream_meant(stream)));
}
PER_THREAD(cudaMemcpyBatchAsync, _ptsz,
           (void **targets, void **sources, size_t *sizes, size_t count, void *attributes, size_t *indices,
            size_t attribute_count, void *stream),
           (targets, sources, sizes, count, attributes, indices, attribute_count, stream))
#endif

/* ---- in rows ---- */

static bool reads_host(int kind) {
    return kind == HOST_TO_HOST || kind == HOST_TO_DEVICE;
}

static bool writes_host(int kind) {
    return kind == HOST_TO_HOST || kind == DEVICE_TO_HOST;
}

static int memory_type(int kind, bool host) {
    return kind == COPY_DEFAULT ? MEMORY_UNIFIED : host ? MEMORY_HOST : MEMORY_DEVICE;
}

API error cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                            size_t height, int kind, void *stream) {
    NEED_DRIVER();
    RETURN_IF(check_kind(kind));
    NEED_CONTEXT();
    if (!width || !height) return OK;
    if (width > target_pitch || width > source_pitch) return fail(INVALID_PITCH);
    struct copy2d copy = {
        .source = {.type = memory_type(kind, reads_host(kind)),
                   .host = (void *)source,
                   .device = (deviceptr)source,
                   .pitch = source_pitch},
        .target = {.type = memory_type(kind, writes_host(kind)),
                   .host = target,
                   .device = (deviceptr)target,
                   .pitch = target_pitch},
        .width = width,
        .height = height,
    };
    return fail(cu.cuMemcpy2DAsync_v2(&copy, stream_meant(stream)));
}
PER_THREAD(cudaMemcpy2DAsync, _ptsz,
           (void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height,
            int kind, void *stream),
           (target, target_pitch, source, source_pitch, width, height, kind, stream))

API error cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                       size_t height, int kind) {
    error code = cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height, kind, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemcpy2D, _ptds,
           (void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height,
            int kind),
           (target, target_pitch, source, source_pitch, width, height, kind))

/* ---- in boxes ---- */

struct copy_box {
    void *source_array;
    struct position source_at;
    struct pitched source;
    void *target_array;
    struct position target_at;
    struct pitched target;
    struct box box;
    int kind;
};

static struct side3d side(struct pitched memory, struct position at, int type) {
    return (struct side3d){
        .x = at.x,
        .y = at.y,
        .z = at.z,
        .type = type,
        .host = memory.address,
        .device = (deviceptr)memory.address,
        .pitch = memory.pitch,
        .height = memory.height,
    };
}

API error cudaMemcpy3DAsync(const struct copy_box *copy, void *stream) {
    NEED_DRIVER();
    if (!copy) return fail(INVALID_VALUE);
    RETURN_IF(check_kind(copy->kind));
    if (copy->source_array || copy->target_array) return fail(NOT_SUPPORTED); /* there are no arrays here */
    NEED_CONTEXT();
    struct box box = copy->box;
    if (!box.width || !box.height || !box.depth) return OK;
    if (box.width > copy->source.pitch || box.width > copy->target.pitch) return fail(INVALID_PITCH);
    struct copy3d passed = {
        .source = side(copy->source, copy->source_at, memory_type(copy->kind, reads_host(copy->kind))),
        .target = side(copy->target, copy->target_at, memory_type(copy->kind, writes_host(copy->kind))),
        .width = box.width,
        .height = box.height,
        .depth = box.depth,
    };
    return fail(cu.cuMemcpy3DAsync_v2(&passed, stream_meant(stream)));
}
PER_THREAD(cudaMemcpy3DAsync, _ptsz, (const struct copy_box *copy, void *stream), (copy, stream))

API error cudaMemcpy3D(const struct copy_box *copy) {
    error code = cudaMemcpy3DAsync(copy, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemcpy3D, _ptds, (const struct copy_box *copy), (copy))

/* ---- fills ---- */

API error cudaMemsetAsync(void *address, int value, size_t nbytes, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    if (!nbytes) return OK;
    return fail(cu.cuMemsetD8Async((deviceptr)address, (unsigned char)value, nbytes, stream_meant(stream)));
}
PER_THREAD(cudaMemsetAsync, _ptsz, (void *address, int value, size_t nbytes, void *stream),
           (address, value, nbytes, stream))

API error cudaMemset(void *address, int value, size_t nbytes) {
    error code = cudaMemsetAsync(address, value, nbytes, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemset, _ptds, (void *address, int value, size_t nbytes), (address, value, nbytes))

API error cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height, void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    if (!width || !height) return OK;
    return fail(
        cu.cuMemsetD2D8Async((deviceptr)address, pitch, (unsigned char)value, width, height, stream_meant(stream)));
}
PER_THREAD(cudaMemset2DAsync, _ptsz,
           (void *address, size_t pitch, int value, size_t width, size_t height, void *stream),
           (address, pitch, value, width, height, stream))

API error cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height) {
    error code = cudaMemset2DAsync(address, pitch, value, width, height, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemset2D, _ptds, (void *address, size_t pitch, int value, size_t width, size_t height),
           (address, pitch, value, width, height))

API error cudaMemset3DAsync(struct pitched memory, int value, struct box box, void *stream) {
    for (size_t z = 0; z < box.depth; z++) {
        char *slice = (char *)memory.address + z * memory.pitch * memory.height;
        error code = cudaMemset2DAsync(slice, memory.pitch, value, box.width, box.height, stream);
        if (code) return code;
    }
    return OK;
}
PER_THREAD(cudaMemset3DAsync, _ptsz, (struct pitched memory, int value, struct box box, void *stream),
           (memory, value, box, stream))

API error cudaMemset3D(struct pitched memory, int value, struct box box) {
    error code = cudaMemset3DAsync(memory, value, box, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemset3D, _ptds, (struct pitched memory, int value, struct box box), (memory, value, box))

/* ---- to and from __device__ variables ---- */

static error part_of_symbol(const void *symbol, size_t nbytes, size_t offset, char **address) {
    deviceptr found;
    size_t whole;
    RETURN_IF(symbol_find(symbol, &found, &whole));
    *address = (char *)found + offset;
    return offset > whole || nbytes > whole - offset ? INVALID_VALUE : OK;
}

API error cudaMemcpyToSymbolAsync(const void *symbol, const void *source, size_t nbytes, size_t offset, int kind,
                                  void *stream) {
    char *address = NULL;
    NEED_DRIVER();
    if (kind != HOST_TO_DEVICE && kind != DEVICE_TO_DEVICE && kind != COPY_DEFAULT) return fail(INVALID_DIRECTION);
    NEED_CONTEXT();
    RETURN_IF(part_of_symbol(symbol, nbytes, offset, &address));
    return cudaMemcpyAsync(address, source, nbytes, kind, stream);
}
PER_THREAD(cudaMemcpyToSymbolAsync, _ptsz,
           (const void *symbol, const void *source, size_t nbytes, size_t offset, int kind, void *stream),
           (symbol, source, nbytes, offset, kind, stream))

API error cudaMemcpyToSymbol(const void *symbol, const void *source, size_t nbytes, size_t offset, int kind) {
    error code = cudaMemcpyToSymbolAsync(symbol, source, nbytes, offset, kind, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemcpyToSymbol, _ptds, (const void *symbol, const void *source, size_t nbytes, size_t offset, int kind),
           (symbol, source, nbytes, offset, kind))

API error cudaMemcpyFromSymbolAsync(void *target, const void *symbol, size_t nbytes, size_t offset, int kind,
                                    void *stream) {
    char *address = NULL;
    NEED_DRIVER();
    if (kind != DEVICE_TO_HOST && kind != DEVICE_TO_DEVICE && kind != COPY_DEFAULT) return fail(INVALID_DIRECTION);
    NEED_CONTEXT();
    RETURN_IF(part_of_symbol(symbol, nbytes, offset, &address));
    return cudaMemcpyAsync(target, address, nbytes, kind, stream);
}
PER_THREAD(cudaMemcpyFromSymbolAsync, _ptsz,
           (void *target, const void *symbol, size_t nbytes, size_t offset, int kind, void *stream),
           (target, symbol, nbytes, offset, kind, stream))

API error cudaMemcpyFromSymbol(void *target, const void *symbol, size_t nbytes, size_t offset, int kind) {
    error code = cudaMemcpyFromSymbolAsync(target, symbol, nbytes, offset, kind, NULL);
    return code ? code : fail(finish(OK));
}
PER_THREAD(cudaMemcpyFromSymbol, _ptds, (void *target, const void *symbol, size_t nbytes, size_t offset, int kind),
           (target, symbol, nbytes, offset, kind))
