/* Copies: device memory is host memory here, so every direction is the same move of bytes. */
#include "driver.h"

#include <string.h>

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
static result check(const struct copy *copy, int what) {
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
    result failed = check(&copy, what);
    if (failed || !copy.nbytes) return failed;
    return stream_run_now(run_copy, &copy, sizeof copy);
}

static result copy_on(struct copy copy, int what, void *stream) {
    result failed = check(&copy, what);
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
