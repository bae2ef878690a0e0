/* What a context remembers and answers, though no kernel will ever ask for it. */
#include "driver.h"

#include <string.h>

API result cuCtxGetId(struct context *context, unsigned long long *id) {
    GATE();
    LOCKED();
    result failed = context ? context_check(context) : context_need(&context);
    if (!failed && !id) failed = INVALID_VALUE;
    if (!failed) *id = context->id;
    return failed;
}

API result cuCtxGetApiVersion(struct context *context, unsigned *version) {
    GATE();
    LOCKED();
    result failed = context ? context_check(context) : context_need(&context);
    if (!failed && !version) failed = INVALID_VALUE;
    if (!failed) *version = context->api_version;
    return failed;
}

API result cuCtxGetFlags(unsigned *flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed && !flags) failed = INVALID_VALUE;
    if (!failed) *flags = context->flags;
    return failed;
}

API result cuCtxSetFlags(unsigned flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed) context->flags = flags;
    return failed;
}

API result cuCtxSetLimit(int limit, size_t value) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed && (limit < 0 || limit >= LIMITS)) failed = INVALID_VALUE;
    if (!failed) context->limits[limit] = value;
    return failed;
}

API result cuCtxGetLimit(size_t *value, int limit) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (!failed && (!value || limit < 0 || limit >= LIMITS)) failed = INVALID_VALUE;
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

API result cuCtxGetCacheConfig(int *config) {
    GATE();
    return recall(offsetof(struct context, cache_config), config);
}

API result cuCtxSetCacheConfig(int config) {
    GATE();
    return remember(offsetof(struct context, cache_config), config);
}

API result cuCtxGetSharedMemConfig(int *config) {
    GATE();
    return recall(offsetof(struct context, shared_config), config);
}

API result cuCtxSetSharedMemConfig(int config) {
    GATE();
    return remember(offsetof(struct context, shared_config), config);
}

API result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return OK;
}

API result cuCtxResetPersistingL2Cache(void) {
    GATE();
    LOCKED();
    struct context *context;
    return context_need(&context);
}
