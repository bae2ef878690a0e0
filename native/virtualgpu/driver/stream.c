/* Streams: work in order, at once where nothing is before it, else by a thread of its own.
 *
 * No kernel ever runs here, so most streams are idle and their copies happen in the
 * calling thread. What can really take time is the program's own host functions and waits
 * for events; whatever comes after those queues behind them, as on a real GPU.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct work {
    struct work *next;
    void (*run)(void *);
    _Alignas(16) char argument[];
};

static pthread_mutex_t queues = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

struct stream *stream_create(struct context *context, unsigned flags, int priority) {
    /* The handle may be reused: a thread that waits for its former stream must not see half of the change. */
    pthread_mutex_lock(&queues);
    struct stream *stream = handle_take(HANDLE_STREAM, sizeof *stream, context);
    if (stream) {
        stream->flags = flags;
        stream->priority = priority;
        stream->id = next_id();
    }
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&queues);
    return stream;
}

bool stream_idle(const struct stream *stream) {
    pthread_mutex_lock(&queues);
    bool idle = stream->completed == stream->submitted;
    pthread_mutex_unlock(&queues);
    return idle;
}

void stream_destroy(struct stream *stream) {
    pthread_mutex_lock(&queues);
    bool working = stream->completed != stream->submitted || stream->worker;
    stream->dying = working; /* its worker drops it when the work is done */
    pthread_mutex_unlock(&queues);
    if (!working) handle_drop(stream);
}

void streams_free_context(struct context *context) {
    if (context->stream_bytes) client_use_streams(context->device, -(int64_t)context->stream_bytes);
    context->stream_bytes = 0;
    for (struct stream *stream = handle_first(HANDLE_STREAM), *next; stream; stream = next) {
        next = handle_next(stream);
        if (stream->handle.owner == context) stream_destroy(stream);
    }
    for (struct handle *event = handle_first(HANDLE_EVENT), *next; event; event = next) {
        next = handle_next(event);
        if (event->owner == context) event_free((struct event *)event);
    }
}

static struct stream *per_thread_stream(struct context *context) {
    long thread = syscall(SYS_gettid);
    for (struct stream *stream = handle_first(HANDLE_STREAM); stream; stream = handle_next(stream))
        if (stream->handle.owner == context && stream->thread == thread) return stream;
    struct stream *stream = stream_create(context, 0, 0);
    if (stream) stream->thread = thread;
    return stream;
}

_Thread_local bool default_stream_is_own;

result stream_resolve(void *handle, struct stream **stream) {
    enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };
    struct context *context;
    if ((uint64_t)handle > PER_THREAD_STREAM) {
        *stream = handle;
        return handle_is(handle, HANDLE_STREAM) ? OK : INVALID_HANDLE;
    }
    result failed = context_need(&context);
    if (failed) return failed;
    if (!handle) handle = (void *)(uint64_t)(default_stream_is_own ? PER_THREAD_STREAM : LEGACY_STREAM);
    *stream = (uint64_t)handle == PER_THREAD_STREAM ? per_thread_stream(context) : context->legacy;
    return *stream ? OK : OUT_OF_MEMORY;
}

/* ---- waiting ---- */

struct turn {
    struct stream *stream;
    uint64_t id, number;
};

static bool reached(const struct turn *turn) {
    return turn->stream->id != turn->id || turn->stream->completed >= turn->number;
}

static void wait_for_turn(void *argument) {
    const struct turn *turn = argument;
    pthread_mutex_lock(&queues);
    while (!reached(turn)) pthread_cond_wait(&progress, &queues);
    pthread_mutex_unlock(&queues);
}

void stream_wait(struct stream *stream) {
    pthread_mutex_lock(&queues);
    struct turn turn = {stream, stream->id, stream->submitted};
    pthread_mutex_unlock(&queues);
    wait_for_turn(&turn);
}

/* ---- running; the queues are locked unless said otherwise ---- */

static void finish_one(struct stream *stream) {
    stream->completed++;
    stream->busy = false;
    pthread_cond_broadcast(&progress);
}

static void run_one(struct stream *stream, void (*run)(void *), void *argument) {
    stream->busy = true;
    pthread_mutex_unlock(&queues);
    run(argument);
    pthread_mutex_lock(&queues);
    finish_one(stream);
}

static void drain(struct stream *stream) {
    while (stream->first) {
        while (stream->busy) pthread_cond_wait(&progress, &queues);
        struct work *work = stream->first;
        stream->first = work->next;
        if (!stream->first) stream->last = NULL;
        run_one(stream, work->run, work->argument);
        free(work);
    }
}

static void *work_until_empty(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&queues);
    drain(stream);
    stream->worker = false;
    bool dying = stream->dying;
    pthread_mutex_unlock(&queues);
    LOCKED();
    if (dying) handle_drop(stream);
    gate_count_work(-1);
    return NULL;
}

static result start_worker(struct stream *stream) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (stream->worker) return OK;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    stream->worker =
        !store_step_fails("step.thread") && pthread_create(&thread, &attributes, work_until_empty, stream) == 0;
    pthread_attr_destroy(&attributes);
    if (stream->worker) gate_count_work(+1);
    return stream->worker ? OK : OUT_OF_MEMORY;
}

static result enqueue(struct stream *stream, void (*run)(void *), const void *argument, size_t nbytes) {
    struct work *work = new_record(sizeof *work + nbytes);
    /* The worker waits for the lock on the queues, so it finds the work that is added after its start. */
    if (!work || start_worker(stream) != OK) {
        free(work);
        return OUT_OF_MEMORY;
    }
    work->run = run;
    memcpy(work->argument, argument, nbytes);
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->submitted++;
    return OK;
}

/* Takes back what was queued behind *last*; all of it where that is NULL. */
static void remove_behind(struct stream *stream, struct work *last) {
    struct work *work = last ? last->next : stream->first;
    if (last)
        last->next = NULL;
    else
        stream->first = NULL;
    stream->last = last;
    for (struct work *next; work; work = next) {
        next = work->next;
        free(work);
        stream->submitted--;
    }
}

/* The legacy default stream waits for every blocking stream of its context, and they for it. */
static bool ordered(const struct stream *stream, const struct stream *other) {
    if (stream == other || stream->handle.owner != other->handle.owner) return false;
    if (other->completed == other->submitted) return false;
    if (stream->is_legacy) return !(other->flags & STREAM_NON_BLOCKING);
    return other->is_legacy && !(stream->flags & STREAM_NON_BLOCKING);
}

static result enqueue_implicit_waits(struct stream *stream) {
    result failed = OK;
    for (struct stream *other = handle_first(HANDLE_STREAM); other && !failed; other = handle_next(other)) {
        if (!ordered(stream, other)) continue;
        struct turn turn = {other, other->id, other->submitted};
        failed = enqueue(stream, wait_for_turn, &turn, sizeof turn);
    }
    return failed;
}

result stream_submit(struct stream *stream, void (*run)(void *), const void *argument, size_t nbytes,
                     bool inline_allowed) {
    /* State and queues are both locked, in that order: workers are counted at the gate. */
    state_lock();
    pthread_mutex_lock(&queues);
    struct work *last = stream->last;
    result failed = enqueue_implicit_waits(stream);
    bool queued = !inline_allowed || stream->completed != stream->submitted;
    if (!failed && queued) failed = enqueue(stream, run, argument, nbytes);
    if (failed) remove_behind(stream, last);
    bool runs_here = !failed && !queued;
    if (runs_here) {
        stream->submitted++;
        stream->busy = true;
    }
    state_unlock();
    if (runs_here) run_one(stream, run, (void *)argument);
    pthread_mutex_unlock(&queues);
    return failed;
}

static result resolve_locked(void *handle, struct stream **stream) {
    LOCKED();
    return stream_resolve(handle, stream);
}

result stream_submit_on(void *handle, void (*run)(void *), const void *argument, size_t nbytes) {
    struct stream *stream;
    result failed = resolve_locked(handle, &stream);
    return failed ? failed : stream_submit(stream, run, argument, nbytes, true);
}

result stream_run_now(void (*run)(void *), const void *argument, size_t nbytes) {
    struct stream *stream;
    result failed = resolve_locked(NULL, &stream);
    if (!failed) failed = stream_submit(stream, run, argument, nbytes, true);
    if (!failed) stream_wait(stream);
    return failed;
}

/* ---- the calls; captures do not exist, since nothing could replay them ---- */

/* The first stream is part of the context; each four beyond it cost 2 MiB, which the context keeps. */
static result pay_for_streams(struct context *context) {
    enum { STREAMS_OF_A_PAGE = 4 };
    uint64_t others = 0;
    for (struct stream *stream = handle_first(HANDLE_STREAM); stream; stream = handle_next(stream))
        others += stream->handle.owner == context && !stream->is_legacy && !stream->thread;
    uint64_t cost = round_up(others, STREAMS_OF_A_PAGE) / STREAMS_OF_A_PAGE * PAGE;
    if (cost <= context->stream_bytes) return OK;
    result failed = client_use_streams(context->device, (int64_t)(cost - context->stream_bytes));
    if (!failed) context->stream_bytes = cost;
    return failed;
}

static result create_in(struct context **owner, struct stream **created, unsigned flags, int priority) {
    LOCKED();
    result failed = context_need(owner);
    if (!failed && (!created || flags > STREAM_NON_BLOCKING)) failed = INVALID_VALUE;
    if (failed) return failed;
    failed = pay_for_streams(*owner);
    if (failed) return failed;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *created = stream_create(*owner, flags, priority);
    return *created ? OK : OUT_OF_MEMORY;
}

static result create(struct stream **created, unsigned flags, int priority) {
    struct context *owner;
    result failed = create_in(&owner, created, flags, priority);
    if (!failed) callback_resource(STREAM_CREATED, owner, *created);
    return failed;
}

result cuStreamCreate(struct stream **stream, unsigned flags) {
    GATE();
    return create(stream, flags, 0);
}

result cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    GATE();
    return create(stream, flags, priority);
}

static bool may_destroy(const struct stream *stream) {
    return (uint64_t)stream > 2 && handle_is(stream, HANDLE_STREAM) && !stream->is_legacy;
}

/* Returns NULL for what is no stream of the program's. */
static struct context *owner_of(const struct stream *stream) {
    LOCKED();
    return may_destroy(stream) ? stream->handle.owner : NULL;
}

result cuStreamDestroy_v2(struct stream *stream) {
    GATE();
    struct context *owner = owner_of(stream);
    if (owner) callback_resource(STREAM_DESTROY_STARTING, owner, stream);
    LOCKED();
    if (!may_destroy(stream)) return INVALID_HANDLE;
    stream_destroy(stream);
    return OK;
}

result cuStreamQuery(void *handle) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    struct stream *stream;
    result failed = resolve_locked(handle, &stream);
    if (failed) return failed;
    return stream_idle(stream) ? OK : NOT_READY;
}

result cuStreamSynchronize(void *handle) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    struct stream *stream;
    result failed = resolve_locked(handle, &stream);
    if (failed) return failed;
    int device = stream->handle.owner->device;
    gate_before_wait(&gate);
    stream_wait(stream);
    pools_synchronized_by(&gate, device);
    return OK;
}

#define ANSWER(field, value) \
    GATE(); \
    struct stream *stream; \
    result failed = resolve_locked(handle, &stream); \
    if (!failed && !field) failed = INVALID_VALUE; \
    if (!failed) *field = value; \
    return failed

result cuStreamGetPriority(void *handle, int *priority) {
    ANSWER(priority, stream->priority);
}

result cuStreamGetFlags(void *handle, unsigned *flags) {
    ANSWER(flags, stream->flags);
}

result cuStreamGetId(void *handle, unsigned long long *id) {
    ANSWER(id, stream->id);
}

result cuStreamGetCtx(void *handle, struct context **context) {
    ANSWER(context, stream->handle.owner);
}

result cuStreamGetDevice(void *handle, int *device) {
    ANSWER(device, stream->handle.owner->device);
}

result cuStreamIsCapturing(void *handle, int *status) {
    ANSWER(status, 0);
}

result cuStreamGetCtx_v2(void *handle, struct context **context, void **green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, context);
}

result cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **graph, void *nodes, size_t *count) {
    (void)id;
    (void)nodes;
    if (graph) *graph = NULL;
    if (count) *count = 0;
    return cuStreamIsCapturing(handle, status);
}

result cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, void **graph, void *nodes, void *edges,
                                 size_t *count) {
    (void)edges;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}

result cuThreadExchangeStreamCaptureMode(int *mode) {
    GATE();
    static _Thread_local int current;
    if (!mode) return INVALID_VALUE;
    int previous = current;
    current = *mode;
    *mode = previous;
    return OK;
}

result cuStreamCopyAttributes(void *target, void *source) {
    GATE();
    struct stream *stream;
    result failed = resolve_locked(target, &stream);
    return failed ? failed : resolve_locked(source, &stream);
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

result cuLaunchHostFunc(void *handle, void (*function)(void *), void *data) {
    GATE();
    struct stream *stream;
    struct host_function call = {function, data};
    result failed = function ? resolve_locked(handle, &stream) : INVALID_VALUE;
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

result cuStreamAddCallback(void *handle, void (*function)(void *, result, void *), void *data, unsigned flags) {
    GATE();
    struct stream *stream;
    struct callback call = {function, handle, data};
    result failed = function && !flags ? resolve_locked(handle, &stream) : INVALID_VALUE;
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

result cuStreamWriteValue32_v2(void *handle, deviceptr address, uint32_t value, unsigned flags) {
    GATE();
    (void)flags;
    return write_value(handle, (struct write){address, value, sizeof value});
}

result cuStreamWriteValue64_v2(void *handle, deviceptr address, uint64_t value, unsigned flags) {
    GATE();
    (void)flags;
    return write_value(handle, (struct write){address, value, sizeof value});
}
