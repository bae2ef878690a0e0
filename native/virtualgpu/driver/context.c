/* Contexts, primary and created, each thread's stack of them, and their settings. */
#include "driver.h"

#include <stdatomic.h>
#include <string.h>

#define STACK_DEPTH 64

static struct context *primary[STORE_MAX_GPUS];
static _Atomic int broken[STORE_MAX_GPUS]; /* the sticky error of this process on each device, or 0 */
static _Thread_local struct context *stack[STACK_DEPTH];
static _Thread_local int depth;

static const size_t default_limits[LIMITS] = {1024, 8650752, 8388608, 0, 2048, 64, 11796480, 232448, 0, 0};

uint64_t next_id(void) {
    static _Atomic uint64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

struct context *context_current(void) {
    return depth ? stack[depth - 1] : NULL;
}

/* What asks about devices, chooses among contexts, ends one, or needs none. On an H200 (580.159.04) these
 * calls answered as ever, and all others with the error. */
static const char *const no_work[] = {
    "cuCheckpoint",
    "cuCtxDestroy",
    "cuCtxDetach",
    "cuCtxGetApiVersion",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem",
    "cuGetProcAddress",
    "cuMemCreate",
    "cuMemRelease",
    "cuPointerGetAttribute",
};

result context_broken(const char *function) {
    struct context *context = context_current();
    if (!context || !broken[context->device]) return OK;
    for (size_t i = 0; i < sizeof no_work / sizeof *no_work; i++)
        if (strncmp(function, no_work[i], strlen(no_work[i])) == 0) return OK;
    return (result)broken[context->device];
}

void context_break(int code) {
    if (context_current()) broken[context_current()->device] = code;
}

result context_check(struct context *context) {
    if (!handle_is(context, HANDLE_CONTEXT)) return INVALID_CONTEXT;
    return context->alive ? OK : CONTEXT_IS_DESTROYED;
}

result context_need(struct context **context) {
    *context = context_current();
    return *context ? context_check(*context) : INVALID_CONTEXT;
}

static result activate(struct context *context) {
    static uint64_t last_context;
    /* Once broken, a process gets no further context there, whatever it destroys or resets. */
    if (broken[context->device]) return (result)broken[context->device];
    result failed = event_thread_start();
    if (failed) return failed;
    failed = client_add_context(context->device, &context->footprint);
    if (failed) return failed;
    context->legacy = stream_create(context, 0, 0);
    if (!context->legacy) {
        client_drop_context(context->device, &context->footprint);
        return OUT_OF_MEMORY;
    }
    context->legacy->is_legacy = true;
    context->alive = true;
    context->ending = false;
    context->id = ++last_context; /* 1, 2, 3 as on real drivers, where it is also the number that CUPTI knows */
    context->slabs = NULL;
    context->peers = 0;
    for (int i = 0; i < LIMITS; i++) context->limits[i] = default_limits[i];
    return OK;
}

static struct context *context_make(int device, unsigned flags, unsigned api_version) {
    struct context *context = handle_take(HANDLE_CONTEXT, sizeof *context, NULL);
    if (!context) return NULL;
    context->device = device;
    context->flags = flags;
    context->api_version = api_version;
    return context;
}

void contexts_wait_idle(struct context *context) {
    for (;;) {
        state_lock();
        struct stream *busy = handle_first(HANDLE_STREAM);
        while (busy && (busy->handle.owner != context || stream_idle(busy))) busy = handle_next(busy);
        state_unlock();
        if (!busy) return;
        stream_wait(busy);
    }
}

/* Everything made in a context ends with it. Pools and memory of cuMemCreate belong to the process: on an H200
 * they stayed in use when its last context was gone. */
static void deactivate(struct context *context) {
    context->alive = false;
    plain_free_context(context);
    managed_free_context(context);
    host_free_context(context);
    ipc_free_context(context);
    streams_free_context(context);
    client_drop_context(context->device, &context->footprint);
}

static result ensure_primary(int device) {
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    if (!primary[device]) primary[device] = context_make(device, 0, 3020);
    if (!primary[device]) return OUT_OF_MEMORY;
    primary[device]->primary = true;
    return OK;
}

static result retain(struct context **context, int device, bool *made) {
    LOCKED();
    if (!context) return INVALID_VALUE;
    result failed = ensure_primary(device);
    *made = !failed && !primary[device]->alive;
    if (*made) failed = activate(primary[device]);
    if (failed) return failed;
    primary[device]->retained++;
    *context = primary[device];
    return OK;
}

result primary_retain(struct context **context, int device) {
    bool made = false;
    result failed = retain(context, device, &made);
    if (!failed && made) callback_resource(CONTEXT_CREATED, *context, NULL);
    return failed;
}

result cuDevicePrimaryCtxRetain(struct context **context, int device) {
    GATE_ON(device);
    return primary_retain(context, device);
}

/* Once for each life of a context, however many threads end it. */
static void announce_end(struct context *context) {
    state_lock();
    bool first = context->alive && !context->ending;
    context->ending = true;
    state_unlock();
    if (first) callback_resource(CONTEXT_DESTROY_STARTING, context, NULL);
}

static void end_primary(int device) {
    announce_end(primary[device]);
    contexts_wait_idle(primary[device]);
    LOCKED();
    if (primary[device]->alive) deactivate(primary[device]);
}

static result drop_one(int device, bool *last) {
    LOCKED();
    result failed = ensure_primary(device);
    if (failed) return failed;
    if (!primary[device]->retained) return INVALID_CONTEXT;
    *last = --primary[device]->retained == 0;
    return OK;
}

result primary_release(int device) {
    bool last = false;
    result failed = drop_one(device, &last);
    if (last) end_primary(device);
    return failed;
}

result cuDevicePrimaryCtxRelease_v2(int device) {
    GATE_ON(device);
    return primary_release(device);
}

result cuDevicePrimaryCtxReset_v2(int device) {
    GATE_ON(device);
    state_lock();
    result failed = ensure_primary(device);
    if (!failed && green_on(device)) failed = NOT_PERMITTED; /* measured: 800, and nothing is freed */
    state_unlock();
    /* The count of retains outlives the reset; the context comes back when next retained. */
    if (!failed) end_primary(device);
    return failed;
}

result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    GATE_AS(device, GATE_ANSWERS);
    LOCKED();
    result failed = ensure_primary(device);
    if (failed) return failed;
    if (flags) *flags = primary[device]->flags;
    if (active) *active = primary[device]->alive;
    return OK;
}

result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    GATE_ON(device);
    LOCKED();
    result failed = ensure_primary(device);
    if (!failed) primary[device]->flags = flags;
    return failed;
}

static result push(struct context *context) {
    if (depth == STACK_DEPTH) return OUT_OF_MEMORY;
    stack[depth++] = context;
    return OK;
}

static result create_and_push(struct context **created, unsigned flags, int device, unsigned api_version) {
    LOCKED();
    if (!created) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    if (depth == STACK_DEPTH) return OUT_OF_MEMORY;
    struct context *context = context_make(device, flags, api_version);
    if (!context) return OUT_OF_MEMORY;
    result failed = activate(context);
    if (failed) {
        handle_drop(context);
        return failed;
    }
    *created = context;
    return push(context);
}

static result context_create(struct context **created, unsigned flags, int device, unsigned api_version) {
    result failed = create_and_push(created, flags, device, api_version);
    if (!failed) callback_resource(CONTEXT_CREATED, *created, NULL);
    return failed;
}

result cuCtxCreate_v2(struct context **context, unsigned flags, int device) {
    GATE_ON(device);
    return context_create(context, flags, device, 3020);
}

result cuCtxCreate_v3(struct context **context, void *affinity, int count, unsigned flags, int device) {
    GATE_ON(device);
    if (affinity || count) return NOT_SUPPORTED; /* that is for MPS clients */
    return context_create(context, flags, device, 3020);
}

result cuCtxCreate_v4(struct context **context, void *parameters, unsigned flags, int device) {
    GATE_ON(device);
    const struct {
        void *affinity;
        int affinity_count;
        void *graphics;
    } *asked = parameters;
    if (asked && (asked->affinity_count || asked->graphics)) return NOT_SUPPORTED;
    return context_create(context, flags, device, 3020);
}

result cuCtxDestroy_v2(struct context *context) {
    GATE();
    state_lock();
    result failed = context_check(context);
    if (!failed && context->primary) failed = INVALID_CONTEXT;
    state_unlock();
    if (failed) return failed;
    announce_end(context);
    contexts_wait_idle(context);
    LOCKED();
    if (!context->alive) return CONTEXT_IS_DESTROYED;
    deactivate(context);
    /* The handle stays, so that threads that have it current are told it is gone. */
    if (context_current() == context) depth--;
    return OK;
}

result cuCtxPushCurrent_v2(struct context *context) {
    GATE();
    LOCKED();
    result failed = context_check(context);
    return failed ? failed : push(context);
}

result cuCtxPopCurrent_v2(struct context **context) {
    GATE();
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return OK;
}

result cuCtxSetCurrent(struct context *context) {
    GATE();
    LOCKED();
    if (!context) {
        if (depth) depth--;
        return OK;
    }
    result failed = context_check(context);
    if (failed) return failed;
    if (depth) depth--;
    return push(context);
}

result cuCtxGetCurrent(struct context **context) {
    GATE();
    if (!context) return INVALID_VALUE;
    *context = context_current();
    return OK;
}

result cuCtxGetDevice_v2(int *device, struct context *context) {
    GATE_AS(-1, GATE_ANSWERS);
    LOCKED();
    struct context *asked = context;
    result failed = asked ? context_check(asked) : context_need(&asked);
    if (!failed && !device) failed = INVALID_VALUE;
    if (!failed) *device = asked->device;
    return failed;
}

result cuCtxGetDevice(int *device) {
    return cuCtxGetDevice_v2(device, NULL);
}

static result synchronize(struct context *context, struct gate *gate) {
    state_lock();
    result failed = context ? context_check(context) : context_need(&context);
    state_unlock();
    if (failed) return failed;
    gate_before_wait(gate);
    contexts_wait_idle(context);
    pools_synchronized_by(gate, context->device);
    return OK;
}

result cuCtxSynchronize(void) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    return synchronize(NULL, &gate);
}

result cuCtxSynchronize_v2(struct context *context) {
    GATE_AS(-1, GATE_ANSWERS_OR_DIES);
    return synchronize(context, &gate);
}

/* ---- settings: stored and returned; nothing here depends on them ---- */

result cuCtxGetId(struct context *context, unsigned long long *id) {
    GATE();
    LOCKED();
    result failed = context ? context_check(context) : context_need(&context);
    if (!failed && !id) failed = INVALID_VALUE;
    if (!failed) *id = context->id;
    return failed;
}

result cuCtxGetApiVersion(struct context *context, unsigned *version) {
    GATE();
    LOCKED();
    result failed = context ? context_check(context) : context_need(&context);
    if (!failed && !version) failed = INVALID_VALUE;
    if (!failed) *version = context->api_version;
    return failed;
}

result cuCtxGetFlags(unsigned *flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed && !flags) failed = INVALID_VALUE;
    if (!failed) *flags = context->flags;
    return failed;
}

result cuCtxSetFlags(unsigned flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed) context->flags = flags;
    return failed;
}

static result check_limit(int limit) {
    enum { SYNC_DEPTH = 3 }; /* gone with compute capability 9.0 */
    return limit < 0 || limit >= LIMITS ? INVALID_VALUE : limit == SYNC_DEPTH ? UNSUPPORTED_LIMIT : OK;
}

result cuCtxSetLimit(int limit, size_t value) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed) failed = check_limit(limit);
    if (!failed) context->limits[limit] = value;
    return failed;
}

result cuCtxGetLimit(size_t *value, int limit) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed) failed = value ? check_limit(limit) : INVALID_VALUE;
    if (!failed) *value = context->limits[limit];
    return failed;
}

static result remember(size_t field, int value) {
    struct context *context;
    LOCKED();
    result failed = context_need(&context);
    if (!failed) memcpy((char *)context + field, &value, sizeof value);
    return failed;
}

static result recall(size_t field, int *value) {
    struct context *context;
    LOCKED();
    result failed = value ? context_need(&context) : INVALID_VALUE;
    if (!failed) memcpy(value, (char *)context + field, sizeof *value);
    return failed;
}

result cuCtxGetCacheConfig(int *config) {
    GATE();
    return recall(offsetof(struct context, cache_config), config);
}

result cuCtxSetCacheConfig(int config) {
    GATE();
    return remember(offsetof(struct context, cache_config), config);
}

result cuCtxGetSharedMemConfig(int *config) {
    GATE();
    return recall(offsetof(struct context, shared_config), config);
}

result cuCtxSetSharedMemConfig(int config) {
    GATE();
    return remember(offsetof(struct context, shared_config), config);
}

result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return OK;
}

result cuCtxResetPersistingL2Cache(void) {
    GATE();
    LOCKED();
    struct context *context;
    return context_need(&context);
}
