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

/* Memory of the program's own is not checked; what begins in device memory must not lead out of it. */
static bool is_sound(deviceptr address, uint64_t nbytes, bool on_device) {
    uint64_t end;
    struct range *range = range_at(address);
    if (!size_add(address, nbytes, &end)) return false;
    return on_device || (nbytes && range && range_is_device(range)) ? range_covers(address, nbytes) : true;
}

/* Addresses that must be the device's are checked before anything moves. */
static result check_copy(const struct copy *copy, int what) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (!is_sound(copy->target, copy->nbytes, what & CHECK_TARGET)) return INVALID_VALUE;
    if (!is_sound(copy->source, copy->nbytes, what & CHECK_SOURCE)) return INVALID_VALUE;
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

result cuMemcpy(deviceptr target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, source, nbytes}, 0);
}

result cuMemcpyHtoD_v2(deviceptr target, const void *source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, (deviceptr)source, nbytes}, CHECK_TARGET);
}

result cuMemcpyDtoH_v2(void *target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){(deviceptr)target, source, nbytes}, CHECK_SOURCE);
}

result cuMemcpyDtoD_v2(deviceptr target, deviceptr source, size_t nbytes) {
    GATE();
    return copy_now((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE);
}

result cuMemcpyPeer(deviceptr target, struct context *to, deviceptr source, struct context *from, size_t nbytes) {
    GATE();
    (void)to;
    (void)from;
    return copy_now((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE);
}

result cuMemcpyAsync(deviceptr target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, source, nbytes}, 0, stream);
}

result cuMemcpyHtoDAsync_v2(deviceptr target, const void *source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, (deviceptr)source, nbytes}, CHECK_TARGET, stream);
}

result cuMemcpyDtoHAsync_v2(void *target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){(deviceptr)target, source, nbytes}, CHECK_SOURCE, stream);
}

result cuMemcpyDtoDAsync_v2(deviceptr target, deviceptr source, size_t nbytes, void *stream) {
    GATE();
    return copy_on((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE, stream);
}

result cuMemcpyPeerAsync(deviceptr target, struct context *to, deviceptr source, struct context *from, size_t nbytes,
                         void *stream) {
    GATE();
    (void)to;
    (void)from;
    return copy_on((struct copy){target, source, nbytes}, CHECK_TARGET | CHECK_SOURCE, stream);
}

result cuMemcpyBatchAsync_v2(deviceptr *targets, deviceptr *sources, size_t *sizes, size_t count, void *attributes,
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

result cuMemcpyBatchAsync(deviceptr *targets, deviceptr *sources, size_t *sizes, size_t count, void *attributes,
                          size_t *attribute_indices, size_t attribute_count, size_t *failed_at, void *stream) {
    if (failed_at) *failed_at = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(targets, sources, sizes, count, attributes, attribute_indices, attribute_count,
                                 stream);
}

/* ---- 2D and 3D copies, row by row; arrays do not exist on this GPU ---- */

struct side {
    deviceptr begin;
    bool on_device;
    uint64_t row, slice; /* bytes from one to the next */
    uint64_t extent;     /* from the first byte to the end of the last row */
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

static result check_shape(const struct shape *shape) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    const struct side *target = &shape->target, *source = &shape->source;
    if (!is_sound(target->begin, target->extent, target->on_device)) return INVALID_VALUE;
    if (!is_sound(source->begin, source->extent, source->on_device)) return INVALID_VALUE;
    managed_touch(target->begin, target->extent, context->device);
    return OK;
}

/* z * slice + y * row + x; false where that has no number. */
static bool place_in(uint64_t z, uint64_t slice, uint64_t y, uint64_t row, uint64_t x, uint64_t *place) {
    uint64_t slices, rows;
    return size_multiply(z, slice, &slices) && size_multiply(y, row, &rows) && size_add(slices, rows, place) &&
           size_add(*place, x, place);
}

static result side_from(const struct side3d *from, const struct shape *shape, struct side *side) {
    if (from->type == MEMORY_ARRAY) return NOT_SUPPORTED;
    uint64_t used_row, used_height, row, slice, begin, extent;
    if (!size_add(from->x, shape->width, &used_row) || !size_add(from->y, shape->height, &used_height))
        return INVALID_VALUE;
    row = from->pitch ? from->pitch : used_row;
    if (row < used_row || !size_multiply(row, from->height ? from->height : used_height, &slice)) return INVALID_VALUE;
    if (!place_in(from->z, slice, from->y, row, from->x, &begin)) return INVALID_VALUE;
    if (!place_in(shape->depth - 1, slice, shape->height - 1, row, shape->width, &extent)) return INVALID_VALUE;
    if (!size_add(begin, from->type == MEMORY_HOST ? (deviceptr)from->host : from->device, &begin))
        return INVALID_VALUE;
    *side = (struct side){begin, from->type == MEMORY_DEVICE, row, slice, extent};
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

result cuMemcpy2D_v2(const struct copy2d *copy) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_shape_now(&box);
}

result cuMemcpy2DUnaligned_v2(const struct copy2d *copy) {
    return cuMemcpy2D_v2(copy);
}

result cuMemcpy2DAsync_v2(const struct copy2d *copy, void *stream) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_shape_on(&box, stream);
}

result cuMemcpy3D_v2(const struct copy3d *copy) {
    GATE();
    return copy_shape_now(copy);
}

result cuMemcpy3DAsync_v2(const struct copy3d *copy, void *stream) {
    GATE();
    return copy_shape_on(copy, stream);
}

result cuMemcpy3DPeer(const struct copy3d *copy) {
    GATE();
    return copy_shape_now(copy);
}

result cuMemcpy3DPeerAsync(const struct copy3d *copy, void *stream) {
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
    uint64_t row, nbytes;
    if (!size_multiply(fill->width, fill->element, &row)) return INVALID_VALUE;
    if (fill->begin % fill->element || (fill->height > 1 && fill->pitch < row)) return INVALID_VALUE;
    if (!place_in(0, 0, fill->height - 1, fill->pitch, row, &nbytes)) return INVALID_VALUE;
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
    result cuMemsetD##bits##_v2(deviceptr begin, type value, size_t count) { \
        GATE(); \
        return fill_now((struct fill){begin, 0, count, 1, bits / 8, value}); \
    } \
    result cuMemsetD##bits##Async(deviceptr begin, type value, size_t count, void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, 0, count, 1, bits / 8, value}, stream); \
    } \
    result cuMemsetD2D##bits##_v2(deviceptr begin, size_t pitch, type value, size_t width, size_t height) { \
        GATE(); \
        return fill_now((struct fill){begin, pitch, width, height, bits / 8, value}); \
    } \
    result cuMemsetD2D##bits##Async(deviceptr begin, size_t pitch, type value, size_t width, size_t height, \
                                    void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, pitch, width, height, bits / 8, value}, stream); \
    }

FAMILY(8, unsigned char)
FAMILY(16, unsigned short)
FAMILY(32, unsigned)
