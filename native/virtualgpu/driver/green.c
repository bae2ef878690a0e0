/* Green contexts: a share of a device's multiprocessors, on top of its primary context.
 *
 * Nothing computes here, so the share is only remembered. What matters for memory is that a green
 * context keeps the primary context alive and has no memory of its own: its CUcontext is the primary
 * one here, where the real driver has another handle for it.
 */
#include "driver.h"

enum { RESOURCE_SM = 1, DEFAULT_STREAM = 1, MIN_SHARE = 8 /* compute capability 9.0 */ };

struct dev_resource {
    int type;
    unsigned char reserved[92];
    unsigned count, smallest, alignment;
    unsigned char rest[36];
};

_Static_assert(sizeof(struct dev_resource) == 144, "programs pass arrays of them");

/* Both a description to make one from, and the green context itself. */
struct green {
    struct handle handle;
    int device;
    struct dev_resource share;
};

result cuDeviceGetDevResource(int device, struct dev_resource *resource, int type) {
    GATE_ON(device);
    if (!resource) return INVALID_VALUE;
    if (type != RESOURCE_SM) return NOT_SUPPORTED;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    unsigned all = (unsigned)device_multiprocessors(device);
    *resource = (struct dev_resource){RESOURCE_SM, {0}, all, MIN_SHARE, MIN_SHARE, {0}};
    return OK;
}

result cuDevSmResourceSplitByCount(struct dev_resource *groups, unsigned *group_count, const struct dev_resource *from,
                                   struct dev_resource *remaining, unsigned flags, unsigned least) {
    GATE();
    (void)flags;
    if (!group_count || !from || from->type != RESOURCE_SM) return INVALID_VALUE;
    uint64_t each = round_up(least ? least : 1, MIN_SHARE);
    uint64_t fit = from->count / each;
    if (!groups) { /* a question: how many would there be? */
        *group_count = (unsigned)fit;
        return OK;
    }
    if (fit == 0) return INVALID_VALUE;
    if (fit < *group_count) *group_count = (unsigned)fit;
    for (unsigned i = 0; i < *group_count; i++) {
        groups[i] = *from;
        groups[i].count = (unsigned)each;
    }
    if (remaining) {
        *remaining = *from;
        remaining->count = from->count - *group_count * (unsigned)each;
    }
    return OK;
}

result cuDevResourceGenerateDesc(struct green **description, const struct dev_resource *from, unsigned count) {
    GATE();
    LOCKED();
    if (!description || !from || count != 1 || from->type != RESOURCE_SM || !from->count) return INVALID_VALUE;
    *description = handle_take(HANDLE_RESOURCES, sizeof **description, NULL);
    if (!*description) return OUT_OF_MEMORY;
    (*description)->share = *from;
    return OK;
}

bool green_on(int device) {
    for (struct green *green = handle_first(HANDLE_GREEN); green; green = handle_next(green))
        if (green->device == device) return true;
    return false;
}

static result make(struct green **created, const struct green *description, int device) {
    LOCKED();
    *created = handle_take(HANDLE_GREEN, sizeof **created, NULL);
    if (!*created) return OUT_OF_MEMORY;
    (*created)->device = device;
    (*created)->share = description->share;
    return OK;
}

static bool is_green(const struct green *green, enum handle_kind kind) {
    LOCKED();
    return handle_is(green, kind);
}

result cuGreenCtxCreate(struct green **created, const struct green *description, int device, unsigned flags) {
    GATE_ON(device);
    struct context *primary;
    if (!created || flags != DEFAULT_STREAM || !is_green(description, HANDLE_RESOURCES)) return INVALID_VALUE;
    result failed = primary_retain(&primary, device);
    if (failed) return failed;
    failed = make(created, description, device);
    if (failed) primary_release(device);
    return failed;
}

result cuGreenCtxDestroy(struct green *green) {
    GATE();
    if (!is_green(green, HANDLE_GREEN)) return INVALID_CONTEXT;
    int device = green->device;
    state_lock();
    handle_drop(green);
    state_unlock();
    return primary_release(device);
}

result cuCtxFromGreenCtx(struct context **context, struct green *green) {
    GATE();
    if (!context) return INVALID_VALUE;
    if (!is_green(green, HANDLE_GREEN)) return INVALID_CONTEXT;
    /* Only to learn the handle: the green context itself keeps it alive. */
    result failed = primary_retain(context, green->device);
    return failed ? failed : primary_release(green->device);
}

result cuGreenCtxGetDevResource(struct green *green, struct dev_resource *resource, int type) {
    GATE();
    if (!is_green(green, HANDLE_GREEN)) return INVALID_CONTEXT;
    if (!resource) return INVALID_VALUE;
    if (type != RESOURCE_SM) return NOT_SUPPORTED;
    *resource = green->share;
    return OK;
}

result cuGreenCtxStreamCreate(struct stream **stream, struct green *green, unsigned flags, int priority) {
    GATE();
    if (!stream || flags != STREAM_NON_BLOCKING) return INVALID_VALUE;
    if (!is_green(green, HANDLE_GREEN)) return INVALID_CONTEXT;
    struct context *primary;
    result failed = primary_retain(&primary, green->device);
    if (failed) return failed;
    state_lock();
    *stream = stream_create(primary, flags, priority);
    state_unlock();
    if (*stream) callback_resource(STREAM_CREATED, primary, *stream);
    primary_release(green->device);
    return *stream ? OK : OUT_OF_MEMORY;
}
