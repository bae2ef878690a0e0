/* Rectangles and boxes: 2D and 3D copies, row by row. Arrays do not exist on this GPU. */
#include "driver.h"

#include <string.h>

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
                    (const char *)shape->source.begin + z * shape->source.slice + y * shape->source.row,
                    shape->width);
}

static uint64_t extent_of(const struct side *side, const struct shape *shape) {
    return (shape->depth - 1) * side->slice + (shape->height - 1) * side->row + shape->width;
}

static bool reachable(const struct side *side, const struct shape *shape) {
    return !side->on_device || range_covers(side->begin, extent_of(side, shape));
}

static result check(const struct shape *shape) {
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
    return failed ? failed : check(shape);
}

static struct side3d widen(const struct side2d *side) {
    return (struct side3d){.x = side->x, .y = side->y, .type = side->type, .host = side->host,
                           .device = side->device, .array = side->array, .pitch = side->pitch};
}

static struct copy3d from2d(const struct copy2d *copy) {
    return (struct copy3d){widen(&copy->source), widen(&copy->target), copy->width, copy->height, 1};
}

static result copy_now(const struct copy3d *copy) {
    struct shape shape;
    result failed = shape_from(copy, &shape);
    return failed ? failed : stream_run_now(run_shape, &shape, sizeof shape);
}

static result copy_on(const struct copy3d *copy, void *stream) {
    struct shape shape;
    result failed = shape_from(copy, &shape);
    return failed ? failed : stream_submit_on(stream, run_shape, &shape, sizeof shape);
}

API result cuMemcpy2D_v2(const struct copy2d *copy) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_now(&box);
}

API result cuMemcpy2DUnaligned_v2(const struct copy2d *copy) {
    return cuMemcpy2D_v2(copy);
}

API result cuMemcpy2DAsync_v2(const struct copy2d *copy, void *stream) {
    GATE();
    if (!copy) return INVALID_VALUE;
    struct copy3d box = from2d(copy);
    return copy_on(&box, stream);
}

API result cuMemcpy3D_v2(const struct copy3d *copy) {
    GATE();
    return copy_now(copy);
}

API result cuMemcpy3DAsync_v2(const struct copy3d *copy, void *stream) {
    GATE();
    return copy_on(copy, stream);
}

API result cuMemcpy3DPeer(const struct copy3d *copy) {
    GATE();
    return copy_now(copy);
}

API result cuMemcpy3DPeerAsync(const struct copy3d *copy, void *stream) {
    GATE();
    return copy_on(copy, stream);
}
