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
    /* A handle used again: whoever still waits for its former stream must see the change whole. */
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

result stream_resolve(void *handle, struct stream **stream) {
    struct context *context;
    if ((uint64_t)handle > 2) {
        *stream = handle;
        return handle_is(handle, HANDLE_STREAM) ? OK : INVALID_HANDLE;
    }
    result failed = context_need(&context);
    if (failed) return failed;
    *stream = (uint64_t)handle == 2 ? per_thread_stream(context) : context->legacy;
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
    stream->worker = pthread_create(&thread, &attributes, work_until_empty, stream) == 0;
    pthread_attr_destroy(&attributes);
    if (stream->worker) gate_count_work(+1);
    return stream->worker ? OK : OUT_OF_MEMORY;
}

static result enqueue(struct stream *stream, void (*run)(void *), const void *argument, size_t nbytes) {
    struct work *work = malloc(sizeof *work + nbytes);
    if (!work) return OUT_OF_MEMORY;
    *work = (struct work){.run = run};
    memcpy(work->argument, argument, nbytes);
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->submitted++;
    return start_worker(stream);
}

/* The legacy default stream waits for every blocking stream of its context, and they for it. */
static bool ordered(const struct stream *stream, const struct stream *other) {
    if (stream == other || stream->handle.owner != other->handle.owner) return false;
    if (other->completed == other->submitted) return false;
    if (stream->is_legacy) return !(other->flags & STREAM_NON_BLOCKING);
    return other->is_legacy && !(stream->flags & STREAM_NON_BLOCKING);
}

static void enqueue_implicit_waits(struct stream *stream) {
    for (struct stream *other = handle_first(HANDLE_STREAM); other; other = handle_next(other)) {
        if (!ordered(stream, other)) continue;
        struct turn turn = {other, other->id, other->submitted};
        enqueue(stream, wait_for_turn, &turn, sizeof turn);
    }
}

/* State and queues are both locked here, in that order: workers are counted at the gate. */
static bool must_queue(struct stream *stream, bool inline_allowed) {
    enqueue_implicit_waits(stream);
    return !inline_allowed || stream->completed != stream->submitted;
}

result stream_submit(struct stream *stream, void (*run)(void *), const void *argument, size_t nbytes,
                     bool inline_allowed) {
    result failed = OK;
    state_lock();
    pthread_mutex_lock(&queues);
    bool queued = must_queue(stream, inline_allowed);
    if (queued)
        failed = enqueue(stream, run, argument, nbytes);
    else {
        stream->submitted++;
        stream->busy = true;
    }
    state_unlock();
    if (!queued) run_one(stream, run, (void *)argument);
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
