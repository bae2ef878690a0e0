/* Copies and fills: device memory is host memory here, so all of them are moves of bytes by the CPU. */
#include "driver.h"

#include <string.h>

/* ---- copies in a line ---- */

enum { CHECK_TARGET = 1, CHECK_SOURCE = 2 };

struct copy {
    deviceptr target, source;
    size_t nbytes;
};

static void run_copy(void *argument) {
    const struct copy *copy = argument;
    memmove((void *)copy->target, (const void *)copy->source, copy->nbytes);
}

/* Addresses that must be the device's are checked before anything moves. */
static result check_copy(const struct copy *copy, int what) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if ((what & CHECK_TARGET) && !range_covers(copy->target, copy->nbytes)) return INVALID_VALUE;
    if ((what & CHECK_SOURCE) && !range_covers(copy->source, copy->nbytes)) return INVALID_VALUE;
    managed_touch(copy->target, copy->nbytes, context->device);
    return OK;
}

static result copy_now(struct copy copy, int what) {
    result failed = check_copy(&copy, what);
    if (failed || !copy.nbytes) return failed;
    return stream_run_now(run_copy, &copy, sizeof copy);
}

static result copy_on(struct copy copy, int what, void *stream) {
    result failed = check_copy(&copy, what);
    return failed ? failed : stream_submit_on(stream, run_copy, &copy, sizeof copy);
}

API result cuMemcpy(deviceptr target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, source, nbytes}, 0);
}

API result cuMemcpyHtoD_v2(deviceptr target, const void *source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, (deviceptr)source, nbytes}, CHECK_TARGET);
}

API result cuMemcpyDtoH_v2(void *target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){(deviceptr)target, source, nbytes}, CHECK_SOURCE);
}

API result cuMemcpyDtoD_v2(deviceptr target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE);
}

API result cuMemcpyPeer(deviceptr target, struct context *to, deviceptr source, struct context *from, size_t nbytes) {
    GATE();
    (void)to;
    (void)from;
    return copy_now((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE);
}

API result cuMemcpyAsync(deviceptr target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, source, nbytes}, 0, stream);
}

API result cuMemcpyHtoDAsync_v2(deviceptr target, const void *source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, (deviceptr)source, nbytes}, CHECK_TARGET, stream);
}

API result cuMemcpyDtoHAsync_v2(void *target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){(deviceptr)target, source, nbytes}, CHECK_SOURCE, stream);
}

API result cuMemcpyDtoDAsync_v2(deviceptr target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE, stream);
}

API result cuMemcpyPeerAsync(deviceptr target, struct context *to, deviceptr source, struct context *from,
                             size_t nbytes, void *stream) {
    GATE();
    (void)to;
    (void)from;
    return copy_on((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE, stream);
}

API result cuMemcpyBatchAsync_v2(deviceptr *targets, deviceptr *sources, size_t *sizes, size_t count, void *attributes,
                                 size_t *attribute_indices, size_t attribute_count, void *stream) {
    GATE();
    (void)attributes;
    (void)attribute_indices;
    (void)attribute_count;
    if (!targets || !sources || !sizes || !count) return INVALID_VALUE;
    result failed = OK;
    for (size_t i = 0; i < count && !failed; i++)
        failed = copy_on((struct copy){targets[i], sources[i], sizes[i]}, 0, stream);
    return failed;
}

API result cuMemcpyBatchAsync(deviceptr *targets, deviceptr *sources, size_t *sizes, size_t count, void *attributes,
                              size_t *attribute_indices, size_t attribute_count, size_t *failed_at, void *stream) {
    if (failed_at) *failed_at = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(targets, sources, sizes, count, attributes, attribute_indices, attribute_count,
                                 stream);
}

/* ---- 2D and 3D copies, row by row; arrays do not exist on this GPU ---- */

struct side {
    deviceptr begin;
    bool on_device;
    size_t row, slice;
};

struct shape {
    struct side target, source;
    size_t width, height, depth;
};

static void run_shape(void *argument) {
    const struct shape *shape = argument;
    for (size_t z = 0; z < shape->depth; z++)
        for (size_t y = 0; y < shape->height; y++)
            memmove((char *)shape->target.begin + z * shape->target.slice + y * shape->target.row,
                    (const char *)shape->source.begin + z * shape->source.slice + y * shape->source.row, shape->width);
}

static uint64_t extent_of(const struct side *side, const struct shape *shape) {
    return (shape->depth - 1) * side->slice + (shape->height - 1) * side->row + shape->width;
}

static bool reachable(const struct side *side, const struct shape *shape) {
    return !side->on_device || range_covers(side->begin, extent_of(side, shape));
}

static result check_shape(const struct shape *shape) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (!reachable(&shape->target, shape) || !reachable(&shape->source, shape)) return INVALID_VALUE;
    managed_touch(shape->target.begin, extent_of(&shape->target, shape), context->device);
    return OK;
}

static result side_from(const struct side3d *from, const struct shape *shape, struct side *side) {
    if (from->type == MEMORY_ARRAY) return NOT_SUPPORTED;
    deviceptr base = from->type == MEMORY_HOST ? (deviceptr)from->host : from->device;
    size_t row = from->pitch ? from->pitch : from->x + shape->width;
    size_t slice = row * (from->height ? from->height : from->y + shape->height);
    if (row < from->x + shape->width) return INVALID_VALUE;
    *side = (struct side){base + from->z * slice + from->y * row + from->x, from->type == MEMORY_DEVICE, row, slice};
    return OK;
}

static result shape_from(const struct copy3d *copy, struct shape *shape) {
    if (!copy) return INVALID_VALUE;
    *shape = (struct shape){.width = copy->width, .height = copy->height, .depth = copy->depth};
    if (!shape->width || !shape->height || !shape->depth) return OK;
    result failed = side_from(&copy->source, shape, &shape->source);
    if (!failed) failed = side_from(&copy->target, shape, &shape->target);
    return failed ? failed : check_shape(shape);
}

static struct side3d widen(const struct side2d *side) {
    return (struct side3d){.x = side->x,
                           .y = side->y,
                           .type = side->type,
                           .host = side->host,
                           .device = side->device,
                           .array = side->array,
                           .pitch = side->pitch};
}

static struct copy3d from2d(const struct copy2d *copy) {
    return (struct copy3d){widen(&copy->source), widen(&copy->target), copy->width, copy->height, 1};
}

static result copy_shape_now(const struct copy3d *copy) {
    struct shape shape;
    result failed = shape_from(copy, &shape);
    return failed ? failed : stream_run_now(run_shape, &shape, sizeof shape);
}

static result copy_shape_on(const struct copy3d *copy, void *stream) {
    struct shape shape;
    result failed = shape_from(copy, &shape);
    return failed ? failed : stream_submit_on(stream, run_shape, &shape, sizeof shape);
}

API result cuMemcpy2D_v2(const struct copy2d *copy) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_shape_now(&box);
}

API result cuMemcpy2DUnaligned_v2(const struct copy2d *copy) {
    return cuMemcpy2D_v2(copy);
}

API result cuMemcpy2DAsync_v2(const struct copy2d *copy, void *stream) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_shape_on(&box, stream);
}

API result cuMemcpy3D_v2(const struct copy3d *copy) {
    GATE();
    return copy_shape_now(copy);
}

API result cuMemcpy3DAsync_v2(const struct copy3d *copy, void *stream) {
    GATE();
    return copy_shape_on(copy, stream);
}

API result cuMemcpy3DPeer(const struct copy3d *copy) {
    GATE();
    return copy_shape_now(copy);
}

API result cuMemcpy3DPeerAsync(const struct copy3d *copy, void *stream) {
    GATE();
    return copy_shape_on(copy, stream);
}

/* ---- fills with 8, 16 or 32 bit patterns, in a line or in a rectangle ---- */

struct fill {
    deviceptr begin;
    size_t pitch, width, height; /* width in elements */
    unsigned element, value;
};

static void fill_row(char *row, const struct fill *fill) {
    if (fill->element == 1) {
        memset(row, (int)fill->value, fill->width);
        return;
    }
    for (size_t i = 0; i < fill->width; i++) memcpy(row + i * fill->element, &fill->value, fill->element);
}

static void run_fill(void *argument) {
    const struct fill *fill = argument;
    for (size_t y = 0; y < fill->height; y++) fill_row((char *)fill->begin + y * fill->pitch, fill);
}

static result check_fill(const struct fill *fill) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed || !fill->width || !fill->height) return failed;
    size_t row = fill->width * fill->element;
    if (fill->begin % fill->element || (fill->height > 1 && fill->pitch < row)) return INVALID_VALUE;
    uint64_t nbytes = (fill->height - 1) * fill->pitch + row;
    if (!range_covers(fill->begin, nbytes)) return INVALID_VALUE;
    managed_touch(fill->begin, nbytes, context->device);
    return OK;
}

static result fill_now(struct fill fill) {
    result failed = check_fill(&fill);
    return failed ? failed : stream_run_now(run_fill, &fill, sizeof fill);
}

static result fill_on(struct fill fill, void *stream) {
    result failed = check_fill(&fill);
    return failed ? failed : stream_submit_on(stream, run_fill, &fill, sizeof fill);
}

/* Six shapes times two: the same lines for each element type. */
#define FAMILY(bits, type) \
    API result cuMemsetD##bits##_v2(deviceptr begin, type value, size_t count) { \
        GATE(); \
        return fill_now((struct fill){begin, 0, count, 1, bits / 8, value}); \
    } \
    API result cuMemsetD##bits##Async(deviceptr begin, type value, size_t count, void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, 0, count, 1, bits / 8, value}, stream); \
    } \
    API result cuMemsetD2D##bits##_v2(deviceptr begin, size_t pitch, type value, size_t width, size_t height) { \
        GATE(); \
        return fill_now((struct fill){begin, pitch, width, height, bits / 8, value}); \
    } \
    API result cuMemsetD2D##bits##Async(deviceptr begin, size_t pitch, type value, size_t width, size_t height, \
                                        void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, pitch, width, height, bits / 8, value}, stream); \
    }

FAMILY(8, unsigned char)
FAMILY(16, unsigned short)
FAMILY(32, unsigned)
