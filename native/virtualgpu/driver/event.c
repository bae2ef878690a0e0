/* Events: two counters, how often recorded and how far done, private or shared by IPC. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct counters {
    _Atomic uint32_t recorded, done;
};

struct event {
    struct handle handle;
    unsigned flags;
    uint64_t shared; /* number of the file its counters lie in, or 0 */
    bool made_file;
    _Atomic uint32_t waiters; /* queued or running waits that look at the counters */
    _Atomic int64_t done_at_ns;
    struct counters own, *counters;
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void counters_path(char path[PATH_MAX], uint64_t number) {
    snprintf(path, PATH_MAX, "%s/dev/event.%llu", store_folder(), (unsigned long long)number);
}

/* Processes that have it mapped keep their mapping; nobody can open it any more. */
static void remove_counters(uint64_t number) {
    char path[PATH_MAX];
    counters_path(path, number);
    unlink(path);
}

static bool has_pending(const struct event *event) {
    return event->waiters || event->counters->recorded != event->counters->done;
}

void event_free(struct event *event) {
    if (has_pending(event)) {
        handle_retire(event);
        return;
    }
    if (event->shared) munmap(event->counters, sizeof *event->counters);
    if (event->made_file) remove_counters(event->shared);
    handle_drop(event);
}

static struct event *event_take(struct context *context, unsigned flags) {
    struct event *event = handle_take(HANDLE_EVENT, sizeof *event, context);
    if (!event) return NULL;
    event->flags = flags;
    event->counters = &event->own;
    return event;
}

result cuEventCreate(struct event **event, unsigned flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (!event || flags > 7) return INVALID_VALUE;
    if ((flags & EVENT_INTERPROCESS) && !(flags & EVENT_DISABLE_TIMING)) return INVALID_VALUE;
    *event = event_take(context, flags);
    return *event ? OK : OUT_OF_MEMORY;
}

result cuEventDestroy_v2(struct event *event) {
    GATE();
    LOCKED();
    if (!handle_is(event, HANDLE_EVENT)) return INVALID_HANDLE;
    event_free(event);
    return OK;
}

/* ---- recording and waiting: counters outlive their event in queued work, by copy of place ---- */

struct mark {
    struct event *event;
    struct counters *counters;
    uint32_t number;
};

static bool is_done(const struct mark *mark) {
    return (int32_t)(mark->counters->done - mark->number) >= 0;
}

static void run_record(void *argument) {
    const struct mark *mark = argument;
    /* A later record on a faster stream has finished before: it counts. */
    if (is_done(mark)) return;
    mark->event->done_at_ns = now_ns();
    mark->counters->done = mark->number;
    syscall(SYS_futex, &mark->counters->done, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void run_wait(void *argument) {
    const struct mark *mark = argument;
    /* Woken now and then: the process that was to record a shared event may have died. */
    struct timespec patience = {.tv_sec = 1};
    while (!is_done(mark)) {
        uint32_t seen = mark->counters->done;
        if ((int32_t)(seen - mark->number) < 0)
            syscall(SYS_futex, &mark->counters->done, FUTEX_WAIT, seen, &patience, NULL, 0);
    }
    mark->event->waiters--;
}

static result mark_of(struct event *event, struct mark *mark) {
    LOCKED();
    if (!handle_is(event, HANDLE_EVENT)) return INVALID_HANDLE;
    *mark = (struct mark){event, event->counters, event->counters->recorded};
    return OK;
}

static result record(struct event *event, void *handle) {
    struct mark mark;
    result failed = mark_of(event, &mark);
    if (failed) return failed;
    mark.number = ++event->counters->recorded;
    failed = stream_submit_on(handle, run_record, &mark, sizeof mark);
    /* Nothing will finish this record: it is taken back, unless another one came meanwhile. */
    uint32_t number = mark.number;
    if (failed) atomic_compare_exchange_strong(&event->counters->recorded, &number, number - 1);
    return failed;
}

result cuEventRecord(struct event *event, void *handle) {
    GATE();
    return record(event, handle);
}

result cuEventRecordWithFlags(struct event *event, void *handle, unsigned flags) {
    GATE();
    return flags > 1 ? INVALID_VALUE : record(event, handle);
}

result cuEventQuery(struct event *event) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    struct mark mark;
    result failed = mark_of(event, &mark);
    if (failed) return failed;
    return is_done(&mark) ? OK : NOT_READY;
}

result cuEventSynchronize(struct event *event) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    struct mark mark;
    result failed = mark_of(event, &mark);
    if (failed) return failed;
    int device = event->handle.owner->device;
    event->waiters++;
    gate_before_wait(&gate);
    run_wait(&mark);
    pools_synchronized_by(&gate, device);
    return OK;
}

result cuStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    GATE_AS(-1, GATE_ANSWERS);
    struct mark mark;
    struct stream *stream;
    result failed = flags > 1 ? INVALID_VALUE : mark_of(event, &mark);
    if (failed) return failed;
    state_lock();
    failed = stream_resolve(handle, &stream);
    state_unlock();
    if (failed || is_done(&mark)) return failed;
    event->waiters++;
    failed = stream_submit(stream, run_wait, &mark, sizeof mark, false);
    if (failed) event->waiters--;
    return failed;
}

result cuEventElapsedTime_v2(float *milliseconds, struct event *start, struct event *end) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    struct mark first, second;
    result failed = mark_of(start, &first);
    if (!failed) failed = mark_of(end, &second);
    if (failed) return failed;
    if (!milliseconds) return INVALID_VALUE;
    if ((start->flags | end->flags) & EVENT_DISABLE_TIMING || !first.number || !second.number) return INVALID_HANDLE;
    if (!is_done(&first) || !is_done(&second)) return NOT_READY;
    *milliseconds = (float)((double)(end->done_at_ns - start->done_at_ns) / 1e6);
    return OK;
}

result cuEventElapsedTime(float *milliseconds, struct event *start, struct event *end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

/* ---- across processes: the counters move into a small file, the handle is its number ---- */

static struct counters *map_counters(uint64_t number, int flags) {
    char path[PATH_MAX];
    counters_path(path, number);
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
    if (fd < 0) return NULL;
    if (flags & O_CREAT) (void)!fchmod(fd, 0666);
    void *mapped = MAP_FAILED;
    struct stat file;
    bool sized = !(flags & O_CREAT) || ftruncate(fd, sizeof(struct counters)) == 0;
    if (store_step_fails("step.event_file")) sized = false;
    if (sized && fstat(fd, &file) == 0 && file.st_size >= (off_t)sizeof(struct counters))
        mapped = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED && flags & O_CREAT) remove_counters(number);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static result share(struct event *event) {
    if (event->shared) return OK;
    if (store_enter() != 0) return OPERATING_SYSTEM;
    uint64_t number = store_next_number();
    struct counters *counters = number ? map_counters(number, O_CREAT | O_EXCL) : NULL;
    store_leave();
    if (!counters) return OPERATING_SYSTEM;
    counters->recorded = event->own.recorded;
    counters->done = event->own.done;
    event->counters = counters;
    event->shared = number;
    event->made_file = true;
    return OK;
}

result cuIpcGetEventHandle(struct opaque64 *handle, struct event *event) {
    GATE();
    LOCKED();
    if (!handle || !handle_is(event, HANDLE_EVENT)) return handle ? INVALID_HANDLE : INVALID_VALUE;
    if (!(event->flags & EVENT_INTERPROCESS)) return INVALID_HANDLE;
    result failed = share(event);
    if (failed) return failed;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, "VRAMEVT1", 8);
    memcpy(handle->bytes + 8, &event->shared, sizeof event->shared);
    return OK;
}

result cuIpcOpenEventHandle(struct event **event, struct opaque64 handle) {
    GATE();
    LOCKED();
    struct context *context;
    uint64_t number;
    result failed = context_need(&context);
    if (failed) return failed;
    memcpy(&number, handle.bytes + 8, sizeof number);
    if (!event || memcmp(handle.bytes, "VRAMEVT1", 8) != 0) return INVALID_VALUE;
    struct counters *counters = map_counters(number, 0);
    if (!counters) return INVALID_VALUE;
    struct event *opened = event_take(context, EVENT_INTERPROCESS | EVENT_DISABLE_TIMING);
    if (!opened) {
        munmap(counters, sizeof *counters);
        return OUT_OF_MEMORY;
    }
    opened->counters = counters;
    opened->shared = number;
    *event = opened;
    return OK;
}
