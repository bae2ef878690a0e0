/* The calls on streams. Captures do not exist here, since nothing could replay them. */
#include "driver.h"

#include <string.h>

static result create(struct stream **created, unsigned flags, int priority) {
    struct context *context;
    LOCKED();
    result failed = context_need(&context);
    if (!failed && (!created || flags > STREAM_NON_BLOCKING)) failed = INVALID_VALUE;
    if (failed) return failed;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *created = stream_create(context, flags, priority);
    return *created ? OK : OUT_OF_MEMORY;
}

API result cuStreamCreate(struct stream **stream, unsigned flags) {
    GATE();
    return create(stream, flags, 0);
}

API result cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    GATE();
    return create(stream, flags, priority);
}

API result cuStreamDestroy_v2(struct stream *stream) {
    GATE();
    LOCKED();
    if ((uint64_t)stream <= 2 || !handle_is(stream, HANDLE_STREAM) || stream->is_legacy) return INVALID_HANDLE;
    stream_destroy(stream);
    return OK;
}

static result find(void *handle, struct stream **stream) {
    LOCKED();
    return stream_resolve(handle, stream);
}

API result cuStreamQuery(void *handle) {
    GATE();
    struct stream *stream;
    result failed = find(handle, &stream);
    if (failed) return failed;
    return stream_idle(stream) ? OK : NOT_READY;
}

API result cuStreamSynchronize(void *handle) {
    GATE();
    struct stream *stream;
    result failed = find(handle, &stream);
    if (failed) return failed;
    int device = stream->handle.owner->device;
    stream_wait(stream);
    LOCKED();
    pools_synchronized(device);
    return OK;
}

#define ANSWER(field, value) \
    GATE(); \
    struct stream *stream; \
    result failed = find(handle, &stream); \
    if (!failed && !field) failed = INVALID_VALUE; \
    if (!failed) *field = value; \
    return failed

API result cuStreamGetPriority(void *handle, int *priority) {
    ANSWER(priority, stream->priority);
}

API result cuStreamGetFlags(void *handle, unsigned *flags) {
    ANSWER(flags, stream->flags);
}

API result cuStreamGetId(void *handle, unsigned long long *id) {
    ANSWER(id, stream->id);
}

API result cuStreamGetCtx(void *handle, struct context **context) {
    ANSWER(context, stream->handle.owner);
}

API result cuStreamGetDevice(void *handle, int *device) {
    ANSWER(device, stream->handle.owner->device);
}

API result cuStreamIsCapturing(void *handle, int *status) {
    ANSWER(status, 0);
}

API result cuStreamGetCtx_v2(void *handle, struct context **context, void **green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, context);
}

API result cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **graph, void *nodes,
                                     size_t *count) {
    (void)id;
    (void)nodes;
    if (graph) *graph = NULL;
    if (count) *count = 0;
    return cuStreamIsCapturing(handle, status);
}

API result cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, void **graph, void *nodes, void *edges,
                                     size_t *count) {
    (void)edges;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}

API result cuThreadExchangeStreamCaptureMode(int *mode) {
    GATE();
    static _Thread_local int current;
    if (!mode) return INVALID_VALUE;
    int previous = current;
    current = *mode;
    *mode = previous;
    return OK;
}

API result cuStreamCopyAttributes(void *target, void *source) {
    GATE();
    struct stream *stream;
    result failed = find(target, &stream);
    return failed ? failed : find(source, &stream);
}

/* ---- the program's own functions, in stream order ---- */

struct host_function {
    void (*function)(void *);
    void *data;
};

static void run_host_function(void *argument) {
    const struct host_function *call = argument;
    call->function(call->data);
}

API result cuLaunchHostFunc(void *handle, void (*function)(void *), void *data) {
    GATE();
    struct stream *stream;
    struct host_function call = {function, data};
    result failed = function ? find(handle, &stream) : INVALID_VALUE;
    return failed ? failed : stream_submit(stream, run_host_function, &call, sizeof call, false);
}

struct callback {
    void (*function)(void *stream, result status, void *data);
    void *stream, *data;
};

static void run_callback(void *argument) {
    const struct callback *call = argument;
    call->function(call->stream, OK, call->data);
}

API result cuStreamAddCallback(void *handle, void (*function)(void *, result, void *), void *data, unsigned flags) {
    GATE();
    struct stream *stream;
    struct callback call = {function, handle, data};
    result failed = function && !flags ? find(handle, &stream) : INVALID_VALUE;
    return failed ? failed : stream_submit(stream, run_callback, &call, sizeof call, false);
}

/* ---- values written by streams; waits for values need a GPU that polls, and are refused ---- */

struct write {
    deviceptr address;
    uint64_t value;
    size_t nbytes;
};

static void run_write(void *argument) {
    const struct write *write = argument;
    memcpy((void *)write->address, &write->value, write->nbytes);
}

static result write_value(void *handle, struct write write) {
    state_lock();
    bool reachable = range_covers(write.address, write.nbytes);
    state_unlock();
    return reachable ? stream_submit_on(handle, run_write, &write, sizeof write) : INVALID_VALUE;
}

API result cuStreamWriteValue32_v2(void *handle, deviceptr address, uint32_t value, unsigned flags) {
    GATE();
    (void)flags;
    return write_value(handle, (struct write){address, value, sizeof value});
}

API result cuStreamWriteValue64_v2(void *handle, deviceptr address, uint64_t value, unsigned flags) {
    GATE();
    (void)flags;
    return write_value(handle, (struct write){address, value, sizeof value});
}
